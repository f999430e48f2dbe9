"""Where the search stands for every goal: the best prompts of each, so that one easy goal does not take all energy.

Keeping an archive for each of many goals is what test generators do (MOSA: Panichella et al., TSE 2018).
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.breed import Brood
from nnfuzz.corpus import Corpus
from nnfuzz.guard import Guarded
from nnfuzz.keeper import Keeper
from nnfuzz.objectives import Verdict
from nnfuzz.schedule import MOST_DRAWN, Frontier
from nnfuzz.space import Batch, Signature
from nnfuzz.text.objectives import Together
from nnfuzz.text.objectives.together import TextVerdict

PER_GOAL = 8
"""Prompts kept in view for each goal."""
MOST_A_GOAL = 2
"""Of a batch so many enter for one goal."""


class GoalFrontier(Frontier):
    """The best entries of every goal of ``objective``."""

    def __init__(self, objective: Together):
        super().__init__(1)
        self.objective = objective
        self.heaps: list[list[tuple[float, int]]] = [[] for _ in objective.goals]

    def offer(self, id_: int, seed_index: int, score: float) -> bool:
        """Entries are offered goal by goal, see ``offer_to``."""
        return False

    def offer_to(self, goal: int, id_: int, score: float) -> bool:
        """Takes an entry in when it is among the best of the goal (older wins a tie)."""
        if not np.isfinite(score):
            return False
        heap, item = self.heaps[goal], (float(score), -id_)
        if len(heap) < PER_GOAL:
            heapq.heappush(heap, item)
            return True
        return heapq.heappushpop(heap, item) != item

    def least(self) -> NDArray[np.float64]:
        """float64 ``(goals,)``: scores must be above these to enter; infinite for goals that are over."""
        least = np.full(len(self.heaps), np.inf)
        for goal in self.objective.open:
            heap = self.heaps[goal]
            least[goal] = heap[0][0] if len(heap) >= PER_GOAL else -np.inf
        return least

    def best(self, goal: int) -> list[int]:
        """Entries of a goal, best first."""
        return [-i for _, i in sorted(self.heaps[goal], reverse=True)]

    def ids(self) -> list[int]:
        return sorted({-i for goal in self.objective.open for _, i in self.heaps[goal]})

    def draw(self, corpus: Corpus, count: int, rng: np.random.Generator) -> tuple[Signature, NDArray[np.int64]] | None:
        """Entries of one open goal, the goal drawn at random."""
        goals = [g for g in self.objective.open if self.heaps[g]]
        if not goals:
            return None
        ids = self.best(goals[int(rng.integers(len(goals)))])
        places = [corpus.place[i] for i in ids if i in corpus.place]
        if not places:
            return None
        some = [places[int(i)] for i in rng.integers(0, len(places), min(count, MOST_DRAWN))]
        mine = np.array([row for key, row in some if key == some[0][0]])
        return some[0][0], np.resize(mine, count)

    def to_json(self) -> list[list[list[float]]]:
        return [[[score, -i] for score, i in sorted(heap)] for heap in self.heaps]

    def load(self, saved: Any) -> None:
        for heap, items in zip(self.heaps, saved or [], strict=False):
            heap[:] = [(float(score), -int(i)) for score, i in items]
            heapq.heapify(heap)


class TextKeeper(Keeper):
    """Admits for every goal. A candidate that only fails in ways that are findings already is good to go on from:
    where most outputs loop, nothing else would ever be found otherwise."""

    frontier: GoalFrontier

    def keep(self, brood: Brood, guarded: Guarded, batch: Batch, verdict: Verdict, rng: np.random.Generator) -> None:
        assert isinstance(verdict, TextVerdict)
        self._goals = verdict.goals
        super().keep(brood, guarded, batch, Verdict(torch.from_numpy(verdict.fresh), verdict.score), rng)
        place = {int(row): at for at, row in enumerate(guarded.ran)}
        for row, id_ in sorted(brood.admitted.items(), key=lambda pair: pair[1]):
            self.offer(id_, verdict.goals[place[row]])

    def offer(self, id_: int, goals: NDArray[np.float64]) -> None:
        """An entry of the corpus, with its score for each goal."""
        for goal, score in enumerate(goals.tolist()):
            self.frontier.offer_to(goal, id_, score)

    def _by_score(
        self, verdict: Verdict, clean: NDArray[np.int64], seeds: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """All scores, and the few best rows of each goal among those above its frontier."""
        if verdict.score is None:
            return np.full(len(verdict.hits), np.nan), np.empty(0, np.int64)
        scores = verdict.score.double().numpy()
        self.stats.best_score = max(self.stats.best_score, float(scores[clean].max()))
        mine, chosen = self._goals[clean], set()
        for goal, least in enumerate(self.frontier.least()):
            above = np.flatnonzero(mine[:, goal] > least)
            best = above[np.argsort(-mine[above, goal], kind="stable")[:MOST_A_GOAL]]
            chosen |= {int(clean[i]) for i in best}
        return scores, np.array(sorted(chosen), np.int64)
