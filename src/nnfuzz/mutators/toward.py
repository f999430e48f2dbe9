"""Momentum: what led from the seed to this parent may lead further."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, gate, log_uniform
from nnfuzz.mutators.ranges import reals, step
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Toward(Mutator):
    """parent + t·(parent − ancestor), t drawn per row: 0.02 to 8 forward, or a small step back.

    Half the groups take the step on random elements only. Where the parent is the ancestor itself there is no
    direction yet: those rows get a sign step instead.
    """

    name = "toward"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return reals(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x, seed = batch[spec.name], ctx.anchors.values[spec.name]
            t = torch.where(coin(ctx, x, 0.25), -log_uniform(ctx, x, 0.02, 0.9), log_uniform(ctx, x, 0.02, 8.0))
            direction = x - seed if x.shape == seed.shape else torch.zeros_like(x)
            if ctx.rng.random() < 0.5:
                direction = torch.where(gate(ctx, x, 0.5), direction, 0)
            # Two ranges' worth apart is the most two legal numbers of a dtype can be: inf · t stays inf, never NaN.
            still = (direction == 0).flatten(1).all(1).view_as(t) if x.dim() > 1 else direction == 0
            if bool(still.any()):
                kick = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng).sign() * step(spec, x, t.abs() * 0.1)
                x = torch.where(still, x + kick, x)
            batch[spec.name] = x + direction * t.to(x.dtype)
