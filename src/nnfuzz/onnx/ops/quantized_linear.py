"""Matrix products of integers: exact sums, then one rounding.

Sums are made in float64, which holds every integer up to 2⁵³ exactly and for which torch has fast products.
"""

from __future__ import annotations

import torch

from nnfuzz.onnx.ops.grid import as_int32, at_least_single, centred, grid_of, snap
from nnfuzz.onnx.ops.registry import Call, operator


def carried(*values: torch.Tensor) -> bool:
    """Whether floats carry any of these quantized values."""
    return any(value.dtype.is_floating_point for value in values)


def by_row(parameter: torch.Tensor) -> torch.Tensor:
    """A scale or zero point of the left factor: a vector has one number a row. (Of the right: one a column.)"""
    return parameter[:, None] if parameter.ndim == 1 and len(parameter) > 1 else parameter


def integer_matmul(
    a: torch.Tensor, b: torch.Tensor, a_zero: torch.Tensor | None, b_zero: torch.Tensor | None
) -> torch.Tensor:
    """``(a - a_zero) @ (b - b_zero)`` in float64, exact."""
    a_zero = a_zero if a_zero is None else by_row(a_zero)
    return torch.matmul(centred(a, a_zero, torch.float64), centred(b, b_zero, torch.float64))


def requantize(accumulator: torch.Tensor, multiplier: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    """Exact sums in float64 → quantized values; in float32 like the runtime, unless the scales are float64."""
    precision = at_least_single(multiplier.dtype)
    return snap(accumulator.to(precision) * multiplier, grid_of(zero_point), zero_point)


def ratio(a_scale: torch.Tensor, b_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    """``a_scale * b_scale / y_scale`` in float32 at least."""
    precision = at_least_single(y_scale.dtype)
    return a_scale.to(precision) * b_scale.to(precision) / y_scale.to(precision)


@operator("MatMulInteger")
def matmul_integer(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    a_zero: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    """Matrix product of integers of 8 bits in int32."""
    return as_int32(integer_matmul(a, b, a_zero, b_zero), carried(a, b))


@operator("QLinearMatMul")
def qlinear_matmul(
    call: Call,
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
) -> torch.Tensor:
    """Matrix product of quantized values, quantized."""
    multiplier = ratio(by_row(a_scale), b_scale, y_scale)
    return requantize(integer_matmul(a, b, a_zero, b_zero), multiplier, y_zero)
