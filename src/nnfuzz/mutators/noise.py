"""White noise, the classic of TensorFuzz (Odena & Goodfellow 2018), at many strengths and densities."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Noise(Mutator):
    """Adds normal noise to every element; the strength is drawn per group, 0.5 % to 50 % of the range."""

    name = "noise"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.is_real]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            noise = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng)
            strength = ctx.log_uniform(0.005, 0.5)
            if spec.scalar_range is not None:
                x.add_(noise, alpha=strength * spec.width.item())
            else:
                x.addcmul_(noise, (strength * spec.width).to(x.dtype).to(x.device).expand_as(x[0]))


@register
class SparseNoise(Mutator):
    """Noise on a random share of the elements (2 % to 50 %), the rest as in the parent."""

    name = "sparse-noise"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.is_real]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            density, strength = ctx.log_uniform(0.02, 0.5), ctx.log_uniform(0.02, 1.0)
            noise = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng)
            gate = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng) < _normal_quantile(density)
            step = (strength * spec.width).to(x.dtype).to(x.device)
            x.add_(torch.where(gate, noise, 0) * step)


def _normal_quantile(p: float) -> float:
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
