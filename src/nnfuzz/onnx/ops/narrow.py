"""Element types that torch holds but hardly computes with: floats of 8 bits, unsigned integers of 16 bits and more.

``moved`` is for operators that only move data, ``wide`` for those that compute. Rounding to small floats is here too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

FLOAT8 = {
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
}
_MOVED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64} | dict.fromkeys(
    FLOAT8, torch.uint8
)
_COMPUTED_AS = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64} | dict.fromkeys(
    FLOAT8, torch.float32
)


def moved(function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """``function(*values)`` for a function that only moves elements of tensors of one dtype, whichever it is."""
    dtype = values[0].dtype
    if dtype not in _MOVED_AS:
        return function(*values)
    return function(*(value.view(_MOVED_AS[dtype]) for value in values)).view(dtype)


def wide(x: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that torch computes with; ``x`` itself if its dtype is one.

    uint64 becomes int64: values of 2⁶³ and more wrap.
    """
    return x.to(_COMPUTED_AS[x.dtype]) if x.dtype in _COMPUTED_AS else x


def round_to_float8(values: torch.Tensor, dtype: torch.dtype, saturate: bool = True) -> torch.Tensor:
    """Values rounded to what an eight-bit float can hold, half to even, in the dtype of ``values``.

    Beyond the largest finite number: that number with ``saturate``, else what the format has for overflow (±inf for
    e5m2, NaN for the others). Source: the tables of ONNX's Cast.
    """
    largest = torch.finfo(dtype).max
    inside = values.clamp(-largest, largest).to(dtype).to(values.dtype)
    if saturate:
        # The -uz formats have no infinity to saturate from.
        return inside.masked_fill(values.isinf(), torch.nan) if "uz" in str(dtype) else inside
    # What lies half a step or more beyond the largest number rounds away from it, the tie too if its mantissa is odd.
    half = _step_below_largest(dtype) / 2
    excess = values.abs() - largest
    beyond = excess > half if dtype == torch.float8_e4m3fn else excess >= half
    overflow = torch.copysign(torch.full_like(values, torch.inf), values)
    return torch.where(beyond, overflow if dtype == torch.float8_e5m2 else torch.full_like(values, torch.nan), inside)


def round_to_float4(values: torch.Tensor) -> torch.Tensor:
    """Values rounded to float4e2m1 (0, ½, 1, 1½, 2, 3, 4, 6 and their negatives), half to even, saturated."""
    magnitude = values.abs().clamp(max=6)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0)).to(values.dtype)
    return torch.copysign(torch.round(magnitude / step) * step, values)


def _step_below_largest(dtype: torch.dtype) -> float:
    """Distance from the largest finite number of an eight-bit float to the next smaller one."""
    code = torch.tensor(torch.finfo(dtype).max).to(dtype).view(torch.uint8)
    return torch.finfo(dtype).max - float((code - 1).view(dtype))
