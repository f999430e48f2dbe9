"""What people hand over by mistake or in bad places: one sentence each, or it simply works."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import nnfuzz
from nnfuzz.callform import CallForm
from nnfuzz.cli import glue, main
from nnfuzz.loading import images, load_seeds, objects

SOURCE = """\
import torch
from torch import nn

torch.manual_seed(0)
seeds = torch.rand(6, 4)
net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)).eval()
meta = nn.Linear(4, 3, device="meta")

def log(x):
    return torch.log(x)
"""
NAME = "mödel file.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "päth with späces"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (home / NAME).write_text(SOURCE)
    return home


def words(model: str, *more: str, seeds: str = f"{NAME}:seeds") -> list[str]:
    return ["nan", f"{NAME}:{model}", "--seeds", seeds, "-n", "60", *more]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seed", "99999999999999999999999"], "seed is 99999999999999999999999, but it is a whole number from 0 to"),
        (["--device", "meta"], f"{NAME}:log is on the meta device, which holds shapes and no numbers"),
        (["--out", NAME], f"{NAME} is a file, but a run is a directory: choose another --out"),
        (["--out", f"{NAME}/below"], f"cannot create {NAME}/below: Not a directory"),
    ],
)
def test_one_sentence(project: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("log", *more)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"nnfuzz: error: {message}")
    assert told.count("\n") == 1
    assert sorted(p.name for p in project.iterdir() if p.name != "__pycache__") == [NAME]  # and nothing is left


def test_a_model_without_numbers(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("meta")) == 2
    assert f"{NAME}:meta is on the meta device" in capsys.readouterr().err


class Ascii(io.TextIOWrapper):
    """A terminal of the last century."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", errors="strict", write_through=True)

    def text(self) -> str:
        data = self.buffer.getvalue()  # type: ignore[attr-defined]
        assert isinstance(data, bytes)
        return data.decode("ascii")


def test_a_terminal_without_letters(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*line: str) -> str:
        out, err = Ascii(), Ascii()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        status = main(list(line))
        monkeypatch.undo()
        monkeypatch.chdir(project)
        assert status in (0, 1), err.text()
        return out.text()

    ranges = ("--range", "-1:1", "--phase", "forward")
    assert r"m\xf6del file.py:log" in shown(*words("log", *ranges, "--out", "RÜN", "--plain"))
    assert r"L\u221e" in shown("show", "RÜN")
    for line in (
        ("show", "RÜN", "--json"),
        ("corpus", "info", "RÜN", "--json"),
        ("resume", "RÜN", "-n", "70", "--json"),
    ):
        for document in shown(*line).splitlines():
            json.loads(document)
    assert json.loads(shown("corpus", "info", "RÜN", "--json"))["path"] == "RÜN"


def test_two_runs_that_start_together_do_not_take_one_place(project: Path) -> None:
    with glue.held_place(None, "nan", "a.py:f") as one, glue.held_place(None, "nan", "a.py:f") as two:
        assert (one.name, two.name) == ("nan-a-f-1", "nan-a-f-2")
        (two / "run.json").write_text("{}")
    assert [p.name for p in Path("nnfuzz-runs").iterdir()] == ["nan-a-f-2"]
    with glue.held_place(Path("mine"), "nan", "a.py:f") as named:
        assert named == Path("mine")
        assert not named.exists()


