"""A resume that has nothing left to do writes nothing, and tells the run as it lies on disk."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.interrupt import EARLY
from nnfuzz.leftover import AFTER, longer
from nnfuzz.stats import Stats
from nnfuzz.store import RunStore
from nnfuzz.store_files import from_json

MODELS = """\
import torch

seeds = torch.rand(6, 4)

def log(x):
    return torch.log(x + 0.5)

def calm(x):
    print("said by the model")
    return x.tanh()

def never(x):
    return x / 0

def upper(prompts):
    return [p.upper() for p in prompts]

def mute(prompts):
    return ["" for p in prompts]
"""
SEARCH = "--seeds left_nets.py:seeds --plain --out RUN --phase forward"
WIDE = f"{SEARCH} --range -1:1"
TEXT = "--seeds seeds.txt --plain --out RUN --max-new 8"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "left_nets", raising=False)
    Path("left_nets.py").write_text(MODELS)
    Path("seeds.txt").write_text("hello there\na cat.\n")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], line: str, status: int) -> str:
    capsys.readouterr()
    assert main(line.split()) == status
    told = capsys.readouterr()
    return " ".join((told.out + told.err).split())


def on_disk() -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path("RUN").rglob("*") if p.is_file() and p.suffix[:7] != ".sqlite"}


@pytest.mark.parametrize(
    ("begin", "more", "status", "unit"),
    [
        (f"nan left_nets.py:log {WIDE} -n 2000", "-n 2500", 1, "input"),
        (f"nan left_nets.py:calm {WIDE} -n 2000", "-n 2500", 0, "input"),
        (f"text left_nets.py:upper {TEXT} --objective words:zebra -n 70", "-n 190", 0, "prompt"),
        (f"text left_nets.py:mute {TEXT} --objective empty -n 70", "-n 190", 1, "prompt"),
    ],
)
def test_it_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], begin: str, more: str, status: int, unit: str
) -> None:
    said(capsys, begin, status)
    said(capsys, f"resume RUN --plain {more}", status)
    before = on_disk()
    ran, limit = int(more[3:]), int(begin.split()[-1])
    assert from_json(Path("RUN/stats.json"))["execs_done"] == ran
    told = said(capsys, "resume RUN --plain", status)
    assert on_disk() == before
    assert f"nothing is left to do: the run has used {ran:,} {unit}s and its limit is {limit:,}" in told
    assert re.search(rf"(finding|Nothing found) in {ran:,} inputs", told)
    suggested = set(re.findall(r"nnfuzz resume RUN (--max-inputs \d+)", told))
    assert suggested == {f"--max-inputs {10 * ran}"}  # of the note, and of what a run without findings ends with
    with RunStore.open("RUN", writable=False) as store:
        counts = {f.id: f.count for f in store.findings()}
    done = nnfuzz.resume("RUN")
    assert {f.id: f.count for f in done.findings} == counts
    assert (done.stats.inputs, done.stats.stopped) == (ran, "max-inputs")
    assert on_disk() == before


def test_a_first_finding_and_seeds_that_all_fail(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, f"nan left_nets.py:log {WIDE} -n 2000 --stop-on-first", 1)
    before = on_disk()
    assert "the run was to end at its first finding, which it has" in said(capsys, "resume RUN --plain", 1)
    assert on_disk() == before
    said(capsys, f"nan left_nets.py:never {WIDE.replace('RUN', 'RUN/other')} -n 2000", 1)
    told = said(capsys, "resume RUN/other --plain", 1)
    assert "nothing is left to do: every seed fails unchanged" in told


def test_the_mark_of_a_kill_outlives_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, f"nan left_nets.py:calm {WIDE} -n 2000", 0)
    stats = Path("RUN/stats.json")
    stats.write_text(stats.read_text().replace('"max-inputs"', '""'))  # as a kill leaves it
    for _ in range(2):
        told = said(capsys, "resume RUN --plain", 0)
        assert re.search(r"in batch \d+ without a word: .* process down, nnfuzz crash RUN finds the input", told)
    assert "ran through, one candidate after the other" in said(capsys, "crash RUN", 0)
    told = said(capsys, "resume RUN --plain -n 2100", 0)
    assert "it does so again now, and nnfuzz crash RUN then finds the input" in told
    assert "without a word" not in said(capsys, "resume RUN --plain -n 2200", 0)


def test_what_follows_the_last_batch_is_left_to_do(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("nnfuzz.jobs.base.Job.afterwards", stopping)
        told = said(capsys, f"nan left_nets.py:calm {WIDE} -n 500", 130)
    assert "interrupted after the last batch, without what was to follow" in told
    assert EARLY not in told
    assert from_json(Path("RUN/stats.json"))["stopped"] == AFTER
    assert "nothing is left" not in said(capsys, "resume RUN --plain", 0)
    assert from_json(Path("RUN/stats.json"))["stopped"] == "max-inputs"
    assert "nothing is left" in said(capsys, "resume RUN --plain", 0)


def test_the_numbers_come_back() -> None:
    stats = Stats(seed=3, target="t", unit="sample", inputs=7, batches=2, seconds=1.5, raw_rate=9.0, stopped="max-time")
    assert Stats.from_json(stats.to_json()).to_json() == stats.to_json()
    assert Stats.from_json({"execs_done": "many", "yields": None}).inputs == 0


def test_what_is_suggested_is_larger_than_what_was_used() -> None:
    assert longer(2000, None, 2500, 1.0) == "--max-inputs 25000"
    assert longer(None, 60.0, 2500, 60.3) == "--max-time 10m"
    assert longer(None, 1.0, 9, 600.0) == "--max-time 100m"
