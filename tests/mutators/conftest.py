"""``grow``: many mutants of one space by one mutator, for tests that ask what a mutator can reach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from nnfuzz.mutators import MUTATORS, Context, NoisePool
from nnfuzz.mutators.zoo import sample
from nnfuzz.space import Batch, InputSpace

Grow = Callable[..., list[Batch]]


@pytest.fixture(scope="session")
def pool() -> NoisePool:
    return NoisePool(0, numbers=1 << 16)


@pytest.fixture
def grow(pool: NoisePool) -> Grow:
    def grow(
        name: str, where: InputSpace, groups: int = 60, rows: int = 16, parents: Batch | None = None
    ) -> list[Batch]:
        """One batch of mutants per group, all from the same parents, which are their own anchors."""
        parents = sample(where, rows, seed=7) if parents is None else parents
        anchors = where.anchors({n: t.clone() for n, t in parents.items()})
        out = []
        for seed in range(groups):
            flipped = {n: t.flip(0) for n, t in parents.items()}
            generator = torch.Generator().manual_seed(seed)
            context = Context(where, np.random.default_rng(seed), generator, pool, anchors, lambda f=flipped: f)
            out.append(MUTATORS[name]()({n: t.clone() for n, t in parents.items()}, context))
        return out

    return grow
