"""The same values in another order: sorted, reversed, rolled, permuted."""

from __future__ import annotations

import numpy as np
import torch

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.regions import long_axes
from nnfuzz.space import Batch, InputSpace, InputSpec

SORTED_AT_ONCE = 1 << 14
"""Sorting is some fifty times dearer than the rest: so many numbers of a batch are sorted, the other rows flipped."""


@register
class Order(Mutator):
    """Sorts (up or down), reverses, rolls or permutes along one axis; inputs of one group share the permutation."""

    name = "order"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if any(n > 1 for n in s.shape) or s.free]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        mode, seed = int(ctx.rng.integers(4)), int(ctx.rng.integers(1 << 31))
        for spec in specs:
            x = batch[spec.name]
            axes = long_axes(x)
            if not axes or not x.numel():
                continue
            axis = axes[seed % len(axes)]
            n = x.shape[axis]
            if mode == 0:
                x = x.flip(axis)
                few = max(1, SORTED_AT_ONCE // x[0].numel())
                x[:few] = x[:few].sort(axis, descending=bool(seed & 1)).values
            elif mode == 1:
                x = x.roll(1 + seed % (n - 1), axis)
            elif mode == 2:
                x = x.flip(axis)
            else:
                x = x.index_select(axis, torch.from_numpy(np.random.default_rng(seed).permutation(n)).to(x.device))
            batch[spec.name] = x
