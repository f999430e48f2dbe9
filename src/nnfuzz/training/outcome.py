"""What a search in training gave, and its directory: run.json and the findings, written as they come."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnfuzz.errors import StoreError, UsageError
from nnfuzz.store_files import disk, from_json, write_atomically
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.plain import Natural

MANIFEST, KIND = "run.json", "training"


@dataclass(eq=False)
class TrainingRun:
    """What a search gave.

    findings: confirmed failures, one per operation. flaky: failures that did not replay (nondeterministic programs).
    natural:  how plain training did beside it. targets: how near each unsafe operation was brought (name, op, start,
    best; <= 0 is reached).
    steps:    training and scout steps made. seconds: wall time. arms: (way of searching, training steps, share of the
    way) each.
    program:  its file, None where it was given in Python. seed: of weights and batches.
    stopped:  "interrupted", "failed" where the program raised, else "". notes: what else is worth knowing.
    saved:    whether it lies in a directory.
    """

    findings: list[TrainingFinding] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    natural: Natural = field(default_factory=Natural)
    targets: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    arms: list[tuple[str, int, float]] = field(default_factory=list)
    program: str | None = None
    seed: int = 0
    stopped: str = ""
    notes: list[str] = field(default_factory=list)
    saved: bool = False

    def summary(self) -> str:
        """A few lines for a terminal."""
        steps = f"{self.steps:,} step{'s' * (self.steps != 1)}"
        if self.findings:
            lines = [f.headline() for f in self.findings]
        else:
            lines = ["Nothing found" if self.steps else "Nothing tried"]
        if self.stopped == "interrupted":
            lines[0] = f"Interrupted{', saved' * self.saved}. {lines[0]}"
        lines.append(f"{steps} in {self.seconds:.1f} s; {self.natural}")
        if not self.steps and not self.stopped:
            lines.append(
                "  try: a longer --max-time; looking at the first batch took all the time, and no step was made"
            )
        elif not self.findings:
            lines += [f"  nearest: {nearness(t)}" for t in self.targets[:3]]
            if not self.targets:
                lines.append(
                    "  nearest: in the loss no operation was seen that batches could bring to an unsafe operand"
                )
        lines += [f"  note: {text}" for text in [*self.notes, *self.flaky]]
        return "\n".join(lines)


def nearness(target: dict[str, Any]) -> str:
    """How near an unsafe operation was brought, in words."""
    left = "it was reached" if target["best"] <= 0 else f"{target['best']:.3g} was left"
    return f"{target['name']}: of a distance of {target['start']:.3g} to the edge of {target['op']}, {left}"


def free_folder(out: str | Path) -> Path:
    """A directory for a run, that is there and empty; UsageError or StoreError where that cannot be."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, but a run is a directory: choose another --out")
    with disk(f"create {folder}"):
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty, but a run is never written over another: choose a new directory")
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_resumable(folder: str | Path) -> None:
    """UsageError where a run of training lies, with what to do instead of going on with it."""
    path = Path(folder) / MANIFEST
    about = from_json(path) if path.is_file() else {}
    if about.get("kind") != KIND:
        return
    seed = about.get("seed")
    again = f"nnfuzz train {about.get('program') or 'FILE.py'} --seed {seed + 1 if isinstance(seed, int) else 1}"
    raise UsageError(
        f"{folder} is a run of nnfuzz train, and such a run cannot be resumed: search again from other weights and "
        f"batches ({again}), or for longer with --max-time"
    )


def give_up(folder: Path) -> None:
    """A directory to which no run came is not left behind."""
    with suppress(OSError):
        folder.rmdir()


def save(run: TrainingRun, folder: Path) -> None:
    """run.json, and each finding that is not there yet."""
    run.saved = True
    for finding in run.findings:
        if not (folder / "findings" / finding.id).exists():
            finding.save(folder / "findings" / finding.id)
    about = {
        "kind": KIND,
        "program": run.program,
        "seed": run.seed,
        "findings": [f.about() for f in run.findings],
        "flaky": run.flaky,
        "natural": str(run.natural),
        "targets": run.targets,
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
        "stopped": run.stopped,
        "notes": run.notes,
    }
    write_atomically(folder / MANIFEST, json.dumps(about, indent=2) + "\n")


def save_at_end(run: TrainingRun, folder: Path) -> None:
    """As `save`; findings are written again, since how plain training did is known only now."""
    for finding in run.findings:
        finding.save(folder / "findings" / finding.id)
    save(run, folder)
