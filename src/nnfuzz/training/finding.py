"""A failing training: initial weights, the batches that lead there, where and how it fails."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.probe import Site
from nnfuzz.store_files import disk, from_json, replace_directory, write_atomically
from nnfuzz.store_tensors import write_tensors
from nnfuzz.training.program import Batch, Program
from nnfuzz.training.repro import readme, script
from nnfuzz.training.walk import Failure, Mode, Phase, Step


@dataclass(eq=False)
class TrainingFinding:
    """One failure of a training program.

    id:            "T0001", in order of discovery.
    phase:         "forward" (the loss is not finite, or raises) or "backward" (only gradients are not, or do).
    symptom:       "nan", "+inf" or "-inf", of the loss, else of the gradients; "exception".
    mode:          "train", or "eval" where the loss fails with dropout off.
    site:          first bad operation, None if it could not be found.
    cause:         that operation in words, with its operands and the chain back to the inputs; first the exception.
    step:          index of the failing batch in `batches`: the number of training steps before it.
    batches:       what the model is trained on, then the failing batch last. All within the ranges.
    seeds:         of torch's global generator, set before each step's loss (dropout).
    initial_state: state_dict before the first step, from build(build_seed).
    inputs:        the failing batch.
    confirmed:     replayed from the initial weights to the same failure, twice.
    seconds, tried: since the start of the search; training steps made by then.
    steps_found:   length of the walk on which it was found, before it was shortened.
    arm:           the way of searching that found it.
    drawn:         whether noise was drawn from its stream ("drawn") or searched in its range ("searched").
    """

    id: str
    phase: Phase
    symptom: str
    mode: Mode
    site: Site | None
    cause: str
    batches: list[Batch]
    seeds: list[int]
    initial_state: dict[str, Tensor]
    build_seed: int
    confirmed: bool
    seconds: float
    tried: int
    steps_found: int
    arm: str
    program: Program
    natural: str = ""
    drawn: str = "drawn"
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        return len(self.batches) - 1

    @property
    def inputs(self) -> Batch:
        return self.batches[-1]

    @property
    def walk(self) -> list[Step]:
        """The batches with the seeds of their random numbers, the failing one last."""
        return [Step(b, s) for b, s in zip(self.batches, self.seeds, strict=True)]

    def headline(self) -> str:
        """One line: what, where, after how many steps."""
        where = "" if self.site is None else f" at {self.site}".replace(" at raise ", " ")  # of the program's own
        steps = "at once" if self.step == 0 else f"after {self.step} training step{'s' * (self.step != 1)}"
        return f"{self.id} {Failure(self.phase, self.symptom)}{where}, {steps}"

    def about(self) -> dict[str, Any]:
        """What finding.json holds."""
        site = self.site
        return {
            "id": self.id,
            "kind": "training",
            "phase": self.phase,
            "symptom": self.symptom,
            "mode": self.mode,
            "site": None
            if site is None
            else {
                "op": site.op,
                "module": site.module,
                "file": site.file,
                "line": site.line,
                "source": site.source,
                "phase": site.phase,
                "column": site.column,
            },
            "cause": self.cause,
            "step": self.step,
            "seeds": self.seeds,
            "build_seed": self.build_seed,
            "confirmed": self.confirmed,
            "seconds": round(self.seconds, 3),
            "tried": self.tried,
            "steps_found": self.steps_found,
            "arm": self.arm,
            "natural": self.natural,
            "noise": self.drawn,
            "program": None if self.program.path is None else str(self.program.path),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "notes": self.notes,
        }

    def save(self, directory: str | Path) -> Path:
        """Write finding.json, initial_state.safetensors, batches.safetensors, repro.py and README.md into a directory
        that is new, empty, or holds this finding already; `nnfuzz.training.saved` reads them back.

        repro.py needs torch, safetensors and the program's file (copied beside it as program_source.txt for the
        record).
        """
        directory = Path(directory)
        if directory.exists() and any(directory.iterdir()) and not _holds(directory, self.id):
            raise UsageError(
                f"{directory} is not empty, but a finding is never written over another: choose a new directory"
            )
        with disk(f"write {directory}"):
            directory.parent.mkdir(parents=True, exist_ok=True)
            new = directory.with_name(f".{directory.name}.new-{os.getpid()}")
            shutil.rmtree(new, ignore_errors=True)
            try:
                new.mkdir()
                self._write(new, directory)
                if directory.exists() and not any(directory.iterdir()):
                    directory.rmdir()
                replace_directory(new, directory)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        return directory

    def _write(self, new: Path, old: Path) -> None:
        write_tensors(new / "initial_state.safetensors", self.initial_state)
        write_tensors(new / "batches.safetensors", packed(self.batches))
        write_atomically(new / "finding.json", json.dumps(self.about(), indent=2) + "\n")
        write_atomically(new / "repro.py", script(self))
        write_atomically(new / "README.md", readme(self))
        record = old / "program_source.txt"  # as it was when the failure was found, whatever became of it since
        source = record if record.is_file() else self.program.path
        if source is not None and source.is_file():
            shutil.copyfile(source, new / "program_source.txt")


def _holds(directory: Path, id: str) -> bool:
    """Whether a directory holds the training finding of that name."""
    path = directory / "finding.json"
    if not path.is_file():
        return False
    found = from_json(path)
    return found.get("kind") == "training" and found.get("id") == id


def packed(batches: list[Batch]) -> dict[str, Tensor]:
    """Tensors by "step.name"; one that was used before is not stored again, `repro.py` takes the last one of its
    name."""
    out: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for i, batch in enumerate(batches):
        for name, value in batch.items():
            before = last.get(name)
            if before is None or before.shape != value.shape or not torch.equal(before, value):
                out[f"{i:06d}.{name}"] = last[name] = value
    return out


def unpacked(stored: dict[str, Tensor], steps: int) -> list[Batch]:
    """The batches again, step by step; tensors that did not change are shared."""
    by_step: list[Batch] = [{} for _ in range(steps)]
    for key, value in stored.items():
        step, _, name = key.partition(".")
        if not step.isdigit() or int(step) >= steps:
            raise ValueError(f"it has {key!r}, but there are {steps} steps")
        by_step[int(step)][name] = value
    batches: list[Batch] = []
    for changed in by_step:
        batches.append((batches[-1] if batches else {}) | changed)
    return batches
