"""Several mutations at once: a bug that needs two inputs changed together is one step away instead of two."""

from __future__ import annotations

from nnfuzz.mutators.base import MUTATORS, Context, Mutator, register
from nnfuzz.space import Batch, InputSpec


@register
class Havoc(Mutator):
    """Two to four other mutators in a row on the same batch (AFL's havoc stage), each result projected."""

    name = "havoc"

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        usable = [n for n in MUTATORS if n != self.name and not MUTATORS[n].reshapes]
        usable = [n for n in usable if MUTATORS[n]().targets(ctx.space)]
        for _ in range(int(ctx.rng.integers(2, 5))):
            name = usable[int(ctx.rng.integers(len(usable)))]
            batch.update(MUTATORS[name]()(batch, ctx))
