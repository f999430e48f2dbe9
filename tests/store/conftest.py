"""Records and runs to store."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nnfuzz.record import Record
from nnfuzz.store import RunStore


def make_record(i: int, parent: int | None = None, value: float | None = None, **change: object) -> Record:
    inputs = {"x": torch.full((3,), float(i) if value is None else value), "n": torch.tensor(i if value is None else 0)}
    vector = np.array([float(i) if value is None else value, 0.0], np.float32)
    batch = 0 if parent is None else i
    mutator = "seed" if parent is None else "noise"
    return Record(i, parent, 0, batch, i * 10, mutator, math.nan, inputs, vector)._replace(**change)  # type: ignore[arg-type]


@pytest.fixture
def record() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A closed run with two seeds and three descendants."""
    with RunStore.create(tmp_path / "run", {"seed": 7}) as store:
        store.commit([make_record(0), make_record(1, seed_index=1)], {"batch": 0, "radius": 0.5})
        store.commit([make_record(2, 0), make_record(3, 2)], {"batch": 1, "radius": 0.5})
        store.commit([make_record(4, 1, seed_index=1, score=2.5)], {"batch": 2, "radius": 0.5})
    return tmp_path / "run"


@pytest.fixture
def child() -> Callable[..., subprocess.Popen[str]]:
    """Starts Python source in another process, its output a pipe."""

    def start(source: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", source, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start
