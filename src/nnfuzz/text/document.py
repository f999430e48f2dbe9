"""What a text run writes down of itself: its manifest, what a finding remembers of it, what its header says."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nnfuzz
from nnfuzz.findings.finding import Finding
from nnfuzz.report.base import InputRow, RunInfo
from nnfuzz.seeds import SeedGroup
from nnfuzz.store import RunStore
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_tensors import read_tensors, write_tensors
from nnfuzz.text.codec import Characters, unpack
from nnfuzz.text.objectives import Together
from nnfuzz.text.settings import JOB, TextSettings
from nnfuzz.text.setup import Setup
from nnfuzz.text.space import PROMPT


@dataclass
class RunDocument:
    """The facts of one run, for whoever comes back to it."""

    settings: TextSettings
    setup: Setup
    together: Together
    fingerprint: dict[str, Any]

    @property
    def alphabet(self) -> str | None:
        """Of prompts, where it was made from the seeds and is not the model's own."""
        codec = self.setup.codec
        return codec.alphabet if isinstance(codec, Characters) and self.setup.model.codec is None else None

    def manifest(self) -> dict[str, Any]:
        """What run.json holds."""
        context = self.settings.context
        return {
            "nnfuzz": nnfuzz.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "command": context.get("command", [Path(sys.argv[0]).name]),
            "context": context,
            "fingerprint": self.fingerprint,
            "settings": self.settings.to_json(),
            "objectives": [part.spec for part in self.together.parts],
            "alphabet": self.alphabet,
            "unit": "sample",
            "inputs": [vars(self.input_row())],
        }

    def enrich(self, finding: Finding) -> None:
        """What repro needs to know."""
        context = self.settings.context
        finding.details["run"] = {
            "job": JOB,
            "model": context.get("model"),
            "model_b": context.get("model_b"),
            "cwd": context.get("cwd"),
            "objective": finding.details.pop("objective", None),
            "settings": self.settings.to_json(),
            "alphabet": self.alphabet,
            "torch": torch.__version__,
            "fingerprint": self.fingerprint,
        }

    def input_row(self) -> InputRow:
        codec, space = self.setup.codec, self.setup.space
        legal = codec.size if codec.legal is None else len(codec.legal)
        length = f"{space.shortest}..{space.width}"
        return InputRow(PROMPT, (length,), f"{codec.unit}s", "", f"any of {legal:,} {codec.unit}s", "")

    def header(self, out: str | None, *, batch: int, mutators: int) -> RunInfo:
        """What the reader sees when the run begins."""
        settings, target = self.settings, self.setup.target
        return RunInfo(
            title="nnfuzz text",
            target=target.describe(),
            unit=target.unit,
            why=target.why,
            inputs=[self.input_row()],
            seed=settings.seed,
            device=str(target.model.device),
            out=out,
            notes=list(self.setup.notes),
            searched=self.together.searched(),
            max_inputs=settings.max_inputs,
            max_seconds=settings.max_seconds,
            settings={
                "coverage": settings.coverage,
                "gradients": settings.gradients,
                "batch": batch,
                "mutators": mutators,
            },
        )


def save_prompts(store: RunStore, groups: list[SeedGroup]) -> None:
    """The seeds of a run, beside its manifest."""
    folder = store.path / "seeds"
    folder.mkdir(exist_ok=True)
    for n, group in enumerate(groups):
        write_tensors(folder / f"{n}.safetensors", group.batch)
    write_atomically(folder / "index.json", to_json({"groups": [g.index for g in groups]}))


def saved_prompts(run: Path) -> list[list[int]]:
    """The seeds of a run, as ids."""
    found: dict[int, list[int]] = {}
    for n, index in enumerate(from_json(run / "seeds" / "index.json")["groups"]):
        prompts = unpack(read_tensors(run / "seeds" / f"{n}.safetensors")[PROMPT])
        found |= dict(zip(index, prompts, strict=True))
    return [found[i] for i in sorted(found)]
