"""Operators of the interpreter: one function each, found by (domain, operator)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.onnx.dtypes import WORKING, torch_dtype
from nnfuzz.onnx.naming import label

DOMAINS = {"ai.onnx": "", "": "", "com.microsoft": "com.microsoft", "ai.onnx.ml": "ai.onnx.ml"}
"""Names of domains as files write them → as the registry holds them."""


@dataclass(frozen=True)
class Call:
    """What an operator's function knows of the node it computes.

    Attributes:
        op: operator, as the file names it ("Relu").
        domain: "" for ONNX's own operators, "com.microsoft" for ONNX Runtime's.
        version: opset of that domain which the file imports (7 to 23 for ""); functions branch on it where the
            meaning of the operator changed.
        attrs: attributes that the node gives, decoded: int, float, str, lists of them, ``torch.Tensor``; a graph is a
            callable ``branch(*inputs) -> tuple of outputs`` that sees the outer scope.
        inputs: names of the inputs in order; "" where an optional one is left out (its value is then None).
        outputs: names of the outputs in order; "" where one is not wanted.
        name: the node's name, for messages.
        types: ONNX element types of the inputs where the file tells them (codes of ``onnx.TensorProto.DataType``; 0
            where it does not, shorter than ``inputs`` or empty at will): int4 and int2 values are held in int8.
        floating: the dtype into which the program was converted (``program.double()``), None for a program as read.
        memo: the node's own: what a function worked out from shapes and attributes alone, by whatever it follows from.
    """

    op: str
    domain: str = ""
    version: int = 23
    attrs: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)
    name: str = ""
    types: tuple[int, ...] = ()
    floating: torch.dtype | None = None
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def label(self) -> str:
        """What the node is called; see ``naming``."""
        return label(self.name, self.op, self.outputs)

    def dtype(self, code: int) -> torch.dtype:
        """The torch dtype for an ONNX element type that an attribute names (``to`` of Cast, ``dtype`` of EyeLike).

        In a program that was converted, floating types of 16 bits and more all mean the type it was converted to.

        Raises:
            Unsupported: strings, and types that torch does not have.
        """
        named = torch_dtype(code)
        return self.floating if self.floating is not None and named in WORKING else named

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or ``default`` where the node leaves it out."""
        return self.attrs.get(name, default)

    def unsupported(self, what: str) -> Unsupported:
        """To be raised for a corner of an operator that is not written: ``raise call.unsupported("cubic in 3-D")``."""
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        return Unsupported(
            f"the ONNX operator {op} of opset {self.version} (node {self.label!r}): {what} is not supported"
        )


Operator = Callable[..., Any]
"""``f(call, *inputs) -> value or tuple of values``. A value is a ``torch.Tensor``, a list of them for a sequence, None
for an absent optional. Inputs left out at the end are not passed, so give parameters their defaults."""

OPERATORS: dict[tuple[str, str], Operator] = {}


def operator(*names: str, domain: str = "") -> Callable[[Operator], Operator]:
    """Decorator: ``@operator("Relu")``. Several names share one function where ``call.op`` tells them apart.

    Raises:
        UsageError: an operator is registered twice.
    """

    def add(function: Operator) -> Operator:
        for name in names:
            key = (DOMAINS.get(domain, domain), name)
            if key in OPERATORS:
                raise UsageError(f"the ONNX operator {'.'.join(k for k in key if k)} is registered twice")
            OPERATORS[key] = function
        return function

    return add


def find_operator(domain: str, op: str) -> Operator | None:
    """The function for an operator, None where it is not written."""
    return OPERATORS.get((DOMAINS.get(domain, domain), op))
