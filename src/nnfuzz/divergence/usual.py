"""The seeds of the run to which a finding belongs, as its job takes candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.finding import Finding
from nnfuzz.space import Batch
from nnfuzz.store_files import from_json
from nnfuzz.store_seeds import load_seed_groups

if TYPE_CHECKING:
    from nnfuzz.jobs import Job


def usual_seeds(finding: Finding, job: Job) -> list[Batch]:
    """Groups of candidates ``(candidates, ...)`` on the job's device; the finding's own seed where no run is around."""
    whole = job.target.unit == "batch"
    own = {n: t[None] if whole else t for n, t in finding.seed.items()}
    groups = [own]
    run = job.found_in.resolve().parent.parent if job.found_in is not None else None
    if run is not None and (run / "run.json").is_file():
        try:
            saved = load_seed_groups(run, from_json(run / "run.json"))
        except NnfuzzError:  # a run that was moved in parts
            saved = None
        found = [fitted for g in (saved.groups if saved is not None else []) if (fitted := _fitted(g.batch, own))]
        groups = found or groups
    return [{n: t.to(job.target.device) for n, t in g.items()} for g in groups]


def _fitted(batch: Batch, own: Batch) -> Batch | None:
    """Rows as candidates of the finding's shape: as they are, or so many together; None where they do not fit."""
    if set(batch) != set(own):
        return None
    if all(batch[n].shape[1:] == t.shape[1:] for n, t in own.items()):
        return batch
    chunks = {t.shape[1] if t.dim() > 1 else 0 for t in own.values()}
    if len(chunks) != 1 or 0 in chunks:
        return None
    (rows,) = chunks
    count = min(len(t) for t in batch.values()) // rows
    if not count or any(batch[n].shape[1:] != t.shape[2:] for n, t in own.items()):
        return None
    return {n: t[: count * rows].reshape(count, rows, *t.shape[1:]) for n, t in batch.items()}
