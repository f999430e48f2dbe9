"""The ends of the range: very large boundary values find most of what plain noise misses."""

from __future__ import annotations

import torch

from nnfuzz.kinds import KINDS
from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, group_density, index
from nnfuzz.mutators.ranges import cast, ends, largest_finite
from nnfuzz.mutators.regions import region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Extremes(Mutator):
    """Sets a region to the low end, the high end, zero or the middle; or every element there to low or high at random.

    In an eps-ball the projection turns these into the ball's own ends.
    """

    name = "extremes"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind in ("real", "integer", "boxes") and s.dtype != torch.bool]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            low, high = ends(spec, x)
            if x.is_floating_point() and ctx.rng.random() < 0.4:
                # Random elements far beyond either end: the projection brings them back to it.
                far = ctx.pool.signs(tuple(x.shape), x.dtype, ctx.rng, group_density(ctx, x))
                x.add_(far, alpha=largest_finite(x.dtype)).add_(far, alpha=largest_finite(x.dtype))
                continue
            where = region(ctx, x)
            if ctx.rng.random() < 0.2:
                up = ctx.pool.normal(tuple(x.shape), torch.float32, ctx.rng) > 0
                value = torch.where(up, high, low)
            else:
                middle = spec.middle.to(x.device) if not KINDS[spec.kind].discrete else cast(spec.middle, spec)
                which = column(index(ctx, x, 8), x)
                value = torch.where(which < 3, low, torch.where(which < 6, high, torch.where(which < 7, 0, middle)))
                # Some rows take one end on the region and the other elsewhere: the largest possible contrast.
                contrast = coin(ctx, x, 0.15)
                x = torch.where(contrast & ~where, torch.where(which < 3, high, low), x)
            batch[spec.name] = torch.where(where, value.to(x.dtype), x)
