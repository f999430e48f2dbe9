"""Sensitivity of a run that is over: `nnfuzz.sensitivity` and `nnfuzz sensitivity RUN`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnfuzz.divergence.after import candidate_of
from nnfuzz.divergence.sensitivity import SECONDS, Sensitivity, measure
from nnfuzz.errors import UsageError
from nnfuzz.guard import run_guarded
from nnfuzz.jobs import DiffJob, make_job, with_copy
from nnfuzz.loading.models import given_model
from nnfuzz.objectives.base import Objective
from nnfuzz.rerun import model_by_name, object_by_name
from nnfuzz.settings import Settings
from nnfuzz.store import RunStore
from nnfuzz.store_seeds import load_seed_groups


def sensitivity(
    run: str | Path,
    model: Any = None,
    *,
    compare: Callable[..., Any] | None = None,
    seconds: float = SECONDS,
) -> Sensitivity:
    """Which single layer, left as it was, makes most of a run's disagreeing inputs agree again.

    Args:
        run: the directory of a ``diff`` with ``as_``; ``sensitivity.json`` is written into it.
        model: needed when the run was started in Python with a live model.
        compare: the comparison, where it was a function given in Python.
        seconds: spent on it; layers that then were not tried are said.

    Raises:
        UsageError: the run compared two models of their own, or was no diff.
    """
    with RunStore.open(run, writable=False) as store:
        manifest, findings = store.manifest, store.findings()
    context = manifest.get("context", {})
    asked = manifest["settings"]
    if asked.get("job") != "diff" or asked.get("as_") is None:
        raise UsageError(
            f"{run} is no diff of a model with its own copy (nnfuzz diff --as), so there is no layer that could be "
            "left as it was"
        )
    live = {"compare": compare or object_by_name(context, "compare")}
    settings = Settings.from_json(asked, **live)
    settings.context = with_copy(context, Path(run))
    a = given_model(model, context, "model") or model_by_name(context, "model", run)
    job = make_job(settings, a, None, load_seed_groups(Path(run), manifest))
    assert isinstance(job, DiffJob)
    assert job.pool is not None
    with job.target_session():
        job.prepare()
        assert job.pair is not None
        job.pool.load(Path(run))
        if not len(job.pool):
            for finding in findings:
                if finding.confirmed and finding.symptom != "exception":
                    far = finding.distance["linf"]
                    job.pool.add(finding.seed_index, far, candidate_of(finding, job.pair))
        found = measure(job, learnt(job), job.pool, seconds)
    found.save(Path(run))
    return found


def learnt(job: DiffJob) -> Objective:
    """The comparison, after a look at the seeds."""
    assert job.pair is not None
    objective = job.objectives()[0]
    for group in job.seeds.groups:
        batch = {n: t[:256].to(job.pair.device) for n, t in group.batch.items()}
        guarded = run_guarded(job.pair, batch, objective.want)
        if guarded.trace is not None and len(guarded.ran) == len(next(iter(batch.values()))):
            objective.learn(guarded.trace, batch)
    return objective
