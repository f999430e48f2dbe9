"""Another length for one free dimension, the same in every input that has it: length 1, shorter, longer."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.kinds import KINDS
from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.space import Batch, FreeDim, InputSpace, InputSpec

GROWTH = 8
"""Without an upper bound a dimension grows to at most this multiple of its length in the first seed (at least 16)."""


@register
class Reshape(Mutator):
    """Draws a new length for one named dimension and resizes all inputs that share it by one index selection.

    Shorter: a window, a prefix or a random subset in order. Longer: repeated from the start, each element repeated,
    or random elements. All rows of the group get the same length. Not in an eps-ball, whose shape is the seed's.
    """

    name = "reshape"
    reshapes = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [] if space.has_eps else [s for s in space if names(space, s)]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        choices = sorted({n for s in specs for n in names(ctx.space, s)})
        if not choices:
            return
        name = choices[int(ctx.rng.integers(len(choices)))]
        having = [s for s in ctx.space if any(d.name == name for d in s.free)]
        old = next(batch[having[0].name].shape[a] for a in axes(having[0], name))
        lengths = candidates(bounds(ctx.space, name), old, having, name)
        if not lengths:
            return
        ends = [n for n in lengths if n <= 2 or n in (lengths[0], lengths[-1])]
        if ctx.rng.random() < 0.5:  # what fails by its length mostly fails at an end: empty, lone, a pair, the longest
            lengths = ends
        # The shortest legal length is the commonest trigger of all: a variance of one element, a mean of none.
        new = lengths[0] if ctx.rng.random() < 0.25 else lengths[int(ctx.rng.integers(len(lengths)))]
        picked = selection(old, new, ctx)
        for spec in having:
            for axis in axes(spec, name):
                batch[spec.name] = resized(batch[spec.name], axis, new, picked, spec, ctx)


def axes(spec: InputSpec, name: str) -> list[int]:
    """Axes of the *batch* that carry the named dimension."""
    return [i + 1 for i, d in enumerate(spec.dims) if isinstance(d, FreeDim) and d.name == name]


def names(space: InputSpace, spec: InputSpec) -> list[str]:
    """Free dimensions of the input whose change every input that shares them can follow.

    A range or a set of choices given element by element along the dimension holds for one length only.
    """
    return [d.name for d in spec.free if all(_elastic(s, d.name) for s in space)]


def _elastic(spec: InputSpec, name: str) -> bool:
    for axis in axes(spec, name):
        back = len(spec.shape) - (axis - 1)  # 1 for the last axis
        if any(t.dim() >= back and t.shape[-back] != 1 for t in (spec.low, spec.high)):
            return False
    return True


def bounds(space: InputSpace, name: str) -> tuple[int, int | None]:
    """The tightest bounds that the inputs state for this name."""
    dims = [d for s in space for d in s.free if d.name == name]
    highs = [d.high for d in dims if d.high is not None]
    return max(d.low for d in dims), min(highs) if highs else None


def candidates(limits: tuple[int, int | None], old: int, having: list[InputSpec], name: str) -> list[int]:
    """Lengths worth trying: both ends, 1, 2, one more, one less, half, double, the next powers of two."""
    low, high = limits
    seed = max(s.shape[a - 1] for s in having for a in axes(s, name))
    top = high if high is not None else max(16, GROWTH * seed)
    if any(KINDS[s.kind].last_axis and len(s.shape) in axes(s, name) for s in having):
        low = max(low, 1)  # no vector of length zero is one-hot, a unit vector or a distribution
    power = 1 << max(0, old - 1).bit_length()
    wanted = {low, top, 0, 1, 2, 3, old - 1, old + 1, old // 2, 2 * old, old - 2, old + 2, power, power + 1, 2 * power}
    near = {n for n in wanted if n <= 2 * max(old, 8) or n == high}
    return sorted(n for n in near if low <= n <= top and n != old)


def selection(old: int, new: int, ctx: Context) -> Tensor | None:
    """Which old index each new place takes; None when there is nothing to take from."""
    if old == 0:
        return None
    mode = int(ctx.rng.integers(3))
    if new > old:
        places = torch.arange(new)
        if mode == 0:
            return places % old
        if mode == 1:
            return places * old // new
        return torch.from_numpy(ctx.rng.integers(0, old, new))
    if mode == 0:
        return torch.arange(new)
    if mode == 1:
        return torch.arange(new) + int(ctx.rng.integers(old - new + 1))
    return torch.from_numpy(ctx.rng.permutation(old)[:new].copy()).sort().values


def resized(x: Tensor, axis: int, new: int, picked: Tensor | None, spec: InputSpec, ctx: Context) -> Tensor:
    if picked is not None:
        return x.index_select(axis, picked.to(x.device))
    shape = list(x.shape)
    shape[axis] = new
    if spec.dtype == torch.bool:
        return torch.zeros(shape, dtype=x.dtype, device=x.device)
    return torch.zeros(shape, dtype=x.dtype, device=x.device) + spec.middle.to(x.device)
