"""THE LOOP. Read this first: one step chooses parents, mutates them, runs the batch, judges it, and keeps what is new.

corpus ──choose──▶ parents ──mutate──▶ batch ──run──▶ trace
   ▲                                                   │
   └────────────── keep novel ◀── coverage ◀───────────┼──▶ objective ──▶ hit ──▶ examine ──▶ finding
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz import gradient
from nnfuzz.breed import COSTLY_FROM, LEAST_GROUP, Breeder, Brood, copy_rows
from nnfuzz.clock import Clock
from nnfuzz.corpus import Corpus
from nnfuzz.divergence.pool import Pool
from nnfuzz.examine import Examiner, Hit, hit_distances
from nnfuzz.findings.confirm import exception_cause
from nnfuzz.guard import MOST_CRASHES, Guarded, run_guarded, seed_all
from nnfuzz.huge_pages import HugePages
from nnfuzz.keeper import Keeper
from nnfuzz.memory import collector_spared
from nnfuzz.mutators import Bandit
from nnfuzz.objectives import Objective, Verdict
from nnfuzz.record import Record
from nnfuzz.schedule import Frontier
from nnfuzz.space import Anchors, Batch, InputSpace, size
from nnfuzz.stats import Stats
from nnfuzz.targets import Target

FIRST_BATCH = 64
GROW_EVERY, GROW_EVERY_CLIMBING = 8, 12
"""Batches start small, so that an easy failure costs few inputs, and double after so many batches, for speed; more
slowly where gradients take part, since every batch may bring a gradient turn."""
MOST_GROUPS = 4
"""Groups of one mutator in a batch: variety for the bandit while batches are small."""
LARGE, FEW_GROUPS = 2048, 4
"""From ``COSTLY_FROM`` rows on a batch has few groups, from ``LARGE`` on the bandit's choice and a one-pass mutator:
what each further group costs in time is then more than its variety is worth."""

Commit = Callable[[list[Record], dict[str, Any], list[int]], None]


@dataclass
class Limits:
    """When to stop; None is endless."""

    max_inputs: int | None = None
    max_seconds: float | None = None
    stop_on_first: bool = False


@dataclass
class Parts:
    """What a run is put together from (see ``Session``)."""

    target: Target
    space: InputSpace
    objectives: list[Objective]
    corpus: Corpus
    frontier: Frontier
    breeder: Breeder
    bandit: Bandit
    keeper: Keeper
    examiner: Examiner
    stats: Stats
    climber: gradient.Climber | None = None
    clock: Clock = field(default_factory=Clock)


class Fuzzer:
    """One run. ``firstlook.start`` shows it the seeds, ``step`` is one batch, ``loop`` goes on until a limit.

    Args:
        seed: of all randomness. most_rows: of a full batch.
        commit: stores (records, state, evicted ids) of one batch; None when the run is kept in memory.
    """

    def __init__(self, parts: Parts, *, seed: int, most_rows: int, commit: Commit | None = None):
        self.parts, self.seed, self.most_rows = parts, seed, most_rows
        self.target, self.objectives, self.corpus = parts.target, parts.objectives, parts.corpus
        self.keeper, self.examiner, self.stats = parts.keeper, parts.examiner, parts.stats
        self._commit = commit
        self.pool: Pool | None = None
        """Where hits are kept beside the findings."""
        self.clock = parts.clock
        self._in_tail = False

    # ------------------------------------------------------------------ the run

    def loop(self, limits: Limits, after_batch: Callable[[], None]) -> None:
        """Steps until a limit, ``clock.stop_asked`` or the first finding; sets ``stats.stopped``."""
        pages = HugePages()
        with collector_spared():
            while not (reason := self._over(limits)):
                self.step(limits)
                after_batch()
                pages.tend()
        self.stats.stopped = reason

    def step(self, limits: Limits) -> None:
        """One batch: choose, mutate, run, judge, keep."""
        self.stats.batches += 1
        rng = np.random.default_rng([self.seed, self.stats.batches])
        seed_all(int(rng.integers(1 << 62)), self.target.device)
        objective = self.objectives[0 if self.stats.batches % self._backward_every else -1]
        count = self._batch_size(objective, limits)
        self._in_tail = self._in_tail or not self._fits(limits)
        names = self.parts.bandit.choose(rng, _groups(count, self.parts.breeder.costly_from))
        if self._may_climb(limits) and (self._climbing in names or self._wants_to_climb()):
            self._climb(rng)
        mutators = self.parts.breeder.balanced([n for n in names if n != self._climbing], count, rng)
        count = self._within(limits, count)
        if mutators and count and not self.clock.late() and not (limits.stop_on_first and self.examiner.has_found):
            for brood in self.parts.breeder.broods(count, mutators, rng):
                self.run_brood(brood, objective, rng)
                if self.clock.late():
                    break
        self.commit(self.keeper.make_room())

    def run_brood(self, brood: Brood, objective: Objective, rng: np.random.Generator, *, again: bool = False) -> None:
        """``again``: the brood was counted and looked at for novelty before, and is only judged."""
        guarded = self.run(brood.batch, objective)
        if not again:
            self.stats.inputs += size(brood.batch)
        for row, error in guarded.crashed:
            self._report(brood, objective, [row], key=hash_of(error), error=error)
        if guarded.trace is None:
            return
        batch = brood.batch if len(guarded.ran) == size(brood.batch) else copy_rows(brood.batch, guarded.ran)
        verdict = objective.judge(guarded.trace, batch)
        struck = np.flatnonzero(verdict.hits.cpu().numpy())
        if len(struck):
            self._report_hits(brood, objective, verdict, guarded.ran[struck])
        if not again:
            self.keeper.keep(brood, guarded, batch, verdict, rng)

    def _fits(self, limits: Limits) -> bool:
        """Whether a whole batch and a gradient turn still fit into ``max_inputs``. What does not is the *tail* of the
        run: it is searched with smaller batches and its findings count, but it is no part of the state to resume from,
        since an uninterrupted run would have had a whole batch there."""
        whole = self.stats.batch_size + (self.parts.climber.most if self.parts.climber is not None else 0)
        return self._within(limits, whole) == whole

    def _may_climb(self, limits: Limits) -> bool:
        """Gradients take part, and a whole turn still fits (or there is nothing else to do) and is allowed."""
        climber = self.parts.climber
        if climber is None:
            return False
        if not self.parts.breeder.mutators:
            return True
        if climber.over:
            return False
        if climber.allowance is not None:
            brought = self.parts.bandit.share(climber.name)
            if not climber.allowance.permits(self.stats.inputs, brought):
                return False
        return self._within(limits, climber.most) == climber.most

    @property
    def _climbing(self) -> str:
        return self.parts.climber.name if self.parts.climber is not None else gradient.NAME

    def _wants_to_climb(self) -> bool:
        return self.parts.climber is not None and self.parts.climber.wants_turn(self.stats.batches)

    def _climb(self, rng: np.random.Generator) -> None:
        """One gradient turn: its candidates are judged like any other, by every objective."""
        climber = self.parts.climber
        assert climber is not None
        turn = climber.turn(self.stats.batches, rng)
        if turn is None:
            self.parts.bandit.reward(climber.name, gradient.COST * FIRST_BATCH, 0)
            return
        for i, objective in enumerate(self.objectives):
            self.run_brood(turn.brood, objective, rng, again=i > 0)
        climber.judged(turn)

    # ------------------------------------------------------------------ what fails

    def _report_hits(self, brood: Brood, objective: Objective, verdict: Verdict, at: NDArray[np.int64]) -> None:
        """Per key the nearest hit of the batch goes to the examiner."""
        self.stats.hits += len(at)
        if self.pool is not None:
            self.pool.offer(brood, at)
        struck = verdict.hits.nonzero()[:, 0]
        keys = (verdict.keys[struck] if verdict.keys is not None else torch.zeros_like(struck)).cpu().numpy()
        for key in np.unique(keys):
            self._report(brood, objective, [int(r) for r in at[keys == key]], key=int(key))

    def _report(
        self, brood: Brood, objective: Objective, at: list[int], *, key: int, error: Exception | None = None
    ) -> None:
        which = self.examiner.which(objective, key, hit_distances(brood.batch, brood.anchors, at))
        if which is None:
            return
        row = at[which]
        parent = int(brood.parents[row])
        self.examiner.examine(
            Hit(
                candidate=copy_rows(brood.batch, np.array([row])),
                anchor=_one_anchor(brood.anchors, row),
                seed_index=self.corpus.seed_index[parent],
                parent=parent,
                mutator=brood.mutator_of(row),
                key=key,
                objective=objective,
                error=error,
                count=len(at),
                batch=brood.batch,
                row=row,
            )
        )

    # ------------------------------------------------------------------ small print

    def run(self, batch: Batch, objective: Objective, most_crashes: int = MOST_CRASHES) -> Guarded:
        """The model on a batch, its time taken."""
        began = time.perf_counter()
        guarded = run_guarded(self.target, batch, objective.want, most_crashes)
        self.stats.model_seconds += time.perf_counter() - began
        return guarded

    @property
    def _backward_every(self) -> int:
        """Where gradients are looked at too, each fourth batch does it (they cost several times as much); every
        second one where candidates are run one by one, since those batches are small anyway."""
        if len(self.objectives) == 1:
            return 1 << 62
        return 4 if self.target.unit == "sample" else 2

    def _batch_size(self, objective: Objective, limits: Limits) -> int:
        every = GROW_EVERY if self.parts.climber is None else GROW_EVERY_CLIMBING
        grown = FIRST_BATCH << min(20, self.stats.batches // every)
        most = self.most_rows // 4 if objective.want.backward else self.most_rows
        self.stats.batch_size = max(1, min(grown, most))
        return self._within(limits, self.stats.batch_size)

    def _within(self, limits: Limits, count: int) -> int:
        """So many candidates, or as many as ``max_inputs`` still allows."""
        return count if limits.max_inputs is None else max(0, min(count, limits.max_inputs - self.stats.inputs))

    def _over(self, limits: Limits) -> str:
        self.stats.seconds = self.clock.elapsed()
        if self.clock.stop_asked:
            return "interrupted"
        if limits.stop_on_first and self.examiner.has_found:
            return "first-finding"
        if limits.max_inputs is not None and self.stats.inputs >= limits.max_inputs:
            return "max-inputs"
        if limits.max_seconds is not None and self.stats.seconds >= limits.max_seconds:
            return "max-time"
        return "" if len(self.corpus) else "every seed fails"

    def commit(self, evicted: list[int]) -> None:
        """One transaction for the batch: new entries and all that resuming needs."""
        self.stats.seconds = self.clock.elapsed()
        self.stats.corpus, self.stats.corpus_bytes = len(self.corpus), self.corpus.bytes
        if self.keeper.novelty is not None:
            self.stats.radius = self.keeper.novelty.radius
        if self._commit is not None and not self._in_tail:
            from nnfuzz.checkpoint import state_of

            records = self.corpus.records(self.keeper.admitted, self.stats.batches, self.stats.inputs)
            self._commit(records, state_of(self), evicted)
        self.keeper.admitted = []


def _groups(count: int, costly_from: int) -> int:
    if count >= costly_from:
        return 1 if count >= LARGE or costly_from < COSTLY_FROM else FEW_GROUPS
    return max(1, min(MOST_GROUPS, count // LEAST_GROUP))


def hash_of(error: Exception) -> int:
    """A stable key for errors of one kind (Python's own hash of text differs from process to process)."""
    return -1000 - zlib.crc32(exception_cause(error).text.encode())


def _one_anchor(anchors: Anchors, row: int) -> Anchors:
    parts = ({n: m[n][row : row + 1] for n in m} for m in (anchors.values, anchors.low, anchors.high))
    return Anchors(*parts)
