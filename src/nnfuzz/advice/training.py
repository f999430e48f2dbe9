"""Why a training fails, and what helps: each remedy is tried by training along the saved walk with it in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nnfuzz.advice.advise import advise
from nnfuzz.advice.patching import Repair, patched
from nnfuzz.advice.telling import told_operation, told_remedies
from nnfuzz.advice.verify import Case, Check
from nnfuzz.training.again import as_found, seen_again
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.naming import failing_step
from nnfuzz.training.replay import retrace
from nnfuzz.training.saved import load_training_finding
from nnfuzz.training.walk import Walk, global_rng_kept, seeded

PLAIN = 10
"""Steps of plain training whose losses must agree."""
AGREEMENT = 1e-3
"""Of those losses, relative: rounding grows from step to step, most where an optimizer divides by small numbers."""
PATIENCE = 2000
"""Training steps that all remedies together may take along the saved walk; the first is always taken along it."""


def explain_training(place: str | Path, program: Any = None) -> str:
    """What is known of a training finding, in words, with remedies that were tried on its whole walk.

    program: the file that defines it, or a `Program`; by default the file that it was found in.
    """
    finding = load_training_finding(place, program)
    with as_found(place), global_rng_kept():
        return "\n".join(_told(finding))


def _told(finding: TrainingFinding) -> list[str]:
    lines = [finding.headline(), f"found by: {finding.arm}, on a walk of {finding.steps_found} steps"]
    lines += [finding.natural] if finding.natural else []
    seen = seen_again(finding, tries=0)
    if seen is None:
        return [*lines, "", "trained again here, it does not fail (nnfuzz repro)"]
    step, args = failing_step(finding.program, seen)
    trial = _Trial(finding)
    case = Case(step, args, backward=seen.failure.phase == "backward", plain=trial.plain, walk=trial.walk)
    try:
        bad = case.bad()
    except Exception:  # a gradient that raises, behind a loss that does not
        return [*lines, "", *finding.cause.splitlines()]
    if bad is None:
        return [*lines, "", "trained again, it fails, but no operation goes from finite numbers to others"]
    lines += ["", *told_operation(bad, "module"), "", *told_remedies(advise(case, bad), code=True)]
    return [*lines, "", *finding.notes] if finding.notes else lines


class _Trial:
    """Trains the repaired program: plainly beside the original, and along the walk that failed."""

    def __init__(self, finding: TrainingFinding) -> None:
        self._finding = finding
        self._spent = 0
        self._expected: list[float] | None = None

    def plain(self, repairs: Sequence[Repair]) -> Check:
        """Losses of plain training on natural batches agree with those of the program as it is."""
        if self._expected is None:
            self._expected = self._losses(())
        worst = 0.0
        for i, (a, b) in enumerate(zip(self._expected, self._losses(repairs), strict=False)):
            gap = abs(a - b) / max(abs(a), 1e-3)
            if not gap <= AGREEMENT:
                return Check("plain training", False, f"plain training differs at step {i}: loss {b:.6g}, not {a:.6g}")
            worst = max(worst, gap)
        said = f"{len(self._expected)} steps of plain training give the same losses"
        return Check("plain training", True, f"{said} (within {worst:.1g}, tolerance {AGREEMENT:g})")

    def walk(self, repairs: Sequence[Repair]) -> Check | None:
        """The saved walk stays finite, losses and gradients; None when that was tried often enough already."""
        finding = self._finding
        length = len(finding.batches)
        if self._spent and self._spent + length > PATIENCE:
            return None
        self._spent += length
        program = finding.program.with_loss(patched(finding.program.loss, repairs))
        seen = retrace(program, finding.build_seed, finding.initial_state, finding.walk, finding.mode, tries=0)
        if seen is not None:
            return Check("walk", False, f"on the saved walk still {seen.failure} at step {len(seen.steps) - 1}")
        steps = f"all {length} steps" if length > 1 else "the one step"
        return Check("walk", True, f"{steps} of the saved walk give finite losses and gradients")

    def _losses(self, repairs: Sequence[Repair]) -> list[float]:
        """Of plain training, up to the first that is not finite."""
        finding = self._finding
        program = finding.program
        if repairs:
            program = program.with_loss(patched(program.loss, repairs))
        walk = Walk.from_state(program, finding.build_seed, finding.initial_state)
        losses: list[float] = []
        seeded(finding.build_seed)
        for i, batch in enumerate(islice(iter(program.batches(finding.build_seed)), PLAIN)):
            failure, _ = walk.train({k: v.clone() for k, v in batch.items()})
            if failure is not None or not math.isfinite(walk.loss):
                break
            losses.append(walk.loss)
            seeded(finding.build_seed + i + 1)
        return losses
