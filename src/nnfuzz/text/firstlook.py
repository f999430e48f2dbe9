"""A text run's first look at its seeds: what coverage is measured by, where the corpus begins, what fails already."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nnfuzz.breed import copy_rows
from nnfuzz.corpus import SEED_MUTATOR, Admission
from nnfuzz.errors import ModelFailure
from nnfuzz.examine import Hit
from nnfuzz.fuzzer import Fuzzer, hash_of
from nnfuzz.seeds import SeedGroup
from nnfuzz.space import Batch, rows, size
from nnfuzz.text.codec import pack
from nnfuzz.text.frontier import TextKeeper
from nnfuzz.text.models.base import OutOfTime
from nnfuzz.text.objectives import Together
from nnfuzz.text.setup import Setup
from nnfuzz.text.space import PROMPT

TWICE = 8
"""Seeds that a function is asked about twice, to see whether its answers are always the same."""


def groups_of(setup: Setup) -> list[SeedGroup]:
    """The seeds by the width of their rows."""
    found = []
    for width in sorted(set(setup.widths)):
        index = [i for i, w in enumerate(setup.widths) if w == width]
        found.append(SeedGroup({PROMPT: pack([setup.prompts[i] for i in index], width)}, index))
    return found


def largest(groups: list[SeedGroup]) -> SeedGroup:
    return max(groups, key=lambda g: len(g.index))


def learn(fuzzer: Fuzzer, together: Together, groups: list[SeedGroup]) -> None:
    """What coverage is measured by. Raises ``ModelFailure`` where the model fails on every seed."""
    group = largest(groups)
    first = rows(group.batch, slice(0, fuzzer.most_rows))
    guarded = fuzzer.run(first, together, most_crashes=size(first))
    if guarded.trace is None:
        if len(guarded.crashed) == sum(len(g.index) for g in groups):
            error = guarded.crashed[0][1]
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            second = getattr(error, "raised_by", None)
            who = "the model" if second is None else f"the second model, {second},"
            raise ModelFailure(f"{who} fails on every seed ({told})")
        return
    if fuzzer.keeper.coverage is not None:
        fuzzer.keeper.coverage.fit(guarded.trace, fuzzer.seed)


def wavers(fuzzer: Fuzzer, together: Together, groups: list[SeedGroup]) -> bool:
    """Whether two calls with the same seeds give different answers."""
    some = rows(largest(groups).batch, slice(0, min(fuzzer.most_rows, TWICE)))
    first, second = (fuzzer.run(some, together, most_crashes=size(some)) for _ in range(2))
    fuzzer.stats.extra_inputs += 2 * size(some)
    if first.trace is None or second.trace is None or list(first.ran) != list(second.ran):
        return list(first.ran) != list(second.ran)
    then, now = first.trace.outputs, second.trace.outputs
    return any(not torch.equal(then[n], now[n]) for n in then if n.removeprefix("b.") == "tokens")


def look_at_seeds(fuzzer: Fuzzer, together: Together, groups: list[SeedGroup]) -> None:
    """Seeds that misbehave are findings, and are mutated all the same: only those that crash stay outside."""
    for group in groups:
        for start in range(0, len(group.index), fuzzer.most_rows):
            if len(fuzzer.corpus) and fuzzer.clock.late():
                break
            part = slice(start, start + fuzzer.most_rows)
            try:
                _admit(fuzzer, together, rows(group.batch, part), group.index[part])
            except OutOfTime:
                if not len(fuzzer.corpus):
                    raise
    fuzzer.commit([])


def _admit(fuzzer: Fuzzer, together: Together, batch: Batch, given: list[int]) -> None:
    keeper = fuzzer.keeper
    assert isinstance(keeper, TextKeeper)
    guarded = fuzzer.run(batch, together, most_crashes=size(batch))
    for row, error in guarded.crashed:
        _seed_hit(fuzzer, together, batch, row, given[row], hash_of(error), error)
    if guarded.trace is None:
        return
    ran = copy_rows(batch, guarded.ran)
    verdict = together.judge(guarded.trace, ran)
    for at in verdict.hits.nonzero()[:, 0].tolist():
        assert verdict.keys is not None
        row = int(guarded.ran[at])
        _seed_hit(fuzzer, together, batch, row, given[row], int(verdict.keys[at]))
    count = size(ran)
    scores = verdict.score.tolist() if verdict.score is not None else [float("nan")] * count
    vectors = keeper.vectors(guarded.trace, count)
    index = [given[int(r)] for r in guarded.ran]
    first = len(fuzzer.corpus.parent)
    if keeper.novelty is None:
        keeper.admit_seeds(ran, vectors, index, scores)
    else:
        keeper._admit(Admission(ran, vectors, [None] * count, index, [SEED_MUTATOR] * count, scores))
    for row in range(count):
        keeper.offer(first + row, verdict.goals[row])


def _seed_hit(
    fuzzer: Fuzzer,
    together: Together,
    batch: Any,
    row: int,
    index: int,
    key: int,
    error: Exception | None = None,
) -> None:
    if fuzzer.examiner.which(together, key, [0.0]) is not None:
        lone = copy_rows(batch, np.array([row]))
        anchors = fuzzer.parts.space.anchors(lone)
        hit = Hit(lone, anchors, index, None, SEED_MUTATOR, key, together, error)
        fuzzer.examiner.examine(hit)
