"""Sizes: powers of ten, a large offset under a small spread, one outlier. Half precision breaks on these."""

from __future__ import annotations

import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, index, log_uniform, magnitude, peak, uniform
from nnfuzz.mutators.ranges import largest, largest_finite, plain, smallest_positive
from nnfuzz.mutators.regions import along, long_axes, one_element, positions, region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Scale(Mutator):
    """Multiplies a region by a power of ten (1e−6 to 1e6), or brings its largest value to a magnitude drawn evenly
    over the orders that the dtype and the range hold."""

    name = "scale"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return plain(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel():
                continue
            if ctx.rng.random() < 0.4:
                factor = 10.0 ** column(index(ctx, x, 13) - 6, x).double()
            else:
                tiny = smallest_positive(x.dtype)
                factor = magnitude(ctx, spec, x).abs() / column(peak(x), x).double().clamp(min=tiny)
            factor = factor.clamp(max=largest_finite(x.dtype)).to(x.dtype)  # 0 × inf would be NaN
            x.mul_(torch.where(region(ctx, x), factor, 1))


@register
class Offset(Mutator):
    """A large common value with the parent's pattern as a small spread round it (1e−8 to 0.1 of the value).

    Variance as E[x²] − E[x]² cancels there and may come out negative. One value a candidate, or one a slice.
    """

    name = "offset"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return plain(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel():
                continue
            top = largest(spec)
            if ctx.rng.random() < 0.5:
                base = magnitude(ctx, spec, x, low=max(smallest_positive(x.dtype), 1e-4 * top))
            else:
                low, high = float(spec.low.min()), float(spec.high.max())
                base = low + min(high - low, 1e308) * uniform(ctx, x).double()
            axes = long_axes(x)
            if axes and ctx.rng.random() < 0.5:  # each slice along the first axis at its own multiple
                share = torch.rand(len(x), x.shape[axes[0]], generator=ctx.generator, device=x.device)
                base = base * along(share, x, axes[0])
            own = column(peak(x), x).double().clamp(min=smallest_positive(x.dtype))
            spread = log_uniform(ctx, x, 1e-8, 0.1) * base.abs() / own
            limit = largest_finite(x.dtype)
            x.mul_(spread.clamp(max=limit).to(x.dtype)).add_(base.clamp(-limit, limit).to(x.dtype))


@register
class Outlier(Mutator):
    """One element a row (or one in each slice of an axis) far larger than the rest, which may shrink to nothing."""

    name = "outlier"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return plain(space)

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            axes = long_axes(x)
            if axes and len(axes) > 1 and ctx.rng.random() < 0.5:
                axis = axes[int(ctx.rng.integers(len(axes)))]
                slices = [1 if a == axis else n for a, n in enumerate(x.shape)]
                place = torch.randint(x.shape[axis], slices, generator=ctx.generator, device=x.device)
                where = place == along(positions(x, axis), x, axis)
            else:
                where = one_element(ctx, x, 0)
            value = magnitude(ctx, spec, x, low=max(smallest_positive(x.dtype), 1e-3 * largest(spec)))
            shrink = torch.where(coin(ctx, x, 0.7), 1.0, torch.where(coin(ctx, x, 0.5), 0.0, 1e-3)).to(x.dtype)
            batch[spec.name] = torch.where(where, value.to(x.dtype), x * shrink)
