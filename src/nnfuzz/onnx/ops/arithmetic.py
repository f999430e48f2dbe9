"""Elementwise arithmetic: sums, products, powers, rounding, bits. Operands broadcast as in NumPy.

Source of every rule: the ONNX operator specification. An integer divided by zero has no meaning there (ONNX Runtime
ends the process); torch raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.ops.narrow import wide
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import number

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Log": torch.log, "Neg": torch.neg,
    "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Round": torch.round, "Sign": torch.sign,
    "Sin": torch.sin, "Sinh": torch.sinh, "Sqrt": torch.sqrt, "Tan": torch.tan,
}  # fmt: skip

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip


@operator(*_UNARY)
def unary(call: Call, x: Tensor) -> Tensor:
    """A function of one element. Round goes half to even; Sign of NaN is 0, as torch has it."""
    return _UNARY[call.op](wide(x)).to(x.dtype)


@operator(*_BINARY)
def binary(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """A function of two elements of one type; integers wrap around."""
    return _BINARY[call.op](wide(a), wide(b)).to(a.dtype)


@operator("Div")
def div(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Quotient; of integers rounded toward zero."""
    if a.is_floating_point():
        return torch.div(a, b)
    return torch.div(wide(a), wide(b), rounding_mode="trunc").to(a.dtype)


@operator("Mod")
def mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Remainder with the sign of the divisor, or with ``fmod`` that of the dividend."""
    remainder = torch.fmod if call.attr("fmod", 0) else torch.remainder
    return remainder(wide(a), wide(b)).to(a.dtype)


@operator("Pow")
def power(call: Call, base: Tensor, exponent: Tensor) -> Tensor:
    """Power in the type of the base, whatever that of the exponent."""
    if base.is_floating_point():
        return torch.pow(base, wide(exponent).to(base.dtype) if exponent.is_floating_point() else wide(exponent))
    if exponent.is_floating_point():
        return torch.pow(base.double(), exponent.double()).to(base.dtype)
    return torch.pow(wide(base), wide(exponent)).to(base.dtype)


@operator("Clip")
def clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Values between two bounds, attributes before opset 11; where they cross the upper one wins. NaN stays."""
    if call.version < 11:
        bounds = [call.attr("min"), call.attr("max")]
        return x if bounds == [None, None] else torch.clamp(x, *bounds)
    if low is None and high is None:
        return x
    bounds = [number(low), number(high)]
    if any(isinstance(b, Tensor) for b in bounds):
        bounds = [None if b is None else wide(b) for b in (low, high)]
    return torch.clamp(wide(x), *bounds).to(x.dtype)


@operator("Max", "Min")
def extreme(call: Call, *values: Tensor) -> Tensor:
    """Greatest or least of any number of operands; NaN where one is."""
    function = torch.maximum if call.op == "Max" else torch.minimum
    return functools.reduce(function, map(wide, values)).to(values[0].dtype)


@operator("Sum", "Mean")
def summed(call: Call, *values: Tensor) -> Tensor:
    """Sum or mean of any number of operands."""
    total = functools.reduce(torch.add, values)
    return total / len(values) if call.op == "Mean" else total


@operator("BitShift")
def shift(call: Call, x: Tensor, by: Tensor) -> Tensor:
    """Bits moved left or right, those moved out lost; to the right a sign fills in, as it does beyond all bits."""
    bits = x.dtype.itemsize * 8
    amount = wide(by)
    outside = (amount < 0) | (amount >= bits)
    amount = amount.clamp(0, bits - 1)
    if call.attr("direction") == "LEFT":
        moved = torch.bitwise_left_shift(wide(x), amount)
        return torch.where(outside, torch.zeros_like(moved), moved).to(x.dtype)
    moved = torch.bitwise_right_shift(wide(x), amount)
    if x.dtype == torch.uint64:  # held in int64, whose sign bit moves along with the others
        kept = torch.bitwise_left_shift(torch.ones_like(moved), (64 - amount).clamp(max=63)) - 1
        moved = torch.where(amount == 0, moved, moved & kept)
    filled = torch.where(wide(x) < 0, -1, 0) if x.dtype.is_signed else torch.zeros_like(moved)
    return torch.where(outside, filled.to(moved.dtype), moved).to(x.dtype)


def _compared(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(wide(a), wide(b))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Greater": _compared(torch.gt), "GreaterOrEqual": _compared(torch.ge), "Less": _compared(torch.lt),
    "LessOrEqual": _compared(torch.le), "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor,
}  # fmt: skip


@operator(*_COMPARISONS)
def comparison(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Truth values of two operands."""
    result: Tensor = _COMPARISONS[call.op](a, b)
    return result


@operator("Equal")
def equal(call: Call, a: Any, b: Any) -> Tensor:
    """Where two operands are equal; strings too."""
    if isinstance(a, Tensor):
        return torch.eq(a, b)
    return torch.from_numpy((a == b).astype(bool))


@operator("IsNaN")
def is_nan(call: Call, x: Tensor) -> Tensor:
    """Where an element is NaN."""
    return torch.isnan(wide(x))


@operator("IsInf")
def is_inf(call: Call, x: Tensor) -> Tensor:
    """Where an element is infinite, of the signs that the attributes ask for."""
    positive, negative = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    x = wide(x)
    if positive and negative:
        return torch.isinf(x)
    if positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if negative else torch.zeros_like(x, dtype=torch.bool)
