"""A finding that is its seed has nothing to shrink, and that alone is said; a stale note is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.findings.shrink import Shrinker
from nnfuzz.space import InputSpace

QUICK: dict[str, Any] = {"max_inputs": 400, "max_seconds": None, "phase": "forward"}


def root(x: Tensor) -> Tensor:
    return torch.sqrt(0.9 - x)


def test_shrinking_a_seed_tries_nothing_and_is_complete() -> None:
    asked: list[Any] = []
    space, batch = InputSpace({}), {"x": torch.zeros(1, 3)}
    anchor: Any = type("Anchor", (), {"values": {"x": torch.zeros(1, 3)}})()

    def fails(candidates: Any) -> Tensor:
        asked.append(candidates)
        return torch.ones(1).bool()

    shrinker = Shrinker(space, anchor, fails, 100, lambda: True)
    assert shrinker.shrink(batch) is batch
    assert shrinker.complete
    assert not asked


def test_a_finding_that_is_its_seed(tmp_path: Path) -> None:
    run = nnfuzz.find_nans(root, torch.tensor([[0.1, 0.2], [0.3, 0.95]]), max_inputs=1, max_seconds=None)
    finding = next(f for f in run.findings if f.distance["linf"] == 0)
    assert not any("stopped early" in note for note in finding.notes)
    place = finding.save(tmp_path / finding.id)
    before = {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()}
    assert nnfuzz.shrink(place, model=root).distance["linf"] == 0
    assert {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} == before


def test_the_command_says_so_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("import torch\n\ndef root(x):\n    return torch.sqrt(0.9 - x)\n")
    numpy.save("s.npy", torch.tensor([[0.1, 0.2], [0.3, 0.95]]).numpy())
    main(["nan", "model.py:root", "--seeds", "s.npy", "-n", "1", "--out", "run"])
    capsys.readouterr()
    assert main(["shrink", "run/findings/F0001"]) == 0
    assert capsys.readouterr().out == "F0001 is seed 1 as it was given: there is nothing to shrink\n"


def test_shrunk_to_the_end_it_has_not_stopped_early(tmp_path: Path) -> None:
    run = nnfuzz.find_nans(root, torch.rand(4, 2) / 2, ranges=(0.0, 1.0), max_shrink=30, **QUICK)
    (finding,) = run.findings
    assert any("stopped early" in note for note in finding.notes)
    place = finding.save(tmp_path / finding.id)
    assert not any("stopped early" in note for note in nnfuzz.shrink(place, model=root).notes)
