"""A corpus entry at rest: what the store keeps of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnfuzz.space import Batch


class Record(NamedTuple):
    """One corpus entry.

    Attributes:
        id: 0, 1, 2, … in order of admission; seeds first.
        parent: id of the entry it was mutated from, None for a seed.
        seed_index: which of the given seeds it descends from (TensorFuzz's oldest ancestor).
        batch: number of the batch it came from; 0 for seeds.
        inputs_tried: candidates that had been run when it was admitted.
        mutator: name of the mutator that made it, "seed" for a seed.
        score: the objective's score, NaN when it gives none.
        inputs: one candidate on the CPU, without a batch axis.
        vector: float32 coverage vector, shape ``(d,)``; empty without coverage.
    """

    id: int
    parent: int | None
    seed_index: int
    batch: int
    inputs_tried: int
    mutator: str
    score: float
    inputs: Batch
    vector: NDArray[np.float32]
