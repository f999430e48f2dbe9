"""What a text run writes down of itself: its manifest, what a finding remembers of it, what its header says."""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nnfuzz
from nnfuzz.errors import UsageError
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

KNOWN = 4096
"""Ids of a vocabulary whose texts are looked at to see whether it is the same."""


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

    @cached_property
    def ids(self) -> dict[str, Any]:
        """What the ids of prompts mean, so that a model for which they mean something else is noticed."""
        codec = self.setup.codec
        pieces = codec.alphabet if isinstance(codec, Characters) else codec.pieces(range(min(codec.size, KNOWN)))
        text = "\0".join(pieces)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return {"unit": codec.unit, "size": codec.size, "digest": digest}

    def check_ids(self, then: dict[str, Any] | None, place: str) -> None:
        """Raises ``UsageError`` when what ``place`` holds was written in other ids."""
        now = self.ids
        if then is None or then == now:
            return
        units = [f"{of['size']:,} {of['unit']}s" for of in (then, now)]
        how = f"{units[0]} then, {units[1]} now" if units[0] != units[1] else f"{units[0]}, but not the same ones"
        raise UsageError(
            f"the prompts of {place} are kept as ids, and these have another meaning for this model ({how}): give the "
            "model as it was, or begin a new run"
        )

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
            "ids": self.ids,
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
            "ids": self.ids,
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
