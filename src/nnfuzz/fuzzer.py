"""THE LOOP. Read this first: one step chooses parents, mutates them, runs the batch, judges it, and keeps what is new.

corpus ──choose──▶ parents ──mutate──▶ batch ──run──▶ trace
   ▲                                                   │
   └────────────── keep novel ◀── coverage ◀───────────┼──▶ objective ──▶ hit ──▶ examine ──▶ finding
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.breed import Breeder, Brood, copy_rows
from nnfuzz.corpus import SEED_MUTATOR, Admission, Corpus
from nnfuzz.coverage import Coverage, Novelty
from nnfuzz.examine import Examiner, Hit, hit_distances
from nnfuzz.guard import Guarded, run_guarded
from nnfuzz.mutators import Bandit
from nnfuzz.objectives import Objective, Verdict
from nnfuzz.record import Record
from nnfuzz.schedule import Frontier
from nnfuzz.seeds import SeedGroup
from nnfuzz.space import Anchors, Batch, InputSpace, rows, size
from nnfuzz.stats import MutatorYield, Stats
from nnfuzz.targets import Target, Trace

FIRST_BATCH = 64
GROW_EVERY = 8
"""Batches start small, so that an easy failure costs few inputs, and double after so many batches, for speed."""
MOST_BY_SCORE = 4
"""A batch admits at most this many candidates for their score alone."""
LEAST_GROUP = 32
MOST_GROUPS = 8


@dataclass
class Limits:
    """When to stop; None is endless."""

    max_inputs: int | None = None
    max_seconds: float | None = None
    stop_on_first: bool = False


class Fuzzer:
    """One run. ``start`` looks at the seeds, ``step`` is one batch, ``loop`` goes on until a limit."""

    def __init__(
        self,
        *,
        target: Target,
        space: InputSpace,
        objectives: list[Objective],
        coverage: Coverage | None,
        radius: float | None,
        corpus: Corpus,
        frontier: Frontier,
        breeder: Breeder,
        bandit: Bandit,
        examiner: Examiner,
        stats: Stats,
        seed: int,
        most_rows: int,
        commit: Callable[[list[Record], dict[str, Any], list[int]], None],
        persistent: bool,
    ):
        self.target, self.space, self.objectives = target, space, objectives
        self.coverage, self.radius = coverage, radius
        self.corpus, self.frontier, self.breeder, self.bandit = corpus, frontier, breeder, bandit
        self.examiner, self.stats, self.seed, self.most_rows = examiner, stats, seed, most_rows
        self._commit, self.persistent = commit, persistent
        self.novelty: Novelty | None = None
        self.stop_asked = False
        self._resumed_at, self._before = time.perf_counter(), 0.0
        self._admitted: list[int] = []

    # ------------------------------------------------------------------ the run

    def start(self, groups: list[SeedGroup]) -> None:
        """Runs every seed once: objectives and coverage learn from them, clean ones enter the corpus."""
        self.look_at_seeds(groups)
        for group in groups:
            for a in range(0, len(group.index), self.most_rows):
                part = slice(a, a + self.most_rows)
                self._admit_seeds(rows(group.batch, part), group.index[part])
        self.commit([])

    def look_at_seeds(self, groups: list[SeedGroup]) -> None:
        """Objectives and coverage learn from the first seeds of the commonest shapes; nothing else changes."""
        group = max(groups, key=lambda g: len(g.index))
        first = rows(group.batch, slice(0, self.most_rows))
        for i, objective in enumerate(self.objectives):
            guarded = self._run(first, objective)
            if guarded.trace is None:
                continue
            objective.learn(guarded.trace, copy_rows(first, guarded.ran))
            if i == 0 and self.coverage is not None:
                self.coverage.fit(guarded.trace, self.seed)

    def loop(self, limits: Limits, after_batch: Callable[[], None]) -> None:
        """Steps until a limit, ``stop_asked`` or the first finding; sets ``stats.stopped``."""
        while not (reason := self._over(limits)):
            self.step(limits)
            after_batch()
        self.stats.stopped = reason

    def step(self, limits: Limits) -> None:
        """One batch."""
        self.stats.batches += 1
        rng = np.random.default_rng([self.seed, self.stats.batches])
        objective = self.objectives[self.stats.batches % len(self.objectives)]
        count = self._batch_size(objective, limits)
        names = self.bandit.choose(rng, max(1, min(MOST_GROUPS, count // LEAST_GROUP)))
        torch.manual_seed(int(rng.integers(1 << 62)))
        for brood in self.breeder.broods(count, names, rng):
            self._run_brood(brood, objective, rng)
        self.commit(self._make_room())

    def _run_brood(self, brood: Brood, objective: Objective, rng: np.random.Generator) -> None:
        guarded = self._run(brood.batch, objective)
        self.stats.inputs += size(brood.batch)
        for row, error in guarded.crashed:
            self._report(brood, objective, [row], key=hash_of(error), error=error)
        if guarded.trace is None:
            return
        batch = brood.batch if len(guarded.ran) == size(brood.batch) else copy_rows(brood.batch, guarded.ran)
        verdict = objective.judge(guarded.trace, batch)
        hits = verdict.hits.cpu().numpy()
        if hits.any():
            self._report_hits(brood, objective, verdict, guarded.ran[hits])
        clean = np.flatnonzero(~hits)
        if len(clean):
            self._keep(brood, guarded, batch, verdict, clean, hits, rng)

    # ------------------------------------------------------------------ what is new

    def _keep(
        self,
        brood: Brood,
        guarded: Guarded,
        batch: Batch,
        verdict: Verdict,
        clean: NDArray[np.int64],
        hits: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> None:
        """Admits candidates that are novel, or better than their seed's frontier, and rewards who made them."""
        assert guarded.trace is not None
        vectors = self._vectors(guarded.trace, size(batch))
        parents = brood.rows[guarded.ran]
        novel = np.empty(0, np.int64)
        if self.novelty is not None:
            at = torch.from_numpy(parents[clean]).to(vectors.device)
            mine = vectors if len(clean) == len(vectors) else vectors[torch.from_numpy(clean).to(vectors.device)]
            novel = clean[self.novelty.select(mine, brood.bucket.vectors.view.index_select(0, at), rng)]
        seeds = np.array([self.corpus.seed_index[i] for i in np.array(brood.bucket.ids)[parents].tolist()])
        scores, better = self._by_score(verdict, clean, seeds)
        chosen = np.unique(np.concatenate([novel, better]))
        self._reward(brood, guarded, novel, better, hits)
        if not len(chosen):
            return
        index = torch.from_numpy(chosen).to(vectors.device)
        ids = np.array(brood.bucket.ids)[parents]
        admitted = self.corpus.add(
            Admission(
                copy_rows(batch, chosen),
                vectors.index_select(0, index),
                [int(i) for i in ids[chosen]],
                [int(s) for s in seeds[chosen]],
                [brood.mutator_of(int(r)) for r in guarded.ran[chosen]],
                [float(scores[r]) for r in chosen],
            )
        )
        self._admitted += admitted
        for id_, row in zip(admitted, chosen, strict=True):
            self.frontier.offer(id_, self.corpus.seed_index[id_], float(scores[row]))
        if self.novelty is not None:
            self.novelty.add(vectors.index_select(0, index).cpu().numpy())
        if len(novel):
            self.stats.last_novel = self.elapsed()
        self.stats.max_depth = max(self.stats.max_depth, *(self.corpus.depth[i] for i in admitted))

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
            fresh = int(inside[novel].sum())
            gained = int(inside[better].sum())
            struck = int((inside & hits).sum())
            tried = group.part.stop - group.part.start
            self.bandit.reward(group.mutator, tried, fresh, gained / (4 * MOST_BY_SCORE), struck)
            line = self.stats.yields.setdefault(group.mutator, MutatorYield(group.mutator))
            line.tried += tried
            line.novel += fresh
            line.hits += struck

    # ------------------------------------------------------------------ what fails

    def _report_hits(self, brood: Brood, objective: Objective, verdict: Verdict, at: NDArray[np.int64]) -> None:
        """Per key the nearest hit of the batch goes to the examiner."""
        self.stats.hits += len(at)
        struck = verdict.hits.nonzero()[:, 0]
        keys = (verdict.keys[struck] if verdict.keys is not None else torch.zeros_like(struck)).cpu().numpy()
        for key in np.unique(keys):
            self._report(brood, objective, [int(r) for r in at[keys == key]], key=int(key))

    def _report(
        self, brood: Brood, objective: Objective, at: list[int], *, key: int, error: Exception | None = None
    ) -> None:
        far = hit_distances(brood.batch, brood.anchors, at[:256])
        nearest = int(np.argmin(far))
        if not self.examiner.worth_a_look(objective, key, len(at), far[nearest]):
            return
        row = at[nearest]
        parent = int(brood.parents[row])
        hit = Hit(
            candidate=copy_rows(brood.batch, np.array([row])),
            anchor=Anchors(*({n: m[n][row : row + 1] for n in m} for m in _maps(brood.anchors))),
            seed_index=self.corpus.seed_index[parent],
            parent=parent,
            mutator=brood.mutator_of(row),
            key=key,
            objective=objective,
            error=error,
        )
        self.examiner.examine(hit)

    # ------------------------------------------------------------------ the seeds

    def _admit_seeds(self, batch: Batch, index: list[int]) -> None:
        for objective in self.objectives[1:]:
            later = self._run(batch, objective)
            if later.trace is not None:
                verdict = objective.judge(later.trace, copy_rows(batch, later.ran))
                self._seed_hits(copy_rows(batch, later.ran), [index[r] for r in later.ran], objective, verdict)
        objective = self.objectives[0]
        guarded = self._run(batch, objective)
        for row, error in guarded.crashed:
            self._seed_crash(rows(batch, slice(row, row + 1)), index[row], objective, error)
        if guarded.trace is None:
            return
        ran = copy_rows(batch, guarded.ran)
        verdict = objective.judge(guarded.trace, ran)
        vectors = self._vectors(guarded.trace, size(ran))
        if self.novelty is None and self.coverage is not None:
            self.novelty = Novelty(vectors.shape[1], self.radius)
        self._seed_hits(ran, [index[r] for r in guarded.ran], objective, verdict)
        clean = np.flatnonzero(~verdict.hits.cpu().numpy())
        if not len(clean):
            return
        scores = verdict.score.double().cpu().numpy() if verdict.score is not None else np.full(size(ran), np.nan)
        at = torch.from_numpy(clean).to(vectors.device)
        ids = self.corpus.add(
            Admission(
                copy_rows(ran, clean),
                vectors.index_select(0, at),
                [None] * len(clean),
                [index[int(guarded.ran[r])] for r in clean],
                [SEED_MUTATOR] * len(clean),
                [float(scores[r]) for r in clean],
            )
        )
        self._admitted += ids
        for id_ in ids:
            self.frontier.offer(id_, self.corpus.seed_index[id_], self.corpus.score[id_])
        if self.novelty is not None:
            self.novelty.start(vectors.index_select(0, at).cpu().numpy())

    def _seed_hits(self, batch: Batch, index: list[int], objective: Objective, verdict: Verdict) -> None:
        """A seed that fails is a finding at distance 0; it is not mutated further."""
        for row in verdict.hits.nonzero()[:, 0].tolist():
            lone = rows(batch, slice(row, row + 1))
            key = int(verdict.keys[row]) if verdict.keys is not None else 0
            if self.examiner.worth_a_look(objective, key, 1, 0.0):
                anchors = self.space.anchors(lone)
                self.examiner.examine(Hit(lone, anchors, index[row], None, SEED_MUTATOR, key, objective))

    def _seed_crash(self, lone: Batch, index: int, objective: Objective, error: Exception) -> None:
        key = hash_of(error)
        if self.examiner.worth_a_look(objective, key, 1, 0.0):
            anchors = self.space.anchors(lone)
            self.examiner.examine(Hit(lone, anchors, index, None, SEED_MUTATOR, key, objective, error))

    # ------------------------------------------------------------------ small print

    def _run(self, batch: Batch, objective: Objective) -> Guarded:
        began = time.perf_counter()
        guarded = run_guarded(self.target, batch, objective.want)
        self.stats.model_seconds += time.perf_counter() - began
        return guarded

    def _vectors(self, trace: Trace, count: int) -> torch.Tensor:
        if self.coverage is None:
            return torch.zeros(count, 1, device=next(iter(trace.outputs.values())).device)
        return self.coverage.vectors(trace)

    def _batch_size(self, objective: Objective, limits: Limits) -> int:
        grown = FIRST_BATCH << min(20, self.stats.batches // GROW_EVERY)
        most = self.most_rows // 4 if objective.want.backward else self.most_rows
        count = self.stats.batch_size = max(1, min(grown, most))
        if limits.max_inputs is not None:
            count = max(1, min(count, limits.max_inputs - self.stats.inputs))
        return count

    def _make_room(self) -> list[int]:
        if not self.corpus.full:
            return []
        gone = self.corpus.evict(self.frontier.ids())
        self.frontier.retain(self.corpus.place)
        if self.novelty is not None and gone:
            self.novelty.index.rebuild(self.corpus.vectors())
        self.stats.evicted += len(gone)
        self._admitted = [i for i in self._admitted if i in self.corpus.place]
        return gone

    def _over(self, limits: Limits) -> str:
        self.stats.seconds = self.elapsed()
        if self.stop_asked:
            return "interrupted"
        if limits.stop_on_first and self.examiner.findings:
            return "first-finding"
        if limits.max_inputs is not None and self.stats.inputs >= limits.max_inputs:
            return "max-inputs"
        if limits.max_seconds is not None and self.stats.seconds >= limits.max_seconds:
            return "max-time"
        return "" if len(self.corpus) else "every seed fails"

    def elapsed(self) -> float:
        """Seconds of fuzzing, over all sessions of the run."""
        return self._before + time.perf_counter() - self._resumed_at

    def resume_clock(self, seconds: float) -> None:
        self._before, self._resumed_at = seconds, time.perf_counter()

    def commit(self, evicted: list[int]) -> None:
        """One transaction for the batch: new entries and all that resuming needs."""
        self.stats.seconds = self.elapsed()
        self.stats.corpus, self.stats.corpus_bytes = len(self.corpus), self.corpus.bytes
        if self.novelty is not None:
            self.stats.radius = self.novelty.radius
        if self.persistent:
            records = self.corpus.records(self._admitted, self.stats.batches, self.stats.inputs)
            self._commit(records, self.state(), evicted)
        self._admitted = []

    def extra_state(self) -> dict[str, Any]:
        """State of parts that not every run has."""
        return {}

    def load_extra(self, state: Mapping[str, Any]) -> None:
        """The counterpart of ``extra_state``."""

    def state(self) -> dict[str, Any]:
        """JSON-able; with the corpus' records all that ``restore`` needs."""
        from nnfuzz.resume import state_of

        return state_of(self)


def hash_of(error: Exception) -> int:
    """A stable key for errors of one kind (Python's own hash of text differs from process to process)."""
    import zlib

    from nnfuzz.findings.confirm import exception_cause

    return -1000 - zlib.crc32(exception_cause(error).text.encode())


def _maps(anchors: Anchors) -> tuple[Any, Any, Any]:
    return anchors.values, anchors.low, anchors.high
