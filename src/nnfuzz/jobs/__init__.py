"""The jobs: which target and which objectives each command means, and what it says of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.fingerprint import fingerprint
from nnfuzz.jobs.base import KEPT
from nnfuzz.jobs.base import Job as Job
from nnfuzz.jobs.diff import COPY
from nnfuzz.jobs.diff import DiffJob as DiffJob
from nnfuzz.jobs.planning import Model
from nnfuzz.jobs.planning import plan_for as plan_for
from nnfuzz.jobs.single import FuzzJob, RowsJob
from nnfuzz.jobs.single import NanJob as NanJob
from nnfuzz.settings import Settings


def make_job(settings: Settings, model: Model, model_b: Model | None, seeds: Any) -> Job:
    """The job by its name in the settings, with the fingerprint of its models."""
    kinds: dict[str, type[Job]] = {"nan": NanJob, "fuzz": FuzzJob, "rows": RowsJob}
    if settings.job == "diff":
        job: Job = DiffJob(settings, model, model_b, seeds)
    elif settings.job in kinds:
        job = kinds[settings.job](settings, model, seeds)
    else:
        raise UsageError(f"the job {settings.job!r} is not known: choose one of {', '.join([*kinds, 'diff'])}")
    if job.side.device.type == "meta":
        raise UsageError(
            f"{job.side.name} is on the meta device, which holds shapes and no numbers: make it on the cpu, or move it "
            "with to_empty and load its weights"
        )
    job.fingerprint = fingerprint(settings.context, {"model": model, "model_b": model_b})
    return job


def with_copy(context: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The context of a run with the places of the models that lie in its directory."""
    places = {which: run / name for which, name in {**KEPT, "copy": COPY}.items() if not context.get(which)}
    return {**context, **{which: str(place.resolve()) for which, place in places.items() if place.is_file()}}
