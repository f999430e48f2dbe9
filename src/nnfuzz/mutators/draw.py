"""Cheap random choices for a whole group: one number a row, or a gate over all elements from the pool."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context
from nnfuzz.mutators.pool import POOL_NUMBERS
from nnfuzz.mutators.ranges import largest, largest_finite, signs, smallest_positive, specials
from nnfuzz.space import InputSpec

MANY = 256
"""An input of more elements than this is *large*: rows full of subnormal numbers would then stall whole batches, since
processors compute with them up to a hundred times slower (measured: a small ResNet, 44 times)."""

SUBNORMAL_GROUPS = 1 / 64
"""The share of groups in which a large input may become subnormal all over. Single elements always may."""

BLOCK = 512
"""Rows that share a strength or a density: the large groups of large batches would else have one for thousands."""

PRODUCTS = 2.0**27
"""Smallest normal number × this: times the weights of a network, it is still a normal number."""


def blocks(x: Tensor) -> tuple[Tensor, ...]:
    """The rows of ``x`` in views small enough for the pool to serve each without copying."""
    parts: tuple[Tensor, ...] = x.split(max(1, min(BLOCK, POOL_NUMBERS // 2 // max(1, math.prod(x.shape[1:])))))
    return parts


def column(values: Tensor, x: Tensor) -> Tensor:
    """(rows,) → (rows, 1, …) as ``x`` has axes."""
    return values.view(-1, *[1] * (x.dim() - 1))


def peak(x: Tensor) -> Tensor:
    """The largest magnitude of each row: (rows, …) → (rows,); 0 for rows without elements."""
    if x.dim() == 1:
        return x.abs()
    return x.abs().flatten(1).amax(1) if x.numel() else x.new_zeros(len(x))


def uniform(ctx: Context, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """One number a row, uniform in [low, high): float32 ``(rows, 1, …)``."""
    drawn = column(torch.rand(len(x), generator=ctx.generator, device=x.device), x)
    return drawn if (low, high) == (0.0, 1.0) else drawn.mul_(high - low).add_(low)


def log_uniform(ctx: Context, x: Tensor, low: float, high: float) -> Tensor:
    """One number a row, evenly over orders of magnitude: float64 ``(rows, 1, …)``, since 1e−320 is a magnitude too."""
    return uniform(ctx, x).double().mul_(math.log(high) - math.log(low)).add_(math.log(low)).exp_()


def coin(ctx: Context, x: Tensor, p: float) -> Tensor:
    """One bool a row, True with probability p: ``(rows, 1, …)``."""
    return uniform(ctx, x) < p


def index(ctx: Context, x: Tensor, n: int) -> Tensor:
    """One index a row, in [0, n): int64 ``(rows,)``."""
    return torch.randint(n, (len(x),), generator=ctx.generator, device=x.device)


def gate(ctx: Context, x: Tensor, density: Tensor | float) -> Tensor:
    """Bool of the shape of ``x``, each element True with probability ``density`` (a number, or one a row)."""
    return ctx.pool.uniform(tuple(x.shape), torch.float32, ctx.rng) < density


def weight(ctx: Context, x: Tensor, density: Tensor | float) -> Tensor:
    """The same gate as numbers, 0 or 1 in the dtype of ``x``: multiplying is many times faster than ``where``, whose
    loop waits for the branch at every element of a random mask."""
    draw = ctx.pool.uniform(tuple(x.shape), torch.float32, ctx.rng)
    closed = 1 - torch.as_tensor(density, dtype=torch.float32, device=x.device)
    # trunc(u / closed) is at least 1 with probability 1 − closed = density.
    return (draw * closed.clamp_(min=1e-30).reciprocal_()).trunc_().clamp_(max=1).to(x.dtype)


def blend(x: Tensor, y: Tensor, weights: Tensor, spec: InputSpec) -> Tensor:
    """``y`` where the weight is 1 and ``x`` where it is 0, in place in ``x`` if that is safe. ``y`` must be finite."""
    if x.dtype in (torch.float32, torch.float64) and 2 * largest(spec) < largest_finite(x.dtype):
        return x.lerp_(y, weights)  # exact at both ends as long as y − x does not overflow
    return torch.where(weights > 0.5, y, x)


def density(ctx: Context, x: Tensor, low: float = 0.02, high: float = 1.0) -> Tensor:
    """One density a row, float32 ``(rows, 1, …)``; never so low that a row of few elements would hardly ever change."""
    low = min(high, max(low, 1 / max(1, x[0].numel())))
    return log_uniform(ctx, x, low, high).float()


def group_density(ctx: Context, x: Tensor) -> float:
    """One density for the whole group, 1/64 to 1, one time in twelve 1; never so low that a row of few elements would
    hardly ever change."""
    return min(1.0, ctx.log_uniform(min(1.0, max(1 / 64, 1 / max(1, x[0].numel()))), math.sqrt(2)))


def special(ctx: Context, spec: InputSpec, x: Tensor) -> Tensor:
    """One special or random legal value a row, float64 ``(rows, 1, …)``.

    A third each: a special value (half of these are zero where it is legal), a magnitude drawn evenly over the
    orders from the smallest subnormal to the range's end, a number uniform in the range.
    """
    table = specials(spec).to(x.device)
    value = table[index(ctx, x, len(table))]
    zero = 0.0 if float(table[0]) <= 0 <= float(table[-1]) else float(table[0])
    low = bottom(ctx, spec, x)
    if low > smallest_positive(spec.dtype):
        value = torch.where(value.abs() < low, zero, value)
    value = column(torch.where(coin(ctx, value, 0.5), zero, value), x)
    if spec.dtype == torch.bool or largest(spec) <= smallest_positive(spec.dtype):
        return value
    flat = table[0] + (table[-1] - table[0]).clamp(max=1e308) * uniform(ctx, x).double()
    which = uniform(ctx, x)
    return torch.where(which < 1 / 3, value, torch.where(which < 2 / 3, magnitude(ctx, spec, x, low), flat))


def magnitude(ctx: Context, spec: InputSpec, x: Tensor, low: float | None = None) -> Tensor:
    """One signed number a row, evenly over the orders of magnitude that the range holds: float64 ``(rows, 1, …)``."""
    top = max(largest(spec), smallest_positive(spec.dtype))
    return log_uniform(ctx, x, min(top, low or bottom(ctx, spec, x)), top) * sign(ctx, spec, x)


def bottom(ctx: Context, spec: InputSpec, x: Tensor) -> float:
    """The smallest magnitude for whole rows of this group: the smallest subnormal where the input is small or seldom,
    else one that keeps products with weights normal (half precision is computed in single, where all is normal)."""
    least = smallest_positive(spec.dtype)
    if not spec.dtype.is_floating_point or spec.dtype == torch.float16 or not len(x) or x[0].numel() <= MANY:
        return least
    normal = torch.finfo(spec.dtype).tiny * PRODUCTS
    return least if largest(spec) < normal * 1e3 or ctx.rng.random() < SUBNORMAL_GROUPS else normal


def sign(ctx: Context, spec: InputSpec, x: Tensor) -> Tensor | float:
    """±1 a row where the range has both signs, else the sign it has."""
    negative, positive = signs(spec)
    if negative and positive:
        return torch.where(coin(ctx, x, 0.5), 1.0, -1.0)
    return -1.0 if negative else 1.0
