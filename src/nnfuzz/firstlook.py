"""The seeds: objectives and coverage learn from them, clean ones enter the corpus, failing ones are findings."""

from __future__ import annotations

import numpy as np
import torch

from nnfuzz.breed import copy_rows
from nnfuzz.corpus import SEED_MUTATOR
from nnfuzz.examine import Hit
from nnfuzz.findings.weights import infinite_weights
from nnfuzz.fuzzer import Fuzzer, hash_of
from nnfuzz.objectives import NonFinite, Objective, Verdict
from nnfuzz.seeds import SeedGroup
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets import TorchTarget


def start(fuzzer: Fuzzer, groups: list[SeedGroup]) -> int:
    """A new run: every seed is run once by every objective. How many of them fail as they are."""
    learn(fuzzer, groups)
    failing = 0
    for group in groups:
        for a in range(0, len(group.index), fuzzer.most_rows):
            part = slice(a, a + fuzzer.most_rows)
            if a and fuzzer.clock.late():
                break
            failing += _admit(fuzzer, rows(group.batch, part), group.index[part])
    fuzzer.commit([])
    return failing


def learn(fuzzer: Fuzzer, groups: list[SeedGroup]) -> None:
    """Objectives and coverage learn from the first seeds of the commonest shapes; nothing else changes, so that a
    resumed run can do it again."""
    group = max(groups, key=lambda g: len(g.index))
    first = rows(group.batch, slice(0, fuzzer.most_rows))
    for i, objective in enumerate(fuzzer.objectives):
        guarded = fuzzer.run(first, objective, most_crashes=size(first))
        if guarded.trace is None:
            continue
        objective.learn(guarded.trace, copy_rows(first, guarded.ran))
        side = fuzzer.target
        if isinstance(objective, NonFinite) and objective.has_design and isinstance(side, TorchTarget):
            held = infinite_weights(side.model) if side.sees_inside else []
            objective.remark = "; ".join([objective.remark, *held])
        if i == 0 and fuzzer.keeper.coverage is not None:
            fuzzer.keeper.coverage.fit(guarded.trace, fuzzer.seed)


def _admit(fuzzer: Fuzzer, batch: Batch, index: list[int]) -> int:
    """How many of them fail."""
    failing: set[int] = set()
    trace = None
    for objective in fuzzer.objectives[::-1]:  # the first one last: its trace is the one that coverage sees
        guarded = fuzzer.run(batch, objective, most_crashes=size(batch))  # no seed is passed over
        for row, error in guarded.crashed:
            failing.add(row)
            _examine(fuzzer, batch, row, index, objective, hash_of(error), error)
        trace = guarded.trace
        if trace is None:
            return len(failing)
        verdict = objective.judge(trace, copy_rows(batch, guarded.ran))
        for at in verdict.hits.nonzero()[:, 0].tolist():
            row = int(guarded.ran[at])
            failing.add(row)
            if fuzzer.pool is not None:
                fuzzer.pool.add_unchanged(index[row], rows(batch, slice(row, row + 1)))
            _examine(fuzzer, batch, row, index, objective, _key(verdict, at))
    clean = np.array([at for at, row in enumerate(guarded.ran.tolist()) if row not in failing], np.int64)
    if not len(clean) or trace is None:
        return len(failing)
    scores = verdict.score.double().cpu().numpy() if verdict.score is not None else np.full(size(batch), np.nan)
    vectors = fuzzer.keeper.vectors(trace, len(guarded.ran))
    fuzzer.keeper.admit_seeds(
        copy_rows(batch, guarded.ran[clean]),
        vectors[torch.from_numpy(clean).to(vectors.device)],
        [index[int(r)] for r in guarded.ran[clean]],
        [float(scores[at]) for at in clean],
    )
    return len(failing)


def _examine(
    fuzzer: Fuzzer,
    batch: Batch,
    row: int,
    index: list[int],
    objective: Objective,
    key: int,
    error: Exception | None = None,
) -> None:
    """A seed that fails is a finding at distance 0; it is not mutated further."""
    if fuzzer.examiner.which(objective, key, [0.0]) is not None:
        lone = copy_rows(batch, np.array([row]))
        anchors = fuzzer.parts.space.anchors(lone)
        hit = Hit(lone, anchors, index[row], None, SEED_MUTATOR, key, objective, error, batch=batch, row=row)
        fuzzer.examiner.examine(hit)


def _key(verdict: Verdict, row: int) -> int:
    return int(verdict.keys[row]) if verdict.keys is not None else 0
