"""``nnfuzz show`` of a run some of whose files are damaged: the rest is shown, the damage is named, the status is 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two findings."""
    path = tmp_path_factory.mktemp("shown") / "RUN"

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.log(x[:, :2] - 0.1) + torch.sqrt(x[:, 2:] - 0.1)

    seeds = torch.full((5, 4), 0.5)
    seeds[0, 0] = seeds[1, 3] = -0.5  # each finding is there from the start
    nnfuzz.find_nans(model, seeds, ranges=(-1, 1), phase="forward", max_inputs=600, max_shrink=50, out=path)
    assert (path / "findings" / "F0002").is_dir()
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "RUN")
    return Path("RUN")


WHOLE = {
    "run.json": "made with nnfuzz",
    "stats.json": "ran       600 inputs",
    "findings/F0001/finding.json": "F0001  ",
    "findings/F0002/finding.json": "F0002  ",
}
"""What is shown from each file."""
BAD: dict[str, bytes | dict[str, Any]] = {
    "cut": b'{"format": 1, "nn',
    "empty": b"",
    "garbage": b"\xff\x00\x9c{",
    "a list": b"[1]",
}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("file", WHOLE)
def test_the_rest_is_shown(run: Path, file: str, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "RUN"]) == 0
    before = capsys.readouterr().out
    assert all(text in before for text in WHOLE.values())

    (run / file).write_bytes(BAD[how])  # type: ignore[arg-type]
    assert main(["show", "RUN"]) == 2
    told = capsys.readouterr()
    assert told.err == ""
    assert [f for f, text in WHOLE.items() if text not in told.out] == [file]
    (line,) = [line for line in told.out.splitlines() if "is damaged" in line]
    assert line.startswith(f"RUN/{file} is damaged (")

    assert main(["show", "RUN", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert len(document["damaged"]) == 1
    assert len(document["findings"]) == (1 if "finding.json" in file else 2)


@pytest.mark.parametrize(
    ("file", "document"),
    [
        ("stats.json", {"yields": [1, 2], "execs_done": 600}),
        ("stats.json", {"execs_done": "many"}),
        ("stats.json", {"yields": {"noise": [1, 2, 3, 4, 5]}}),
        ("run.json", {"context": "here"}),
        ("run.json", {"inputs": 7}),
        ("run.json", {"inputs": [7]}),
        ("run.json", {"settings": 5, "context": {"inputs": 3}}),
    ],
)
def test_documents_that_hold_other_things(
    run: Path, file: str, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / file).write_text(json.dumps(document))
    assert main(["show", "RUN"]) == 2
    told = capsys.readouterr()
    assert told.err == ""
    assert f"RUN/{file} is damaged (" in told.out
    assert "2 findings" in told.out


def test_a_finding_whose_tensors_are_damaged_is_told_without_them(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "findings/F0001/input.safetensors").write_bytes(b"\x80\x04")
    (run / "findings/F0001/outputs.safetensors").unlink()
    for words in (["show", "RUN"], ["show", "RUN/findings/F0001"]):
        assert main(words) == 2
        told = capsys.readouterr().out
        assert "F0001  " in told
        assert "input.safetensors is damaged: it is no safetensors data" in told
        assert "cannot read RUN/findings/F0001/outputs.safetensors: No such file" in told
        assert "of 0 elements" not in told
    assert main(["repro", "RUN/findings/F0001", "--model", "torch:sin"]) == 2  # there is nothing to rerun


def test_a_finding_without_its_facts_is_missed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "findings/F0001/finding.json").unlink()
    (run / "findings/__pycache__").mkdir()  # pytest leaves one
    assert main(["show", "RUN"]) == 2
    told = capsys.readouterr().out
    assert "RUN/findings/F0001 holds no finding.json" in told
    assert "pycache" not in told
    assert "1 finding\n" in told
