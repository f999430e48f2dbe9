"""Which parents next: uniform, recent, or on the frontier of the objective's score."""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from nnfuzz.corpus import Bucket, Corpus
from nnfuzz.space import Signature

Rows = NDArray[np.int64]

RECENT = 0.15
"""TensorFuzz draws with p ∝ e^(t_k − t) in its own clock; here the clock is the entry's rank, and the scale is this
share of the bucket: the newest sixth gets most of the picks, whatever the size."""
FRONTIER = 16
"""Entries of best score that are kept in view over all seeds; at least one for each seed."""

MOST_DRAWN = 256
"""Different entries that one group takes from the frontier; larger groups use each several times."""


class Frontier:
    """The entries of best score for each seed, so that one easy seed does not take all the energy."""

    def __init__(self, seeds: int):
        self.per_seed = max(1, FRONTIER // max(1, seeds))
        self._best: dict[int, list[tuple[float, int]]] = {}
        self._thresholds = np.full(max(1, seeds), -np.inf)
        self._sorted: list[int] | None = None

    def offer(self, id_: int, seed_index: int, score: float) -> bool:
        """Takes the entry in when it is among the best of its seed (older wins a tie)."""
        if math.isnan(score):
            return False
        heap = self._best.setdefault(seed_index, [])
        item = (score, -id_)
        if len(heap) < self.per_seed:
            heapq.heappush(heap, item)
        elif heapq.heappushpop(heap, item) == item:
            return False
        self._sorted = None
        if seed_index >= len(self._thresholds):
            more = np.full(seed_index + 1 - len(self._thresholds), -np.inf)
            self._thresholds = np.concatenate([self._thresholds, more])
        self._thresholds[seed_index] = heap[0][0] if len(heap) >= self.per_seed else -np.inf
        return True

    def thresholds(self, seed_index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores must be above these to enter, one for each of the given seeds."""
        known = np.minimum(seed_index, len(self._thresholds) - 1)
        return np.where(seed_index < len(self._thresholds), self._thresholds[known], -np.inf)

    def ids(self) -> list[int]:
        """Entries of the frontier, oldest first."""
        if self._sorted is None:
            self._sorted = sorted(-i for heap in self._best.values() for _, i in heap)
        return self._sorted

    def draw(self, corpus: Corpus, count: int, rng: np.random.Generator) -> tuple[Signature, Rows] | None:
        """Entries of the frontier in one bucket, all equally likely."""
        ids = self.ids()
        if not ids:
            return None
        some = [corpus.place[ids[i]] for i in rng.integers(0, len(ids), min(count, MOST_DRAWN)).tolist()]
        mine = np.array([row for key, row in some if key == some[0][0]])
        return some[0][0], np.resize(mine, count)


class Schedule:
    """Draws parents for a group of mutants.

    Args:
        name: "mix" (half frontier where there are scores, the rest recent and uniform in equal parts), "uniform",
            "recency" or "frontier".
    """

    def __init__(self, corpus: Corpus, frontier: Frontier, name: str = "mix"):
        self.corpus, self.frontier, self.name = corpus, frontier, name

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Bucket, Rows]:
        """A bucket, and ``count`` rows of it (int64)."""
        how = self.name
        if how == "mix":
            how = ("frontier", "frontier", "recency", "uniform")[int(rng.integers(4))]
        if how == "frontier":
            drawn = self.frontier.draw(self.corpus, count, rng)
            if drawn is not None:
                return self.corpus.buckets[drawn[0]], drawn[1]
        bucket = self._bucket(rng)
        if how == "recency":
            age = rng.exponential(RECENT * len(bucket), count).astype(np.int64)
            return bucket, len(bucket) - 1 - np.minimum(age, len(bucket) - 1)
        return bucket, rng.integers(0, len(bucket), count)

    def _bucket(self, rng: np.random.Generator) -> Bucket:
        buckets = sorted(self.corpus.buckets.values(), key=lambda b: int(b.ids[0]))  # the same after a resume
        if len(buckets) == 1:
            return buckets[0]
        sizes = np.sqrt([len(b) for b in buckets])  # rare shapes get more than their share
        return buckets[int(rng.choice(len(buckets), p=sizes / sizes.sum()))]
