"""Commands beside the searches (train, corpus, demo): what they call is replaced by something that notes its words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nnfuzz.cli import main


def test_train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from nnfuzz import training

    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}

    def run_program(program: Any, **given: Any) -> Any:
        assert callable(given.pop("progress"))
        seen.update(given, program=program)
        finding = SimpleNamespace(id="T0001", about=lambda: {"id": "T0001", "seconds": float("inf")})
        facts = {"seconds": 1.0, "steps": 3, "flaky": [], "stopped": ""}
        return SimpleNamespace(findings=[finding], summary=lambda: "T0001 nan", **facts)

    monkeypatch.setattr(training, "load_program", str)
    monkeypatch.setattr(training, "run_program", run_program)
    assert main(["train", "loop.py", "-n", "2k", "--seed", "3", "--keep-going"]) == 1
    place = Path("nnfuzz-runs/train-loop-1")
    assert seen == {
        "program": "loop.py", "max_steps": 2000, "max_seconds": None, "seed": 3, "out": place, "stop_on_first": False,
    }  # fmt: skip
    assert capsys.readouterr().out == f"T0001 nan\n  rerun     nnfuzz repro {place}/findings/T0001\n"
    assert main(["train", "loop.py", "--json"]) == 1
    assert seen["max_seconds"] == 60.0
    assert '"seconds": "inf"' in capsys.readouterr().out


def test_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nnfuzz import corpus_tools

    def note(*args: Any) -> dict[str, Any]:
        seen.append(args)
        for name in "CD":
            Path(name, "run.json").write_text('{"command": ["nnfuzz", "rows", "m.py:f", "-s", "x.npz"]}')
        return {}

    seen: list[Any] = []
    monkeypatch.chdir(tmp_path)
    for name in "ABCD":
        Path(name).mkdir()
    for name in "AB":
        Path(name, "run.json").write_text("{}")
    monkeypatch.setattr(corpus_tools, "info", lambda *a: {"entries": 5, "best": float("nan")})
    monkeypatch.setattr(corpus_tools, "merge", note)
    monkeypatch.setattr(corpus_tools, "minimise", note)
    assert main(["corpus", "info", "A"]) == 0
    assert capsys.readouterr().out == "entries  5\nbest     NaN\n"
    assert main(["corpus", "info", "A", "--json"]) == 0
    assert capsys.readouterr().out == '{"entries": 5, "best": "nan"}\n'
    assert main(["corpus", "merge", "C", "A", "B"]) == 0
    Path("D", "run.json").unlink()
    assert main(["corpus", "min", "A", "D", "--radius", "0.5"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "use it with  nnfuzz rows m.py:f --seeds C"
    assert seen == [(Path("C"), [Path("A"), Path("B")]), (Path("A"), Path("D"), 0.5)]


def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nnfuzz import demo

    def run(out: Path, *, reporter: Any, say: Any, max_seconds: float) -> list[Any]:
        say(f"{out} {max_seconds}")
        assert hasattr(reporter(), "update")
        return [SimpleNamespace(findings=[1], stats=SimpleNamespace(stopped="max-time"))]

    monkeypatch.setattr(demo, "run", run)
    assert main(["demo", "-t", "5s"]) == 0
    assert capsys.readouterr().out == "nnfuzz-runs/demo 5.0\n"
