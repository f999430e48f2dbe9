"""A saved training, run again or shortened further: `nnfuzz repro` and `nnfuzz shrink` of what `nnfuzz train` found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nnfuzz.errors import UsageError
from nnfuzz.rerun import ReproResult
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.guarded import ProgramFailed
from nnfuzz.training.naming import named
from nnfuzz.training.replay import Retraced, retrace, shorten
from nnfuzz.training.saved import load_training_finding, threads_of
from nnfuzz.training.walk import EXCEPTION, Failure, global_rng_kept


def repro(place: str | Path, program: Any = None) -> ReproResult:
    """Train from the saved weights along the saved batches, and look at the last one.

    program: the file that defines it, or a `Program`; by default the file that it was found in.
    """
    finding = load_training_finding(place, program)
    with as_found(place):
        seen = seen_again(finding, tries=0)
    recorded = f"recorded: {Failure(finding.phase, finding.symptom)} at step {finding.step} (steps count from 0)"
    if seen is None:
        return ReproResult(False, "", [recorded, "seen now: it does not fail"])
    failure, step = seen.failure, len(seen.steps) - 1
    same = (failure.symptom, failure.phase, step) == (finding.symptom, finding.phase, finding.step)
    return ReproResult(same, failure.symptom, [recorded, f"seen now: {failure} at step {step} (steps count from 0)"])


def shrink(place: str | Path, program: Any = None, max_inputs: int = 20_000) -> TrainingFinding:
    """Leave out training steps while it fails in the same way, and save it in place; returns it.

    max_inputs: training steps to spend.
    """
    finding = load_training_finding(place, program)
    with as_found(place):
        seen = seen_again(finding)
        if seen is None:
            raise UsageError(f"{finding.id} does not fail any more, so there is nothing to shrink: see nnfuzz repro")
        seed, state = finding.build_seed, finding.initial_state
        left = max_inputs - seen.made
        steps = shorten(finding.program, seed, state, seen.steps, seen.failure, left)
        shorter = seen if len(steps) == len(seen.steps) else seen_again(finding, steps, tries=0)
        if shorter is None or len(shorter.steps) > len(finding.batches):
            return finding
        site, cause = named(finding.program, shorter)
    if _place(site) != _place(finding.site):  # a shorter way to another failure is another finding
        finding.notes.append(f"a shorter walk was left aside, because it fails elsewhere, at {site}")
        return finding
    finding.site, finding.cause = site, cause
    finding.phase, finding.symptom = shorter.failure.phase, shorter.failure.symptom
    finding.batches, finding.seeds = [s.batch for s in shorter.steps], [s.seed for s in shorter.steps]
    finding.save(place)
    return finding


def seen_again(finding: TrainingFinding, steps: Any = None, tries: int | None = None) -> Retraced | None:
    """The walk of a finding (or other steps from its weights), run up to its failure; None if it does not fail."""
    more = {} if tries is None else {"tries": tries}
    try:
        with global_rng_kept():
            seen = retrace(
                finding.program, finding.build_seed, finding.initial_state, steps or finding.walk, finding.mode, **more
            )
    except (ProgramFailed, RuntimeError, KeyError) as error:
        first = (str(error).splitlines() or [""])[0]
        what = f"{error.what} {error.why}" if isinstance(error, ProgramFailed) else f"{type(error).__name__}: {first}"
        raise _changed(finding, what) from error
    if seen is not None and seen.failure.raised and finding.symptom != EXCEPTION:
        raise _changed(finding, f"loss(model, batch) {seen.failure.raised}")
    return seen


def _changed(finding: TrainingFinding, what: str) -> UsageError:
    return UsageError(
        f"{finding.id} cannot be trained with this program ({what}): "
        "its model or batches have changed since it was found"
    )


@contextmanager
def as_found(place: str | Path) -> Iterator[None]:
    """As many threads as when it was found: sums are taken in another order with another number."""
    before, wanted = torch.get_num_threads(), threads_of(place)
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _place(site: Any) -> Any:
    return site and (site.file, site.line, site.column)
