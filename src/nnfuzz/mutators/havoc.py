"""Several mutations at once: a bug that needs two inputs changed together is one step away instead of two."""

from __future__ import annotations

from functools import lru_cache

from nnfuzz.mutators.base import MUTATORS, Context, Mutator, register
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Havoc(Mutator):
    """Two to four other mutators in a row on the same batch (AFL's havoc stage), each result projected."""

    name = "havoc"

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        others = usable(ctx.space)
        for _ in range(int(ctx.rng.integers(2, 5))):
            batch.update(others[int(ctx.rng.integers(len(others)))](batch, ctx))


@lru_cache(maxsize=8)
def usable(space: InputSpace) -> list[Mutator]:
    """The mutators that can change something in this space and keep shapes, in the order of their names."""
    made = [MUTATORS[n]() for n in MUTATORS if n != Havoc.name]
    return [m for m in made if not m.reshapes and m.targets(space)]
