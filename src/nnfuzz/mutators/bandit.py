"""Shares the budget between mutators by what each earned per input.

The rule is Thompson sampling (Thompson 1933; Chapelle & Li 2011) on event *rates*. Novel mutants, hits and progress
of the score are events; their number in a group of ``tried`` inputs is taken as Poisson with the mutator's unknown
rate, whose conjugate posterior is a Gamma: Γ(1 + events, scale 1 / (b + tried)). One draw per mutator, the largest
wins. ``b`` is the number of inputs that one event costs on average over all mutators, so that a mutator nobody has
tried counts as an average one: no scale needs tuning, whether one mutant in three is novel or one in a million.
What works at the start of a run is exhausted later, so both counts decay at every report (discounted Thompson
sampling: Raj & Kalyani, arXiv 1707.09727): a mutator not chosen for long drifts back to average and is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

FLOOR = 0.15
"""This share of the choices is uniform over all mutators, so that none starves: what earns nothing may yet earn."""

DISCOUNT = 0.998
"""Per reported group: a memory of some 500 groups, about 15 for each mutator of the standard set."""

HIT_EVENTS = 4.0
"""The first hit of a group counts as so many novel mutants, each doubling as so many more: duplicates of one bug would
otherwise drown everything else."""

PROGRESS_EVENTS = 16.0
"""A group that brings the best score all the way to its goal (progress 1) counts as so many novel mutants."""


class Yield(NamedTuple):
    """One line of the status table; sums over the whole run, not discounted."""

    name: str
    groups: int
    tried: int
    novel: int
    hits: int
    progress: float

    @property
    def novel_per_thousand(self) -> float:
        return 1000 * self.novel / self.tried if self.tried else 0.0


class Bandit:
    """Chooses mutators. Holds no random state: the same reports and the same ``rng`` give the same choices.

    Args:
        names: of the mutators that can do something in this run, in a fixed order; at least one.
    """

    def __init__(self, names: Sequence[str]):
        if not names:
            raise ValueError("a bandit needs at least one mutator to choose from")
        self.names = list(dict.fromkeys(names))
        self._row = {name: i for i, name in enumerate(self.names)}
        self._recent = np.zeros((len(self.names), 2))  # discounted inputs tried, discounted events
        self._total = np.zeros((len(self.names), 5))  # groups, tried, novel, hits, progress

    def choose(self, rng: np.random.Generator, k: int = 1) -> list[str]:
        """The mutators of the next k groups. Every mutator comes once, in random order, before any comes twice."""
        fresh = np.flatnonzero(self._total[:, 0] == 0)
        first = rng.permutation(fresh)[:k]
        n = k - len(first)
        tried, events = self._recent[:, 0], self._recent[:, 1]
        cost = (1 + tried.sum()) / (1 + events.sum())
        rates = rng.standard_gamma(1 + events, size=(n, len(self.names))) / (cost + tried)
        best = rates.argmax(1) if n else np.zeros(0, dtype=np.int64)
        anyone = rng.integers(0, len(self.names), n)
        chosen = np.where(rng.random(n) < FLOOR, anyone, best)
        return [self.names[int(i)] for i in (*first, *chosen)]

    def reward(self, name: str, tried: int, novel: int, progress: float = 0.0, hits: int = 0) -> None:
        """Reports one finished group.

        Args:
            tried: inputs run.
            novel: of these, kept for their coverage.
            progress: by which share of the way to its goal the best score moved, 0 to 1; clipped.
            hits: inputs that satisfied the objective.
        """
        share = min(1.0, max(0.0, progress)) if math.isfinite(progress) else 0.0
        row = self._row[name]
        events = novel + PROGRESS_EVENTS * share + HIT_EVENTS * math.log2(1 + max(0, hits))
        self._recent *= DISCOUNT
        self._recent[row] += (tried, events)
        self._total[row] += (1, tried, novel, hits, share)

    def share(self, name: str) -> float:
        """Of all recent events those that this mutator brought, 0 to 1; 0 where there were none."""
        events = self._recent[:, 1]
        return float(events[self._row[name]] / events.sum()) if events.sum() else 0.0

    def state(self) -> dict[str, list[float]]:
        """All it knows, as JSON-able numbers; Python writes floats so that they read back exactly."""
        return {n: [*self._recent[i].tolist(), *self._total[i].tolist()] for n, i in self._row.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continues from ``state()``. Mutators that are no longer there are dropped, new ones start fresh."""
        for name, numbers in state.items():
            if name in self._row:
                self._recent[self._row[name]] = numbers[:2]
                self._total[self._row[name]] = numbers[2:7]

    def table(self) -> list[Yield]:
        """What each mutator earned, best yield first."""
        lines = [
            Yield(n, int(t[0]), int(t[1]), int(t[2]), int(t[3]), float(t[4]))
            for n, t in zip(self.names, self._total, strict=True)
        ]
        return sorted(lines, key=lambda y: (-y.hits / max(1, y.tried), -y.novel_per_thousand, y.name))
