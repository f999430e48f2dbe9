"""Zero or constant parts, the commonest trigger in public reports: silence, empty masks, blank rows, saturation."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import special
from nnfuzz.mutators.ranges import cast
from nnfuzz.mutators.regions import fit, region
from nnfuzz.space import Batch, InputSpec


@register
class Constant(Mutator):
    """Writes one value into a region of every chosen input.

    Most groups use the *same* region in all inputs that can share it (a Dice score is 0/0 only when prediction
    and label are empty together). Two in five write zeros everywhere, the rest one special value a row.
    """

    name = "constant"
    keeps_finite = True

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        together, zeros = ctx.rng.random() < 0.6, ctx.rng.random() < 0.4
        shared: Tensor | None = None
        for spec in specs:
            x = batch[spec.name]
            where = fit(shared, x) if together and shared is not None else None
            if where is None:
                where = shared = region(ctx, x)
            if zeros:
                batch[spec.name] = x.masked_fill(where, 0)
            else:
                batch[spec.name] = torch.where(where, cast(special(ctx, spec, x), spec), x)
