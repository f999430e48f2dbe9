"""Two corpus entries mixed, as AFL's splice: each may hold half of what a bug needs."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import blend, coin, column, gate, uniform, weight
from nnfuzz.mutators.ranges import wide
from nnfuzz.mutators.regions import region
from nnfuzz.space import Batch, InputSpec


@register
class Splice(Mutator):
    """Takes elements, a region or a whole input from a partner, or a point on the line through both.

    The line reaches a quarter beyond either end; inputs that are not continuous are always mixed by mask.
    """

    name = "splice"

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        other = ctx.partners()
        mode = int(ctx.rng.integers(4))
        share, place = ctx.rng.random(), None
        for spec in specs:
            x, y = batch[spec.name], other[spec.name]
            if x.shape != y.shape:
                continue
            if mode == 0 and spec.is_real:
                place = uniform(ctx, x, -0.25, 1.25) if place is None else column(place.reshape(-1), x)
                batch[spec.name] = torch.lerp(wide(x), wide(y), place.to(wide(x).dtype)).to(x.dtype)
            elif mode == 1:
                if spec.is_real:
                    batch[spec.name] = blend(x, y, weight(ctx, x, share), spec)
                else:
                    batch[spec.name] = torch.where(gate(ctx, x, share), y, x)
            elif mode == 2:  # whole inputs: which one is drawn row by row
                batch[spec.name] = torch.where(coin(ctx, x, 0.5), y, x)
            else:
                batch[spec.name] = torch.where(region(ctx, x), y, x)
