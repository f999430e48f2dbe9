"""``nnfuzz text`` as it is called: what the model prints, where it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from writers import Small

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.text.models import language_model

MODELS = """
import sys

def prints(prompts):
    print("on stdout", len(prompts))
    print("on stderr", file=sys.stderr)
    return [p.upper() for p in prompts]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "seeds.txt").write_text("hello there\na cat.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


WORDS = ["text", "models.py:prints", "--seeds", "seeds.txt", "--objective", "empty", "--max-inputs", "100", "--plain"]


def test_what_the_model_prints_is_in_the_log(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--out", "RUN"]) == 1
    told = capsys.readouterr()
    log = Path("RUN/model.log").read_text()
    assert "on stdout" in log
    assert "on stderr" in log
    assert "on std" not in told.out + told.err
    assert f"note: the model printed {log.count(chr(10)):,} lines: see RUN/model.log\n" in told.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
def test_a_device_that_is_not_here_is_one_sentence(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "small.py").write_text("from writers import Small as make\n")
    for model in ("models.py:prints", "small.py:make"):
        words = [w if w != "models.py:prints" else model for w in WORDS]
        assert main([*words, "--device", "cuda", "--out", "RUN"]) == 2
        assert "the device 'cuda' cannot be used here" in capsys.readouterr().err
        assert not Path("RUN").exists()
    with pytest.raises(nnfuzz.UsageError, match="the device 'cuda' cannot be used here"):
        nnfuzz.fuzz_text(Small(), ["a"], objective="empty", device="cuda")


def test_a_function_has_no_device() -> None:
    with pytest.raises(nnfuzz.UsageError, match=r"so --device meta does not fit: leave it out"):
        language_model(lambda prompts: prompts, device="meta")
