"""After a diff: where each finding begins, how little it takes, and, when asked for, which layer to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.divergence.begins import Parting
from nnfuzz.divergence.least import AT_LEAST, PART, least
from nnfuzz.divergence.narrow import note
from nnfuzz.divergence.outcome import After
from nnfuzz.divergence.sensitivity import measure
from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.finding import Finding
from nnfuzz.guard import run_guarded
from nnfuzz.objectives.base import Objective
from nnfuzz.space import Batch, size
from nnfuzz.targets import PairTarget

if TYPE_CHECKING:
    from nnfuzz.jobs import DiffJob

BEGINS = "begins at"
"""The key of a finding's details that holds the line."""
MOST_FINDINGS = 8
"""Findings that are compared layer by layer at the end of a run; ``nnfuzz explain`` does it for any."""
GRACE = 0.2, 10.0
"""Share of the run's own time, and least seconds, that each of the closer looks may take unless it was asked for."""


def look_closer(
    job: DiffJob, fuzzer: Any, findings: list[Finding], run: Path | None, tell: Callable[[str], None]
) -> After:
    """``fuzzer``: of the finished run. What is seen goes into ``findings``, files of ``run`` and ``tell``."""
    found = After()
    pool, pair = job.pool, job.pair
    if pool is None or pair is None:
        return found
    shown = [f for f in findings if f.confirmed and f.symptom != "exception"]
    for finding in shown:
        if finding.seed_index in pool.unchanged & pool.kept.keys() and not finding.distance["linf"]:
            continue  # it is there already
        pool.add(finding.seed_index, finding.distance["linf"], candidate_of(finding, pair))
    if run is not None:
        pool.save(run)
    if job.copies is not None and str(job.settings.as_).startswith("fp16") and not fuzzer.clock.stop_asked:
        seeds_of = [{n: t.to(pair.device) for n, t in g.batch.items()} for g in job.seeds.groups]
        pair.b.notes += note(pair, seeds_of, fuzzer.corpus, job.settings.context.get("copy"))
    if fuzzer.clock.stop_asked or not shown:
        return found
    objective: Objective = fuzzer.objectives[0]
    grace = max(GRACE[0] * fuzzer.clock.elapsed(), GRACE[1])
    _begin(job, objective, shown[:MOST_FINDINGS], grace)
    began = time.perf_counter()

    def late() -> bool:
        return bool(fuzzer.clock.stop_asked) or (not job.settings.least and time.perf_counter() - began > grace)

    budget = None if job.settings.least else max(AT_LEAST, int(PART * fuzzer.stats.inputs))
    seeds = {i: {n: t[None].to(pair.device) for n, t in one.items()} for i, one in fuzzer.examiner.seeds.items()}
    found.least = least(pool, seeds, fuzzer.parts.space, failing(pair, objective), len(seeds), budget, late)
    fuzzer.stats.extra_inputs += found.least.tried
    tell(found.least.line() + (f" ({', '.join(found.least.save(run))})" if run is not None else ""))
    if job.settings.sensitivity and not fuzzer.clock.stop_asked:
        found.sensitivity = measure(job, objective, pool)
        for line in found.sensitivity.lines():
            tell(line)
        if run is not None:
            found.sensitivity.save(run)
    return found


def _begin(job: DiffJob, objective: Objective, findings: list[Finding], grace: float) -> None:
    """One line in each finding's details."""
    assert job.pair is not None
    groups = [{n: t.to(job.pair.device) for n, t in g.batch.items()} for g in job.seeds.groups]
    began = time.perf_counter()
    try:
        parting = Parting(job.pair, groups, objective, derived=job.copies is not None)
        for finding in findings:
            finding.details[BEGINS] = parting.begins(candidate_of(finding, job.pair)).headline()
            if time.perf_counter() - began > grace:
                return
    except Exception as error:  # what cannot be compared takes no finding away
        reason = str(error) if isinstance(error, NnfuzzError) else f"{type(error).__name__}: {error}"
        job.side.notes.append(f"layers cannot be compared: {(reason.splitlines() or [''])[0]}"[:200])


def candidate_of(finding: Finding, pair: PairTarget) -> Batch:
    """Its input with a leading axis of 1, as the pair takes candidates."""
    whole = pair.unit == "batch"
    return {n: (t[None] if whole else t).to(pair.device) for n, t in finding.inputs.items()}


def failing(pair: PairTarget, objective: Objective) -> Callable[[Batch], Tensor]:
    """Which candidates of a batch disagree; those on which a model raises do not count."""

    def fails(batch: Batch) -> Tensor:
        here = {n: t.to(pair.device) for n, t in batch.items()}
        guarded = run_guarded(pair, here, objective.want)
        mask = torch.zeros(size(here), dtype=torch.bool)
        if guarded.trace is None:
            return mask
        ran = torch.from_numpy(guarded.ran)
        part = here if len(ran) == size(here) else {n: t[ran.to(t.device)] for n, t in here.items()}
        mask[ran] = objective.judge(guarded.trace, part).hits.cpu()
        return mask

    return fails
