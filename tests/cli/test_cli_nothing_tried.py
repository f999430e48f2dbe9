"""A run whose whole time went into its seeds has shown nothing: it must not end as if nothing was wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from nnfuzz.cli import main

MODELS = """\
import time
import torch

seeds = torch.rand(6, 4)

def slow(x):
    time.sleep(0.05)
    return x.tanh()

def none(outputs, inputs):
    return torch.zeros(len(outputs), dtype=torch.bool)

def broken(x):
    return slow(x) / 0

def near(x):
    return slow(x) + 1e-7

def writes(prompts):
    time.sleep(0.05)
    return [p.upper() for p in prompts]
"""
ARRAYS = "--seeds tried_nets.py:seeds --plain --out RUN"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tried_nets", raising=False)
    Path("tried_nets.py").write_text(MODELS)
    Path("seeds.txt").write_text("hello there\na cat.\n")


@pytest.mark.parametrize(
    "line",
    [
        f"nan tried_nets.py:slow {ARRAYS}",
        f"diff tried_nets.py:slow tried_nets.py:near {ARRAYS}",
        f"fuzz tried_nets.py:slow --objective tried_nets.py:none {ARRAYS}",
        f"rows tried_nets.py:slow {ARRAYS}",
        "text tried_nets.py:writes --seeds seeds.txt --plain --out RUN --objective words:zebra --max-new 9",
    ],
)
def test_the_time_was_up(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line.split(), "--max-time", "0.02s"]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(
        r"nnfuzz: error: the time was up after \d+\.\d s, all of which went into looking at \d seeds? \(\d+\.\d s of "
        r"it in the model\), so that no other (input|prompt) was tried: give a longer --max-time \(max_seconds\), .*\n",
        told,
    ), told
    assert not Path("RUN").exists()  # it does not stand in the way of the longer run


def test_seeds_that_fail_are_findings_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"nan tried_nets.py:broken {ARRAYS} --max-time 0.02s".split()) == 1
    assert Path("RUN/findings/F0001").is_dir()
