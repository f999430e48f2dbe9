"""Momentum: what led from the seed to this parent may lead further."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, log_uniform, peak, weight
from nnfuzz.mutators.ranges import reals, step
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Toward(Mutator):
    """parent + t·(parent − ancestor), t drawn per row: 0.02 to 8 forward, or a small step back.

    Half the groups take the step on random elements only. Where the parent is the ancestor itself there is no
    direction yet: those rows get a sign step instead.
    """

    name = "toward"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return reals(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x, seed = batch[spec.name], ctx.anchors.values[spec.name]
            t = torch.where(coin(ctx, x, 0.25), -log_uniform(ctx, x, 0.02, 0.9), log_uniform(ctx, x, 0.02, 8.0))
            direction = x - seed if x.shape == seed.shape else torch.zeros_like(x)
            still = column(peak(direction) == 0, x)
            if bool(still.any()):
                kick = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng).sign()
                x.addcmul_(kick, torch.where(still, step(spec, x, t.abs() * 0.1), 0))
            if ctx.rng.random() < 0.5:
                direction.mul_(weight(ctx, x, 0.5))
            x.addcmul_(direction, t.to(x.dtype))