def test_a_place_where_nothing_can_be_made(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("nnfuzz-runs").write_text("a file")
    assert main(words("log")) == 2
    assert "nnfuzz-runs" in capsys.readouterr().err


def test_a_folder_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    for i in range(3):
        Image.new("RGB", (10, 20)).save(tmp_path / f"{i}.png")
    monkeypatch.setattr(images, "MAX_BYTES", 3 * 10 * 20 * 3 * 4)
    assert load_seeds(str(tmp_path)).shape == (3, 3, 20, 10)
    Image.new("L", (2, 2)).save(tmp_path / "3.png")
    assert "the 4 images in the folder" in refused(load_seeds, str(tmp_path))


def named_only(x: Tensor, *, scale: Tensor) -> Tensor:
    return x * scale


class AllNamed(nn.Module):
    def forward(self, *, x: Tensor) -> Tensor:
        return x.exp()


@pytest.mark.parametrize(
    ("model", "seeds", "source"),
    [
        (named_only, (torch.rand(4, 2), torch.rand(4, 2)), "inputs['x'], scale=inputs['scale']"),
        (AllNamed(), torch.rand(4, 2), "x=inputs['x']"),
        (named_only, {"scale": torch.rand(4, 2), "x": torch.rand(4, 2)}, "scale=inputs['scale'], x=inputs['x']"),
    ],
)
def test_parameters_that_must_be_named(model: Any, seeds: Any, source: str) -> None:
    assert CallForm.of(model, seeds).source() == source
    assert nnfuzz.find_nans(model, seeds, max_inputs=32).stats.inputs == 32


def test_a_comparison_is_not_called_an_objective(refused: Any) -> None:
    def one(a: Tensor, b: Tensor) -> bool:
        return True

    told = refused(nnfuzz.diff, torch.sin, torch.cos, torch.rand(4, 2), compare=one, max_inputs=8)
    assert told.startswith("the comparison one answered with shape () for 4 candidates")


def test_a_project_that_has_moved(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("log", "--range", "-1:1", "--out", "RUN", "-q")) == 1
    project.rename(tmp_path / "moved")
    os.chdir(tmp_path)
    objects._LOADED.clear()
    capsys.readouterr()
    for line in (["repro", "moved/RUN/findings/F0001"], ["resume", "moved/RUN", "-n", "70", "-q"]):
        assert main(line) == 2
        assert capsys.readouterr().err == (
            f"nnfuzz: error: there is no file {NAME} (the run was started in {project}, which is gone: give --model)\n"
        )
        assert main([*line, "--model", f"moved/{NAME}:log"]) == 1
        capsys.readouterr()


def test_a_run_made_in_python_says_what_to_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnfuzz.find_nans(torch.log, torch.rand(4, 2), ranges=(-1, 1), max_inputs=64, out=tmp_path / "run")
    assert main(["repro", str(tmp_path / "run")]) == 2
    assert "was made in Python, so it does not know its model: pass model=…, on the command line --model" in (
        capsys.readouterr().err
    )


@pytest.fixture
def run(project: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(words("log", "--range", "-1:1", "--phase", "forward", "--out", "RUN", "-q")) == 1
    capsys.readouterr()
    return Path("RUN")


def in_a_child(line: list[str], before: Any) -> tuple[int, str]:
    """Status and stderr of a command in a fork whose descriptors ``before`` has changed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        status = 99
        try:
            os.dup2(write, 2)
            before()
            for fd, name in enumerate(("stdin", "stdout", "stderr")):
                stream = os.fdopen(fd, "w" if fd else "r", closefd=False) if is_open(fd) else None
                setattr(sys, name, stream)
            status = main(line)
            sys.stderr.flush()
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def nobody_reads() -> None:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)


def full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def closed() -> None:
    for fd in (0, 1):
        os.close(fd)


@pytest.mark.parametrize("line", [["show", "RUN"], ["show", "RUN", "--json"], ["resume", "RUN", "-n", "70", "--plain"]])
def test_a_reader_that_has_gone(run: Path, line: list[str]) -> None:
    assert in_a_child(line, nobody_reads) == (141, "")


def test_an_output_that_takes_nothing(run: Path) -> None:
    status, told = in_a_child(["show", "RUN"], full)
    assert (status, told) == (2, "nnfuzz: error: the output cannot be written: No space left on device\n")


def test_streams_that_are_closed(run: Path) -> None:
    status, told = in_a_child(["resume", "RUN", "-n", "80", "--plain"], closed)
    assert (status, told) == (1, "")
    assert main(["corpus", "info", "RUN"]) == 0  # nothing was printed into the corpus
