"""Which candidates of a batch are novel: farther than a radius from all that was shown, and from each other.

Three tests, each cheaper than the next: (1) the distance to the parent's own vector, which is in the index, bounds the
nearest distance from above, so whoever is within the radius of its parent is out; (2) of the rest at most ``LOOKUPS``
a batch are looked up; (3) the survivors are taken farthest first, each dropping those within the radius of it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.coverage.index import NearestIndex

LOOKUPS = 48
"""Look-ups a batch. They bound what coverage can cost; the radius adapts to whatever share they are."""
MOST_ACCEPTED = 16
"""A batch admits at most this many by novelty, so that one strange batch cannot flood the corpus."""
WANTED_RATE = 0.04
"""The share of looked-up candidates that the adapted radius lets in: about two a batch."""
GAIN = 0.06
"""How strongly one batch moves the logarithm of the radius."""


class Novelty:
    """Keeps the index and the radius.

    Args:
        dimensions: of the vectors.
        radius: fixed when given (in the vectors' unit); otherwise set from the seeds' spread and adapted.
    """

    def __init__(self, dimensions: int, radius: float | None = None):
        self.index = NearestIndex(dimensions)
        self.fixed = radius is not None
        self.radius = radius if radius is not None else 0.0

    def start(self, seed_vectors: NDArray[np.float32]) -> None:
        """Adds the seeds; the first radius is half their median nearest distance, or left to the first batch."""
        self.index.add(seed_vectors)
        if not self.fixed and len(seed_vectors) > 1:
            some = seed_vectors[:512]
            gaps = torch.cdist(torch.from_numpy(some), torch.from_numpy(some))
            gaps.fill_diagonal_(float("inf"))
            self.radius = float(gaps.min(1).values.median()) / 2

    def select(self, vectors: Tensor, parents: Tensor, rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of ``vectors`` (batch, d) that are novel, farthest first; adapts the radius; adds nothing.

        ``parents``: (batch, d), the vectors of the entries that each row was mutated from.
        """
        apart = (vectors - parents).square().sum(1).cpu().numpy()
        outside = np.flatnonzero(apart > self.radius**2)
        if not len(outside):
            self._adapt(0, LOOKUPS)
            return np.empty(0, np.int64)
        asked = outside if len(outside) <= LOOKUPS else np.sort(rng.choice(outside, LOOKUPS, replace=False))
        queries = vectors[torch.from_numpy(asked).to(vectors.device)].cpu().numpy()
        nearest = np.sqrt(self.index.distances(queries))
        if self.radius == 0.0 and not self.fixed:
            self.radius = float(np.quantile(nearest, 1 - WANTED_RATE))
        novel = self._apart_from_each_other(queries, nearest)
        self._adapt(int((nearest > self.radius).sum()), max(len(asked), 1))
        return asked[novel[:MOST_ACCEPTED]]

    def add(self, vectors: NDArray[np.float32]) -> None:
        self.index.add(vectors)

    def _apart_from_each_other(self, queries: NDArray[np.float32], nearest: NDArray[np.float32]) -> NDArray[np.int64]:
        order = np.argsort(-nearest, kind="stable")
        chosen: list[int] = []
        gaps = ((queries[:, None] - queries[None]) ** 2).sum(-1)
        for i in order:
            if nearest[i] <= self.radius or len(chosen) >= MOST_ACCEPTED:
                break
            if all(gaps[i, j] > self.radius**2 for j in chosen):
                chosen.append(int(i))
        return np.array(chosen, np.int64)

    def _adapt(self, accepted: int, asked: int) -> None:
        """Multiplicative: log radius moves with (accepted share − wanted share), bounded a batch."""
        if self.fixed:
            return
        surplus = accepted / asked / WANTED_RATE - 1
        self.radius *= float(np.exp(GAIN * np.clip(surplus, -1.0, 8.0)))
