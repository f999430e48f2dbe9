"""Where a structured mutation acts: a bool mask that broadcasts against the batch, drawn row by row.

Bugs in published code sit on whole rows, columns, runs of silence, padding, one element, a causal triangle; a region
is one such part, and what is written there is the mutator's business.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context
from nnfuzz.mutators.draw import column, density, gate, index, uniform


def region(ctx: Context, x: Tensor) -> Tensor:
    """A random part of each row of ``x`` (rows, *shape): bool, broadcastable to ``x``, one kind of part a group."""
    axes = long_axes(x)
    if not axes:
        return everything(ctx, x, 0)
    part = PARTS[int(ctx.rng.choice(len(PARTS), p=ODDS))]
    return part(ctx, x, axes[int(ctx.rng.integers(len(axes)))])


def long_axes(x: Tensor) -> list[int]:
    """Axes of a candidate with more than one element."""
    return [a for a in range(1, x.dim()) if x.shape[a] > 1]


def fit(mask: Tensor, x: Tensor) -> Tensor | None:
    """A mask drawn for another input, for ``x``: same shape, everything, or the same slices of the leading axis."""
    if mask.numel() == len(mask):
        return column(mask.reshape(-1), x)
    if mask.dim() == x.dim() and all(m in (1, n) for m, n in zip(mask.shape[1:], x.shape[1:], strict=True)):
        return mask
    if x.dim() > 1 and mask.shape[1] == x.shape[1] and mask.numel() == mask.shape[0] * mask.shape[1]:
        return mask.reshape(len(mask), -1, *[1] * (x.dim() - 2))
    return None


def along(mask: Tensor, x: Tensor, axis: int) -> Tensor:
    """(rows or 1, n) → (rows or 1, 1, …, n, …, 1) with n at ``axis`` of ``x``."""
    shape = [1] * x.dim()
    shape[0], shape[axis] = mask.shape
    return mask.view(shape)


def positions(x: Tensor, axis: int) -> Tensor:
    """(1, n): 0 … n−1 for the length of that axis."""
    return torch.arange(x.shape[axis], device=x.device)[None]


def everything(ctx: Context, x: Tensor, axis: int) -> Tensor:
    return column(torch.ones(len(x), dtype=torch.bool, device=x.device), x)


def one_slice(ctx: Context, x: Tensor, axis: int) -> Tensor:
    return along(positions(x, axis) == index(ctx, x, x.shape[axis])[:, None], x, axis)


def some_slices(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """Each slice along the axis with a probability of its row."""
    draws = torch.rand(len(x), x.shape[axis], generator=ctx.generator, device=x.device)
    share = uniform(ctx, draws)
    # Never none: the slice with the smallest draw is always in.
    return along((draws < share) | (draws == draws.amin(1, keepdim=True)), x, axis)


def run(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """A contiguous run along the axis: silence, padding on either side, a cropped end."""
    n = x.shape[axis]
    start, length = index(ctx, x, n)[:, None], index(ctx, x, n)[:, None] + 1
    place = positions(x, axis)
    side = int(ctx.rng.integers(4))
    if side == 0:
        return along(place < length, x, axis)
    if side == 1:
        return along(place >= n - length, x, axis)
    return along((place >= start) & (place < start + length), x, axis)


def stripes(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """Every second to eighth slice: the highest frequencies, which resampling and pooling disagree about."""
    period = index(ctx, x, 7)[:, None] + 2
    return along(positions(x, axis) % period == index(ctx, x, 8)[:, None] % period, x, axis)


def box(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """A rectangle over the last two axes of more than one element."""
    mask = everything(ctx, x, axis)
    for a in long_axes(x)[-2:]:
        mask = mask & run(ctx, x, a)
    return mask


def triangle(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """Above or below a diagonal of the last two axes: causal masks, triangular matrices."""
    if x.dim() < 3:
        return run(ctx, x, axis)
    height, width = x.shape[-2], x.shape[-1]
    offset = int(ctx.rng.integers(-1, 2))
    ones = torch.ones(height, width, dtype=torch.bool, device=x.device)
    half = ones.triu(offset) if ctx.rng.random() < 0.5 else ones.tril(offset)
    return half.view(*[1] * (x.dim() - 2), height, width)


def one_element(ctx: Context, x: Tensor, axis: int) -> Tensor:
    mask = torch.zeros(len(x), x[0].numel(), dtype=torch.bool, device=x.device)
    if mask.numel():
        mask.scatter_(1, index(ctx, x, x[0].numel())[:, None], True)
    return mask.view(x.shape)


def some_elements(ctx: Context, x: Tensor, axis: int) -> Tensor:
    return gate(ctx, x, density(ctx, x))


PARTS: tuple[Callable[[Context, Tensor, int], Tensor], ...] = (
    everything,
    one_slice,
    some_slices,
    run,
    some_elements,
    one_element,
    stripes,
    box,
    triangle,
)
ODDS = (0.26, 0.2, 0.1, 0.1, 0.08, 0.1, 0.05, 0.06, 0.05)
