"""Operators of the interpreter: one function each, found by (domain, operator)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nnfuzz.errors import Unsupported, UsageError

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
    """

    op: str
    domain: str = ""
    version: int = 23
    attrs: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)
    name: str = ""

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value, or ``default`` where the node leaves it out."""
        return self.attrs.get(name, default)

    def unsupported(self, what: str) -> Unsupported:
        """To be raised for a corner of an operator that is not written: ``raise call.unsupported("cubic in 3-D")``."""
        domain = f"{self.domain}." if self.domain else ""
        where = f" (node {self.name!r})" if self.name else ""
        return Unsupported(
            f"the ONNX operator {domain}{self.op} of opset {self.version}{where}: {what} is not supported"
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
