"""The benchmark's own bookkeeping: what is kept of a file of results, and what counts as the right operation."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

NUMERICS = Path(__file__).resolve().parents[2] / "benchmarks" / "numerics"
sys.path.insert(0, str(NUMERICS))

import bench  # noqa: E402
import judge  # noqa: E402
import tables  # noqa: E402

FOUND = {
    "found": [
        {"op": "log", "right": True, "seconds": 1.5, "steps": 3, "tried": 9, "symptom": "nan", "phase": "forward"}
    ],
    "seconds": 2.0,
    "expected": "log",
}


@pytest.fixture
def ran(monkeypatch):
    """Subjects that were really run, in order."""
    seen = []

    def child(stem, args, seed):
        seen.append((stem, seed))
        return {"error": "killed"} if stem == "S14" else FOUND

    monkeypatch.setattr(bench, "child", child)
    return seen


def arguments(path, **more):
    given = {"rule": "ours", "seconds": 60.0, "seed": 0, "seeds": 2, "stable": False, "all": False, "cpu": False}
    return SimpleNamespace(**{**given, "jobs": 1, "save": path, **more})


def test_results_are_saved_as_they_come_and_not_run_again(tmp_path, ran, capsys):
    path = tmp_path / "new" / "r.jsonl"
    assert bench.table(["S10", "S14"], arguments(path)) == 0
    assert ran == [("S10", 0), ("S10", 1), ("S14", 0), ("S14", 1)]
    with path.open("a") as file:
        file.write('{"stem": "S18", "seed": 0, "ru')  # cut off by a kill
    ran.clear()
    bench.table(["S10", "S14", "S18"], arguments(path, seeds=1))
    assert ran == [("S14", 0), ("S18", 0)]  # the error and what is missing
    ran.clear()
    bench.table(["S10"], arguments(path, seconds=120.0, seeds=1))
    bench.table(["S10"], arguments(path, rule="grist", seeds=1))
    assert ran == [("S10", 0), ("S10", 0)]  # another limit, another rule
    assert "with the right operation" in capsys.readouterr().out


def test_a_stable_form_that_is_reported_fails(tmp_path, ran):
    assert bench.table(["S10"], arguments(tmp_path / "r", stable=True)) == 1


def test_tables_count_each_column(tmp_path, ran):
    path = tmp_path / "r.jsonl"
    bench.table(["S10", "S18"], arguments(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    missing = {**rows[0], "stem": "S19", "found": [], "targets": [{"op": "log", "start": 9.0, "best": 2.0}]}
    other = {**rows[0], "rule": "grist", "other": {"found": False, "steps": 7, "seconds": 60.0, "near": 1.0}}
    del other["found"]
    text = "\n".join(tables.lines([*rows, missing, other], ["S10", "S18", "S19"]))
    assert "| S10 | nan forward at log | 1.5 s, 3 | 1.5 s, 3 | no (7) |" in text
    assert "no, log 9 → 2" in text
    assert "seed 0: 2 of 3 found, 2 with the right operation, median 1.50 s" in text
    assert "GRIST's rule: 0 of 1 found" in text


@pytest.mark.parametrize(
    ("expected", "op", "phase", "right"),
    [
        ("log", "log", "forward", True),
        ("log", "div", "backward", True),
        ("log", "div", "forward", False),
        ("div by clamp(1e-16)", "div", "forward", True),
        ("matmul", "mm", "forward", True),
        ("exp", "log", "forward", False),
        ("exp", None, None, False),
    ],
)
def test_right(expected, op, phase, right):
    assert judge.right(expected, op, phase) is right


def test_every_subject_is_of_one_kind():
    kinds = [set(judge.subjects(k)) for k in ("training", "function", "report")]
    assert set(judge.subjects()) == set().union(*kinds)
    assert sum(map(len, kinds)) == len(judge.subjects())
    assert len(kinds[0]) == 25
