"""What a user may say of an ONNX model beside its path, and what can be fed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nnfuzz.errors import MissingExtra, Unsupported, UsageError
from nnfuzz.onnx.dtypes import NAMES

LEVELS = ("none", "basic", "extended", "all")
"""ONNX Runtime's optimisation levels, under the names that the command line uses."""
CPU = "CPUExecutionProvider"
_ENDING = "ExecutionProvider"


@dataclass(frozen=True)
class RuntimeOptions:
    """How ONNX Runtime runs a model.

    Attributes:
        provider: name of an execution provider ("CUDAExecutionProvider", "cuda"); None takes the CPU's.
        optimisation: a name in ``LEVELS``.
    """

    provider: str | None = None
    optimisation: str = "all"

    def __post_init__(self) -> None:
        if self.optimisation not in LEVELS:
            raise UsageError(
                f"the optimisation level {self.optimisation!r} is not known: choose one of {', '.join(LEVELS)}"
            )

    @property
    def given(self) -> dict[str, Any]:
        """What differs from the defaults, for ``run.json``."""
        return {k: v for k, v in asdict(self).items() if v != getattr(RuntimeOptions(), k)}

    @staticmethod
    def of(told: Any) -> RuntimeOptions:
        """From ``given``; what is not known is left out."""
        told = told if isinstance(told, dict) else {}
        return RuntimeOptions(told.get("provider"), told.get("optimisation") or "all")


def require() -> None:
    """Raises ``MissingExtra`` where the packages behind this part of nnfuzz are not installed."""
    for package in ("onnx", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "onnx", "an ONNX model") from None


def provider_named(word: str | None, available: Sequence[str]) -> str:
    """``CUDAExecutionProvider`` for that, ``cuda`` or ``CUDA``. Raises ``UsageError`` when it is not installed."""
    if word is None:
        return CPU if CPU in available else available[0]
    for name in available:
        if word.lower() in (name.lower(), name.removesuffix(_ENDING).lower()):
            return name
    raise UsageError(
        f"ONNX Runtime has no provider {word!r} here, only {', '.join(available)}: choose one of these, or install the "
        "build of ONNX Runtime that has it"
    )


MUTATED = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
"""Types of inputs that can be mutated; in the other ones torch neither adds nor compares."""
NARROW = ("uint4", "int4", "uint2", "int2", "float4e2m1")
"""Held in wider types by torch, which ONNX Runtime does not take for them."""


def _wider(name: str) -> str:
    return "float" if name.startswith("float") else "int64"


def check_inputs(specs: Sequence[Any], model: str) -> None:
    """Every input must be a tensor of numbers. ``specs`` are those of ``graph.py``. Raises ``Unsupported``, and
    ``UsageError`` for an input without an element type."""
    for spec in specs:
        if spec.kind != "tensor":
            raise Unsupported(f"the input {spec.name!r} of {model} is a {spec.kind}, and nnfuzz feeds tensors only")
        if spec.code not in NAMES:
            raise UsageError(
                f"the input {spec.name!r} of {model} has no element type that ONNX defines (its number is "
                f"{spec.code}): declare it, or export the model again"
            )
        if spec.dtype is None:
            raise Unsupported(
                f"the input {spec.name!r} of {model} holds text, and nnfuzz mutates numbers only: "
                "give the part of the model behind its tokenizer"
            )
        if spec.dtype not in MUTATED or NAMES[spec.code] in NARROW:
            raise Unsupported(
                f"the input {spec.name!r} of {model} is of type {NAMES[spec.code]}, in which torch does not compute, "
                f"so it cannot be mutated: declare it as {_wider(NAMES[spec.code])} and put a Cast node behind it"
            )
