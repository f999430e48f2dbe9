"""Inputs that are normalised along the last axis: probabilities, unit vectors, boxes."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, gate, index, log_uniform, uniform
from nnfuzz.mutators.ranges import ends, wide
from nnfuzz.mutators.regions import region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Simplex(Mutator):
    """Distributions: a corner, uniform, near a corner with a tiny remainder, exact zeros, flattened or sharpened."""

    name = "simplex"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "simplex"]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            n, lead = x.shape[-1], x[..., :1]
            label = torch.randint(max(1, n), lead.shape, generator=ctx.generator, device=x.device)
            corner = torch.zeros_like(wide(x)).scatter_(-1, label, 1.0)
            mode = int(ctx.rng.integers(5))
            if mode == 0:
                value = corner
            elif mode == 1:
                value = torch.full_like(corner, 1 / n)
            elif mode == 2:
                value = corner + log_uniform(ctx, x, 1e-30, 0.1).to(corner.dtype) * wide(x)
            elif mode == 3:
                value = torch.where(gate(ctx, x, uniform(ctx, x)), 0, wide(x))
            else:
                value = wide(x).clamp(min=0).pow(log_uniform(ctx, x, 0.05, 20.0).to(corner.dtype))
            value = value / value.sum(-1, keepdim=True).clamp(min=torch.finfo(value.dtype).tiny)
            batch[spec.name] = torch.where(region(ctx, lead), value.to(x.dtype), x)


@register
class Unit(Mutator):
    """Unit vectors: ± an axis, a random direction, the negative, equal or opposite to a neighbour."""

    name = "unit"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "unit"]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            n, lead = x.shape[-1], x[..., :1]
            turn = torch.where(coin(ctx, x, 0.5), 1, -1).to(x.dtype)
            mode = int(ctx.rng.integers(4))
            if mode == 0:
                label = torch.randint(max(1, n), lead.shape, generator=ctx.generator, device=x.device)
                value = torch.zeros_like(x).scatter_(-1, label, 1) * turn
            elif mode == 1:
                value = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng)
            elif mode == 2 or x.dim() < 3:
                value = -x
            else:
                axis = 1 + int(ctx.rng.integers(x.dim() - 2))
                value = x.take_along_dim(column(index(ctx, x, x.shape[axis]), x), axis) * turn
            batch[spec.name] = torch.where(region(ctx, lead), value, x)


@register
class Boxes(Mutator):
    """Boxes x1, y1, x2, y2: flat in one or both directions, tiny, the whole range, a neighbour's, moved, touching."""

    name = "boxes"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "boxes"]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            low, high = (t.to(x.dtype) for t in ends(spec, x))
            first = torch.cat([x[..., :2], x[..., :2]], -1)
            sides = torch.tensor([False, False, True, True], device=x.device)
            mode = int(ctx.rng.integers(6))
            if mode == 0:
                axis = torch.arange(4, device=x.device) % 2
                keep = column(index(ctx, x, 3), x)  # 0: flat in x, 1: flat in y, 2: a point
                value = torch.where((axis == keep) | (keep == 2), first, x)
            elif mode == 1:
                size = log_uniform(ctx, x, 1e-8, 1e-1).to(x.dtype) * first.abs().clamp(min=1e-3)
                value = torch.where(sides, first + size.to(x.dtype), x)
            elif mode == 2:
                value = torch.where(sides, high, low).expand_as(x)
            elif mode == 3 and x.dim() > 2:
                axis_of = 1 + int(ctx.rng.integers(x.dim() - 2))
                value = x.take_along_dim(column(index(ctx, x, x.shape[axis_of]), x), axis_of)
            elif mode == 4:
                value = x + (uniform(ctx, x, -0.5, 0.5).double() * (high.double() - low.double())).to(x.dtype)
            else:  # touching: begins where it ended
                value = torch.cat([x[..., 2:], x[..., 2:] + (x[..., 2:] - x[..., :2])], -1)
            batch[spec.name] = torch.where(region(ctx, x[..., :1]), value.to(x.dtype), x)
