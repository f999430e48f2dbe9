"""What stays: candidates that are novel, or better than their seed's frontier, enter the corpus."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.breed import Brood, copy_rows
from nnfuzz.corpus import SEED_MUTATOR, Admission, Corpus
from nnfuzz.coverage import Coverage, Novelty
from nnfuzz.guard import Guarded
from nnfuzz.mutators import Bandit
from nnfuzz.objectives import Verdict
from nnfuzz.schedule import Frontier
from nnfuzz.space import Batch, rows, size
from nnfuzz.stats import MutatorYield, Stats
from nnfuzz.targets import Trace

LOOKED_AT = 256
"""Candidates of a batch, drawn at random, whose coverage is looked at; more would cost more than the model. Those that
enter for their score come on top."""
MOST_BY_SCORE = 8
"""A batch admits at most this many candidates for their score alone."""


class Keeper:
    """Owns the way into the corpus.

    Args:
        coverage: None for honest random search: then nothing but the seeds is ever mutated.
        radius: fixed novelty radius, or None to adapt it.
    """

    def __init__(
        self,
        corpus: Corpus,
        frontier: Frontier,
        coverage: Coverage | None,
        radius: float | None,
        bandit: Bandit,
        stats: Stats,
        elapsed: Callable[[], float],
    ):
        self.corpus, self.frontier, self.coverage, self.radius = corpus, frontier, coverage, radius
        self.bandit, self.stats, self.elapsed = bandit, stats, elapsed
        self.novelty: Novelty | None = None
        self.admitted: list[int] = []
        """Ids since the last commit."""

    def vectors(self, trace: Trace, count: int) -> Tensor:
        if self.coverage is None:
            return torch.zeros(count, 1, device=next(iter(trace.outputs.values())).device)
        return self.coverage.vectors(trace)

    def keep(self, brood: Brood, guarded: Guarded, batch: Batch, verdict: Verdict, rng: np.random.Generator) -> None:
        """Admits what is worth it (never a hit: its children would only fail again) and rewards the mutators.

        ``batch``, ``verdict``: of the candidates that ran (``guarded.ran``).
        """
        assert guarded.trace is not None
        hits = verdict.hits.cpu().numpy()
        clean = np.flatnonzero(~hits)
        if not len(clean) or self.coverage is None:
            clean = clean[:0]
            self._reward(brood, guarded, clean, clean, hits)
            return
        parents = brood.parents[guarded.ran]
        seeds = brood.bucket.seed_index[brood.rows[guarded.ran]]
        scores, better = self._by_score(verdict, clean, seeds)
        asked = np.intersect1d(clean, np.searchsorted(guarded.ran, brood.keep)) if len(brood.keep) else brood.keep
        wanted = _union(better, asked)
        if len(clean) <= LOOKED_AT:
            shown = looked = clean
        else:
            shown = np.sort(rng.choice(clean, LOOKED_AT, replace=False))
            looked = _union(shown, wanted)
        vectors = self.vectors(_part(guarded.trace, looked, size(batch)), len(looked))
        among = vectors if shown is looked else vectors[torch.from_numpy(np.searchsorted(looked, shown))]
        novel = self._novel(brood, guarded, among, shown, rng)
        chosen = _union(novel, wanted)
        self._reward(brood, guarded, novel, wanted, hits)
        if len(novel):
            self.stats.last_novel = self.elapsed()
        if not len(chosen):
            return
        index = torch.from_numpy(np.searchsorted(looked, chosen)).to(vectors.device)
        ids = self._admit(
            Admission(
                copy_rows(batch, chosen),
                vectors.index_select(0, index),
                [int(i) for i in parents[chosen]],
                [int(s) for s in seeds[chosen]],
                [brood.mutator_of(int(r)) for r in guarded.ran[chosen]],
                [float(scores[r]) for r in chosen],
            )
        )
        brood.admitted.update(zip(guarded.ran[chosen].tolist(), ids, strict=True))

    def admit_seeds(self, batch: Batch, vectors: Tensor, index: list[int], scores: list[float]) -> None:
        """Clean seeds, as they are."""
        count = size(batch)
        if self.novelty is None and self.coverage is not None:
            self.novelty = Novelty(vectors.shape[1], self.radius)
        self._admit(Admission(batch, vectors, [None] * count, index, [SEED_MUTATOR] * count, scores), started=False)
        if self.novelty is not None:
            self.novelty.start(vectors.cpu().numpy())

    def make_room(self) -> list[int]:
        """Evicts when the corpus is over its cap; returns the ids that went."""
        if not self.corpus.full:
            return []
        gone = self.corpus.evict(set(self.frontier.ids()))
        if self.novelty is not None and gone:
            self.novelty.index.rebuild(self.corpus.vectors())
        self.stats.evicted += len(gone)
        self.admitted = [i for i in self.admitted if i in self.corpus.place]
        return gone

    def _admit(self, new: Admission, *, started: bool = True) -> list[int]:
        ids = self.corpus.add(new)
        self.admitted += ids
        for id_, score in zip(ids, new.scores, strict=True):
            self.frontier.offer(id_, self.corpus.seed_index[id_], score)
        if self.novelty is not None and started:
            self.novelty.add(new.vectors.cpu().numpy())
        self.stats.max_depth = max(self.stats.max_depth, *(self.corpus.depth[i] for i in ids))
        return ids

    def _novel(
        self, brood: Brood, guarded: Guarded, vectors: Tensor, shown: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Which of the rows ``shown``, whose vectors these are, are novel."""
        if self.novelty is None:
            return np.empty(0, np.int64)
        at = torch.from_numpy(brood.rows[guarded.ran[shown]]).to(vectors.device)
        return shown[self.novelty.select(vectors, brood.bucket.vectors.view.index_select(0, at), rng)]

    def _by_score(
        self, verdict: Verdict, clean: NDArray[np.int64], seeds: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """All scores, and the few best rows among those above their seed's frontier."""
        if verdict.score is None:
            return np.full(len(verdict.hits), np.nan), np.empty(0, np.int64)
        scores = verdict.score.double().cpu().numpy()
        mine = scores[clean]
        self.stats.best_score = max(self.stats.best_score, float(mine.max()))
        above = clean[mine > self.frontier.thresholds(seeds[clean])]
        if len(above) > MOST_BY_SCORE:
            above = above[np.argsort(-scores[above], kind="stable")[:MOST_BY_SCORE]]
        return scores, above

    def _reward(
        self,
        brood: Brood,
        guarded: Guarded,
        novel: NDArray[np.int64],
        better: NDArray[np.int64],
        hits: NDArray[np.bool_],
    ) -> None:
        for group in brood.groups:
            inside = (guarded.ran >= group.part.start) & (guarded.ran < group.part.stop)
            fresh, struck = int(inside[novel].sum()), int((inside & hits).sum())
            tried = group.part.stop - group.part.start
            gained = float(inside[better].sum()) / (4 * MOST_BY_SCORE)
            self.bandit.reward(group.mutator, tried * brood.cost, fresh, gained, struck)
            line = self.stats.yields.setdefault(group.mutator, MutatorYield(group.mutator))
            line.tried += tried
            line.novel += fresh
            line.hits += struck


def _union(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted, each once."""
    return np.unique(np.concatenate([a, b])) if len(a) or len(b) else a


def _part(trace: Trace, index: NDArray[np.int64], count: int) -> Trace:
    """What coverage needs of some candidates."""
    if len(index) == count:
        return trace
    at = torch.from_numpy(index).to(next(iter(trace.outputs.values())).device)
    return Trace(rows(trace.outputs, at), rows(trace.layers, at))
