"""Equal parts within one input: duplicate boxes, repeated rows, tied columns, periodic signals, mirror images."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import column, index, special
from nnfuzz.mutators.ranges import cast
from nnfuzz.mutators.regions import along, everything, long_axes, one_slice, some_slices
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Equal(Mutator):
    """Copies one slice of an input onto one, some or all others along an axis, or repeats a pattern along it.

    A copied slice may be negated or scaled on the way: proportional rows are rank-deficient, opposite ones have
    cosine −1. On boxes, equal columns are flat boxes. One-element candidates are left alone.
    """

    name = "equal"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if any(n > 1 for n in s.shape) or s.free]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            axes = long_axes(x)
            if axes and x.numel():
                axis = axes[int(ctx.rng.integers(len(axes)))]
                mode = int(ctx.rng.integers(8))
                batch[spec.name] = repeat(x, axis, ctx) if mode < 3 else self.copy(x, axis, spec, ctx)

    def copy(self, x: Tensor, axis: int, spec: InputSpec, ctx: Context) -> Tensor:
        """One slice a row onto one, some or all slices."""
        source = x.take_along_dim(column(index(ctx, x, x.shape[axis]), x), axis)
        if spec.is_real and ctx.rng.random() < 0.3:
            source = source * factor(ctx, x).to(x.dtype)
        onto = (one_slice, some_slices, everything)[int(ctx.rng.integers(3))]
        where = onto(ctx, x, axis)
        if spec.kind == "boxes" and axis == x.dim() - 1 and ctx.rng.random() < 0.7:
            # x1 onto x2 and y1 onto y2 are the copies that keep the box where it was.
            pairs = torch.tensor([[0, 1, 0, 3], [0, 1, 2, 1], [0, 1, 0, 1]], device=x.device)
            return x.take_along_dim(along(pairs[index(ctx, x, 3)], x, axis), axis)
        return torch.where(where, source, x)


def factor(ctx: Context, x: Tensor) -> Tensor:
    """−1, or a simple multiple, one a row."""
    table = torch.tensor([-1.0, -1.0, 0.5, 2.0, -2.0, 10.0, 1 + 1e-6, 1 + 1e-3], device=x.device)
    return column(table[index(ctx, x, len(table))], x)


def repeat(x: Tensor, axis: int, ctx: Context) -> Tensor:
    """The same re-indexing for the group: periodic, piecewise constant, halves equal, or a mirror image."""
    n = x.shape[axis]
    place = torch.arange(n, device=x.device)
    period = int(ctx.rng.integers(1, max(2, n // 2 + 1)))
    patterns = (place % period, place - place % max(2, period), place % -(-n // 2), torch.minimum(place, n - 1 - place))
    return x.index_select(axis, patterns[int(ctx.rng.integers(len(patterns)))])


@register
class Ties(Mutator):
    """Makes values equal by value, not by place: several maxima, or all values but the largest alike."""

    name = "ties"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        ordered = [s for s in space.mutable if s.kind in ("real", "integer", "boxes") and s.dtype != torch.bool]
        return [s for s in ordered if any(n > 1 for n in s.shape) or s.free]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel() or x.dim() < 2:
                continue
            axis = long_axes(x)[-1] if long_axes(x) else x.dim() - 1
            peak = x.amax(axis, keepdim=True) if ctx.rng.random() < 0.7 else x.amin(axis, keepdim=True)
            if ctx.rng.random() < 0.5:
                batch[spec.name] = torch.where(one_slice(ctx, x, axis), peak, x)
            else:  # everything but the peak becomes one value
                batch[spec.name] = torch.where(x == peak, x, cast(special(ctx, spec, x), spec))
