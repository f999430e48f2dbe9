"""Rounding to a grid of integers, and gradients through it.

In an integer tensor no gradient flows, and a quantized network holds its activations in them. Where autograd records,
quantized values are therefore **carried by floats**: a tensor of float32 (float64 for 32-bit accumulators) that holds
exactly the integers that the integer tensor would. Whoever reads a quantized value takes either. Without autograd
there are honest integers, and both ways give the same numbers.

The gradient is the straight-through estimate: rounding counts as the identity, saturation as the clamp that it is (no
gradient from beyond the ends of the grid). Source: Bengio, Léonard & Courville, arXiv 1308.3432.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nnfuzz.onnx.dtypes import SMALL, onnx_code, torch_dtype
from nnfuzz.onnx.ops.narrow import FLOAT8, round_to_float4, round_to_float8, wide

UINT8, INT8, INT32, FLOAT4E2M1 = 2, 3, 6, 23
"""Codes of ``onnx.TensorProto.DataType``."""


@dataclass(frozen=True)
class Grid:
    """The numbers that a quantized type can hold.

    Attributes:
        code: ONNX element type.
        saturate: of eight-bit floats, whether numbers beyond the largest become the largest (else NaN or infinity).
    """

    code: int
    saturate: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that holds its values."""
        return torch_dtype(self.code)

    @property
    def fractional(self) -> bool:
        """Whether it is a small float instead of integers."""
        return self.code == FLOAT4E2M1 or self.dtype in FLOAT8

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest finite value."""
        if self.code == FLOAT4E2M1:
            return -6.0, 6.0
        if self.fractional:
            largest = torch.finfo(self.dtype).max
            return -largest, largest
        if self.code in SMALL:
            return SMALL[self.code]
        info = torch.iinfo(self.dtype)
        return info.min, info.max


def grid_of(zero_point: torch.Tensor | None, default: int = UINT8) -> Grid:
    """The grid of a tensor's quantized values by the dtype of its zero point, for types of 8 bits and more."""
    return Grid(default if zero_point is None else onnx_code(zero_point.dtype))


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types, which cannot hold the integers of a grid exactly; others unchanged."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def snap(u: torch.Tensor, grid: Grid, zero_point: torch.Tensor | None = None) -> torch.Tensor:
    """``saturate(round_half_even(u) + zero_point)``, with a straight-through gradient where autograd records.

    Args:
        u: values in steps of the grid, float32 or float64.
        grid: what to round to.
        zero_point: broadcasts to ``u``; None for 0. Small floats have none but 0.

    Returns:
        The grid's dtype; where ``u`` requires grad, the dtype of ``u``. NaN becomes the smallest integer, as in ONNX
        Runtime's vector code (ONNX leaves it open).
    """
    recorded = torch.is_grad_enabled() and u.requires_grad
    low, high = grid.ends
    if grid.fractional:
        held = u.detach()
        exact = round_to_float4(held) if grid.code == FLOAT4E2M1 else round_to_float8(held, grid.dtype, grid.saturate)
        if not recorded:
            return exact.to(grid.dtype)
        inside = u.clamp(low, high)
        # Where the two are equal in all but rounding, this sum is exact; where they are not (NaN, infinity) it is
        # not needed to be.
        return torch.where(exact.isfinite(), inside + (exact - inside).detach(), exact)
    zero = torch.zeros((), dtype=u.dtype, device=u.device) if zero_point is None else wide(zero_point).to(u.dtype)
    inside = torch.fmax(u, low - zero).clamp(max=high - zero)  # fmax and not clamp: for NaN, see above
    if recorded:
        # Exact: two numbers within half a step of each other differ by a number of the same precision (Sterbenz).
        return inside + (torch.round(inside) - inside).detach() + zero
    return (torch.round(inside) + zero).to(grid.dtype)


def centred(x: torch.Tensor, zero_point: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """``x - zero_point`` as floats of ``dtype``; ``x`` in integers or carried by floats. Exact before conversion."""
    x = wide(x)
    if zero_point is None:
        return x.to(dtype)
    exact = x.dtype if x.dtype.is_floating_point else torch.int32
    return (x.to(exact) - wide(zero_point).to(exact)).to(dtype)


def as_int32(accumulator: torch.Tensor, carried: bool) -> torch.Tensor:
    """Integers in float64 as int32, wrapping as 32-bit sums do; as they are where floats carry them."""
    return accumulator if carried else accumulator.round().to(torch.int64).to(torch.int32)


def spread(parameter: torch.Tensor, shape: Sequence[int], axis: int, block: int = 0) -> torch.Tensor:
    """A scale or zero point in the form that broadcasts to ``shape``.

    One number for all; one for each index of ``axis``, a vector; one for each ``block`` of indices of ``axis``, an
    array that is shorter along ``axis`` only.
    """
    if parameter.numel() == 1 and not block:
        return parameter.reshape(())
    axis = axis % len(shape)
    if block:
        return parameter.repeat_interleave(block, dim=axis).narrow(axis, 0, shape[axis])
    return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])
