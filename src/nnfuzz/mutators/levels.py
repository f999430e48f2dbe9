"""Few distinct values: whole numbers, coarse steps, two levels. Rounding boundaries and ties live there."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, index, uniform
from nnfuzz.mutators.ranges import ends, largest_finite, plain, wide
from nnfuzz.mutators.regions import region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Levels(Mutator):
    """Rounds to whole numbers, to 2^-k, to k steps of the range, to half-way points, or to two levels."""

    name = "levels"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return plain(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            mode = int(ctx.rng.integers(4))
            low, high = ends(spec, x)
            if mode == 0:
                grid = 2.0 ** -column(index(ctx, x, 10), x)
            else:
                span = (high.double() - low.double()).clamp(min=1e-300, max=largest_finite(x.dtype))
                grid = span / (2.0 ** column(index(ctx, x, 8) + 1, x) - 1)
            grid = grid.to(wide(x).dtype).clamp_(min=torch.finfo(wide(x).dtype).tiny)
            start = 0 if mode == 0 else low.to(grid.dtype)
            if mode == 3:
                cut = low.double() + (high.double() - low.double()) * uniform(ctx, x)
                level = torch.where(x > cut, high, low)
            else:
                half = torch.where(coin(ctx, x, 0.2), 0.5, 0.0)
                level = ((((wide(x) - start) / grid).round_() + half) * grid + start).to(x.dtype)
            batch[spec.name] = level if ctx.rng.random() < 0.5 else torch.where(region(ctx, x), level, x)
