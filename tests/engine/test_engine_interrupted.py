"""What an interruption is said to leave behind is what it leaves behind, however early it comes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.interrupt import EARLY
from nnfuzz.report.base import SilentReporter
from nnfuzz.report.summary import summary

MODEL = """
import torch
def f(x):
    return x.exp()
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(MODEL)
    np.savez("s.npz", x=np.random.default_rng(0).uniform(0, 1, (6, 4)).astype(np.float32))
    return tmp_path


def stopping(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 130
    out = capsys.readouterr()
    return out.err.strip().removeprefix("nnfuzz: error: ").removeprefix("nnfuzz: ")


START = ["nan", "m.py:f", "--seeds", "s.npz", "--range", "0:1", "--plain", "--max-inputs", "100"]


@pytest.mark.parametrize("place", [[], ["--out", "r"]])
@pytest.mark.parametrize(
    "where", ["nnfuzz.loading.models.load_model", "nnfuzz.jobs.planning.decide", "nnfuzz.session.save_seed_groups"]
)
def test_before_a_run_there_is_nothing_and_it_is_said_so(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str, place: list[str]
) -> None:
    monkeypatch.setattr(where, stopping)
    assert EARLY in told(capsys, *START, *place)
    assert sorted(p.name for p in desk.iterdir() if p.name != "__pycache__") == ["m.py", "s.npz"]


def test_a_run_that_does_not_go_on_is_as_it_was(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*START, "--out", "r"]) == 0
    before = {p: p.read_bytes() for p in Path("r").rglob("*") if p.is_file() and p.suffix in (".json", ".safetensors")}
    capsys.readouterr()
    monkeypatch.setattr("nnfuzz.jobs.planning.decide", stopping)
    said = told(capsys, "resume", "r", "--max-inputs", "200", "--plain")
    assert "interrupted before the run went on: r is as it was" in said
    assert {p: p.read_bytes() for p in before} == before


def test_other_commands_do_not_speak_of_what_was_written(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*START, "--out", "r"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("nnfuzz.report.show.shown", stopping, raising=False)
    monkeypatch.setattr("nnfuzz.store_files.from_json", stopping)
    said = told(capsys, "show", "r")
    assert said.endswith("interrupted before it was done")
    assert "written" not in said


class Second(SilentReporter):
    """Interrupts when something is reported."""

    def __init__(self, when: str) -> None:
        self.when = when

    def update(self, *_: Any) -> None:
        if self.when == "batch":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    def end(self, *_: Any) -> None:
        if self.when == "end":
            raise KeyboardInterrupt


def exp(x: Tensor) -> Tensor:
    return x.exp()


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("batch", "interrupted at once, without the batch in hand: "),
        ("end", "interrupted after the last batch, without what was to follow: "),
    ],
)
def test_what_the_directory_holds_is_told(when: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        nnfuzz.find_nans(exp, torch.rand(6, 4), max_inputs=4000, out=tmp_path / "r", reporter=Second(when))
    assert str(stop.value).startswith(said)
    assert (tmp_path / "r" / "run.json").is_file()
    with pytest.raises(KeyboardInterrupt, match="nothing was kept, since the run had no directory"):
        nnfuzz.find_nans(exp, torch.rand(6, 4), max_inputs=4000, reporter=Second(when))


def test_only_what_has_a_directory_is_saved() -> None:
    class Once(SilentReporter):
        info: Any = None

        def start(self, info: Any) -> None:
            self.info = info

        def update(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    reporter = Once()
    run = nnfuzz.find_nans(exp, torch.rand(6, 4), max_inputs=5000, reporter=reporter)
    assert run.stats.stopped == "interrupted"
    for path, said in ((None, "Interrupted. Nothing found"), ("RUN", "Interrupted, saved. Nothing found")):
        assert str(summary(reporter.info, run.stats, run.findings, path)[0]).startswith(said)
