"""How far a mutator may step and which values are special, in the units of one input."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from nnfuzz.space import InputSpace, InputSpec

POWERS = tuple(10.0**k for k in (-38, -30, -20, -16, -12, -10, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 9, 12))
"""Among them the eps constants of published code: x = -1e-8 is what makes x + 1e-8 zero."""

EDGES = (0.5, 1.0, 2.0, math.pi / 2, math.pi, 2 * math.pi)
"""Ends of the domains of acos, atanh and log1p; where sin, cos and tan turn."""

EXPONENTS = (math.log(65504.0), 17.4, 18.5, 88.73, 104.0, 709.79, 746.0)
"""Where exp overflows or vanishes and sigmoid saturates, in half, single and double precision."""

WIDTHS = (127.0, 128.0, 255.0, 256.0, 2048.0, 32767.0, 65504.0, 65520.0, 2.0**24, 2.0**31)
"""Ends of int8, uint8, int16, int32 and half, and of the whole numbers that half and single hold exactly."""


def reals(space: InputSpace) -> list[InputSpec]:
    """Inputs with continuous values."""
    return [s for s in space.mutable if s.is_real]


def plain(space: InputSpace) -> list[InputSpec]:
    """Continuous inputs whose elements are free of one another (no unit vectors, no probabilities)."""
    return [s for s in reals(space) if s.kind in ("real", "boxes")]


@lru_cache(maxsize=256)
def reach(spec: InputSpec) -> Tensor:
    """The unit of a step: the width of the range, or of the eps-ball if that is narrower. float64, finite."""
    width = spec.width.double()
    if spec.eps is not None:
        width = width.clamp(max=2 * spec.eps)
    return width.clamp(max=largest_finite(spec.dtype))


@lru_cache(maxsize=256)
def reach_number(spec: InputSpec) -> float | None:
    """``reach`` as a Python number when it is the same for every element."""
    return float(reach(spec)) if reach(spec).numel() == 1 else None


def step(spec: InputSpec, x: Tensor, strength: Tensor | float) -> Tensor:
    """``strength`` × reach in the dtype of ``x``, clipped to its largest number (0 × inf would be NaN)."""
    unit = reach(spec).to(x.device)
    return (strength * unit).clamp_(max=largest_finite(x.dtype)).to(x.dtype)


def largest_finite(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 1.0
    return torch.finfo(dtype).max if dtype.is_floating_point else float(torch.iinfo(dtype).max)


def smallest_positive(dtype: torch.dtype) -> float:
    """The smallest subnormal of a floating dtype; 1 for integers."""
    if not dtype.is_floating_point:
        return 1.0
    info = torch.finfo(dtype)
    return max(info.tiny * info.eps, 5e-324)


@lru_cache(maxsize=256)
def largest(spec: InputSpec) -> float:
    """The largest magnitude that the range allows anywhere."""
    if spec.dtype == torch.bool:
        return 1.0
    ends = torch.stack([spec.low.double().abs().max(), spec.high.double().abs().max()])
    return float(ends.max().clamp(max=largest_finite(spec.dtype)))


@lru_cache(maxsize=256)
def signs(spec: InputSpec) -> tuple[bool, bool]:
    """(some element may be negative, some element may be positive)."""
    if spec.dtype == torch.bool:
        return False, True
    return bool((spec.low < 0).any()), bool((spec.high > 0).any())


@lru_cache(maxsize=256)
def specials(spec: InputSpec) -> Tensor:
    """Sorted special values within the range, float64 ``(k,)``: ends, middle, zero, powers of ten, limits of dtypes."""
    if spec.dtype == torch.bool:
        return torch.tensor([0.0, 1.0], dtype=torch.float64)
    low, high = float(spec.low.double().min()), float(spec.high.double().max())
    magnitudes = [*EDGES, *EXPONENTS, *WIDTHS, *POWERS, smallest_positive(spec.dtype)]
    if spec.dtype.is_floating_point:
        info = torch.finfo(spec.dtype)
        magnitudes += [info.tiny, info.eps, math.sqrt(info.tiny), math.sqrt(info.max), info.max]
    else:
        magnitudes = [m for m in magnitudes if m == int(m)]
    middle = low / 2 + high / 2
    values = {0.0, low, high, middle, *magnitudes, *(-m for m in magnitudes)}
    return torch.tensor(sorted(v for v in values if low <= v <= high), dtype=torch.float64)


def wide(x: Tensor) -> Tensor:
    """A floating tensor for arithmetic: float32 for narrower floats, float64 for integers and bool."""
    if x.is_floating_point():
        return x if x.dtype in (torch.float32, torch.float64) else x.float()
    return x.double()


def cast(value: Tensor, spec: InputSpec) -> Tensor:
    """Floating values in the input's dtype; for integers rounded and clipped to the dtype, lest they wrap round."""
    if spec.dtype.is_floating_point:
        return value.to(spec.dtype)
    if spec.dtype == torch.bool:
        return value > 0.5
    info = torch.iinfo(spec.dtype)
    # 2**63 − 1 has no float64: the largest float64 below it is 1024 lower.
    top = float(info.max) if info.bits < 64 else float(info.max) - 1024
    return value.nan_to_num(0.0).round().clamp(float(info.min), top).to(spec.dtype)


def ends(spec: InputSpec, x: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high) on the device of ``x``; False and True for bool."""
    if spec.dtype == torch.bool:
        return x.new_zeros(()), x.new_ones(())
    return spec.low.to(x.device), spec.high.to(x.device)
