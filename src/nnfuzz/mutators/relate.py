"""One input made from another: equal, opposite, complementary, proportional, orthogonal, swapped.

A loss at a perfect prediction, the similarity of anti-correlated images, an interval whose ends are swapped: the
trigger is the relation between two inputs, which independent noise meets with probability zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, index, log_uniform
from nnfuzz.mutators.ranges import cast, ends, largest_finite, wide
from nnfuzz.mutators.regions import region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Relate(Mutator):
    """Sets an input, or a region of it, to a simple function of another input whose shape can be made to fit."""

    name = "relate"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if partners(space, s)]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        if not specs:
            return
        spec = specs[int(ctx.rng.integers(len(specs)))]
        others = partners(ctx.space, spec)
        other = others[int(ctx.rng.integers(len(others)))]
        x, source = batch[spec.name], match(batch[other.name], batch[spec.name], ctx)
        if source is None or not x.numel():
            return
        if x.shape == batch[other.name].shape and other in specs and ctx.rng.random() < 0.1:
            batch[spec.name], batch[other.name] = cast(wide(source), spec), cast(wide(x), other)
            return
        relation = RELATIONS[int(ctx.rng.choice(len(RELATIONS), p=ODDS))]
        value = cast(relation(source, x, spec, ctx), spec)
        whole = ctx.rng.random() < 0.6
        batch[spec.name] = value.clone() if whole and value.shape == x.shape else torch.where(region(ctx, x), value, x)


def partners(space: InputSpace, spec: InputSpec) -> list[InputSpec]:
    """Other inputs, fixed ones too, whose shape can be made to fit."""
    return [o for o in space if o.name != spec.name and fits(o, spec)]


def fits(source: InputSpec, target: InputSpec) -> bool:
    s, t = source.shape, target.shape
    return (
        len(s) == len(t)
        or t[: len(s)] == s
        or t[len(t) - len(s) :] == s
        or s[len(s) - len(t) :] == t
        or _count(s) == _count(t)
    )


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def match(source: Tensor, x: Tensor, ctx: Context) -> Tensor | None:
    """``source`` brought to a shape that broadcasts against ``x`` (rows, *shape): float, or None where nothing fits.

    Same shape as it is; labels next to scores become one-hot; equal counts are reshaped; a leading or trailing
    part is broadcast; more leading axes: one of them is taken; equal rank: repeated or cut along each axis.
    """
    s, t = source.shape[1:], x.shape[1:]
    if s == t:
        return wide(source)
    if 0 in s or 0 in t:
        return None
    if t[:-1] == s and not source.is_floating_point() and t[-1] > 1:
        labels = source.long().clamp(0, t[-1] - 1)[..., None]
        return torch.zeros(x.shape, dtype=torch.float64, device=x.device).scatter_(-1, labels, 1.0)
    if s.numel() == t.numel():
        return wide(source).reshape(x.shape)
    if len(s) < len(t) and t[len(t) - len(s) :] == s:
        return wide(source).reshape(-1, *[1] * (len(t) - len(s)), *s)
    if len(s) < len(t) and t[: len(s)] == s:
        return wide(source).reshape(-1, *s, *[1] * (len(t) - len(s)))
    if len(s) > len(t) and s[len(s) - len(t) :] == t:
        flat = wide(source).reshape(len(x), -1, *t)
        return flat.take_along_dim(column(index(ctx, x, flat.shape[1]), flat), 1)[:, 0]
    if len(s) == len(t):
        out = wide(source)
        for axis, n in enumerate(t, start=1):
            out = out.index_select(axis, torch.arange(n, device=x.device) % out.shape[axis])
        return out
    return None


def same(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    return source


def nearly_same(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    """Equal but for a relative difference of 1e−8 to 1e−2: what is left after subtracting is rounding."""
    noise = ctx.pool.normal(tuple(source.shape), source.dtype, ctx.rng)
    return source + source * noise * log_uniform(ctx, source, 1e-8, 1e-2).to(source.dtype)


def opposite(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    return -source


def complement(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    low, high = (t.to(source.dtype) for t in ends(spec, x))
    return low + high - source


def proportional(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    """A multiple between 1e−4 and 1e4, of either sign; half the rows a power of ten."""
    k = log_uniform(ctx, source, 1e-4, 1e4)
    k = torch.where(coin(ctx, source, 0.5), 10 ** k.log10().round(), k)
    return source * torch.where(coin(ctx, source, 0.5), k, -k).to(source.dtype)


def offset(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    """The other input plus one number: a constant difference, variance zero."""
    low, high = ends(spec, x)
    span = (high.double() - low.double()).clamp(max=largest_finite(source.dtype))
    return source + (log_uniform(ctx, source, 1e-6, 1.0) * span.to(source.device)).to(source.dtype)


def orthogonal(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    """What is left of the input itself without its part along the other: a cosine of (nearly) zero."""
    if source.dim() < 2:
        return -source
    own = wide(x).to(source.dtype)
    square = (source * source).sum(-1, keepdim=True)
    return own - source * ((own * source).sum(-1, keepdim=True) / square.clamp(min=torch.finfo(source.dtype).tiny))


def reordered(source: Tensor, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
    """The same values elsewhere: reversed or rolled along the last axis."""
    if source.dim() < 2 or source.shape[-1] < 2:
        return source
    return source.flip(-1) if ctx.rng.random() < 0.5 else source.roll(int(ctx.rng.integers(1, source.shape[-1])), -1)


RELATIONS: tuple[Callable[[Tensor, Tensor, InputSpec, Context], Tensor], ...] = (
    same,
    complement,
    proportional,
    nearly_same,
    opposite,
    offset,
    orthogonal,
    reordered,
)
ODDS = (0.3, 0.16, 0.16, 0.12, 0.12, 0.06, 0.04, 0.04)
