"""White noise, the classic of TensorFuzz (Odena & Goodfellow 2018), at many strengths, densities and scales."""

from __future__ import annotations

import math

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import blend, blocks, bottom, density, group_density, log_uniform, weight
from nnfuzz.mutators.ranges import (
    largest,
    largest_finite,
    plain,
    reach_number,
    reals,
    signs,
    step,
)
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Noise(Mutator):
    """Adds normal noise to every element; the strength is drawn per block, 0.5 % to 50 % of the range."""

    name = "noise"
    keeps_finite = True
    cheap = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return reals(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            for x in blocks(batch[spec.name]):
                noise = ctx.pool.normal(tuple(x.shape), x.dtype, ctx.rng)
                strength = ctx.log_uniform(0.005, 0.5)
                unit = reach_number(spec)
                if unit is not None:
                    x.add_(noise, alpha=min(strength * unit, largest_finite(x.dtype)))
                else:
                    x.addcmul_(noise, step(spec, x, strength))


@register
class SparseNoise(Mutator):
    """Noise on a random share of the elements, many small and a few large steps, the rest as in the parent.

    Density (1/64 to all) is drawn per block, strength (2 % to 100 % of the range) row by row: for float/half pairs
    this spread found disagreements on every MNIST seed tried, where one fixed strength did not.
    """

    name = "sparse-noise"
    keeps_finite = True
    cheap = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return reals(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            for x in blocks(batch[spec.name]):
                noise, unit = ctx.pool.sparse(tuple(x.shape), x.dtype, ctx.rng, group_density(ctx, x))
                x.addcmul_(noise, step(spec, x, log_uniform(ctx, x, 0.02, 1.0).div_(unit)))


@register
class SignNoise(Mutator):
    """Moves each chosen element up or down by the same step, 1 % to 100 % of the range; the density is drawn per block.

    L∞ searches live on the corners of the ball: a step of the full diameter of the eps-ball lands on one.
    """

    name = "sign-noise"
    keeps_finite = True
    cheap = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return reals(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            for x in blocks(batch[spec.name]):
                signs_of = ctx.pool.signs(tuple(x.shape), x.dtype, ctx.rng, group_density(ctx, x))
                x.addcmul_(signs_of, step(spec, x, log_uniform(ctx, x, 0.01, 1.0)))


@register
class LogNoise(Mutator):
    """Steps in orders of magnitude: multiplies elements by 10^(σ·normal), or replaces them by ±10^uniform.

    The uniform exponent spans the dtype's smallest subnormal to the range's end, so that underflow, overflow and
    cancellation are as likely as the ordinary middle, which linear noise hardly ever leaves.
    """

    name = "log-noise"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return plain(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            # float32 holds every exponent of float16, bfloat16 and float32; only float64 needs its own.
            kind = torch.float64 if x.dtype == torch.float64 else torch.float32
            where = weight(ctx, x, density(ctx, x))
            if ctx.rng.random() < 0.5:
                noise = ctx.pool.normal(tuple(x.shape), kind, ctx.rng)
                factor = torch.exp2(noise * ctx.log_uniform(0.05, 16.0)).clamp_(max=largest_finite(x.dtype))
                limit = largest(spec)
                batch[spec.name] = blend(x, factor.mul_(x).clamp_(-limit, limit).to(x.dtype), where, spec)
                continue
            least, top = math.log2(bottom(ctx, spec, x)), math.log2(max(largest(spec), 1e-300))
            exponent = ctx.pool.uniform(tuple(x.shape), kind, ctx.rng)
            value = torch.exp2(exponent * (top - least) + least)
            negative, positive = signs(spec)
            if negative and positive:
                value.copysign_(ctx.pool.normal(tuple(x.shape), kind, ctx.rng))
            elif negative:
                value.neg_()
            batch[spec.name] = blend(x, value.clamp_(-largest(spec), largest(spec)).to(x.dtype), where, spec)
