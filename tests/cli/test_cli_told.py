"""What a person is told where nothing can be done, or something else than expected: one plain sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nnfuzz
from nnfuzz.checkpoint import _without_folder
from nnfuzz.cli import main
from nnfuzz.nearest import did_you_mean, nearest
from nnfuzz.probe.sites import Site
from nnfuzz.store_files import from_json, to_json

SOURCE = """\
import pdb
import torch

seeds = torch.rand(6, 4)
wide = torch.rand(6, 5)
small = torch.nn.Linear(4, 3)
large = torch.nn.Linear(5, 3)

def log(x):
    return torch.log(x + 0.5)

def stops(x):
    breakpoint()
    return x

def asks(x):
    input("how many? ")
    return x

def debugs(x):
    pdb.Pdb().set_trace()
    return x

def turned(x):
    return -small(x)

def weights():
    return torch.nn.Linear(4, 3)

def volume(x):
    assert x.dim() == 2
    return x.sum() if x.shape[1] == 5 else x[:, 7]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "told_nets.py").write_text(SOURCE)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], line: str, status: int) -> str:
    found = main(line.split())
    out = capsys.readouterr()
    assert found == status, out.out + out.err
    return out.err.removeprefix("nnfuzz: error: ").strip() if status in (2, 3) else out.out


SEARCH = "--seeds told_nets.py:seeds --range -1:1 -n 64 --plain --phase forward"


# --------------------------------------------------------------------------------------------------- near words


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("--sedes", ["--seeds", "--schedule", "--seed", "--as"], ["--seeds"]),
        ("--time", ["--max-time", "--quiet", "--train"], ["--max-time"]),
        ("--epz", ["--eps", "--help"], ["--eps"]),
        ("--foo", ["--fix", "--out", "--eps"], []),
        ("--count", ["--n", "--out"], []),
        ("nett", ["net", "seeds"], ["net"]),
        ("list", ["diff", "text", "explain"], []),
        ("", ["net"], []),
    ],
)
def test_what_is_near_is_suggested_and_nothing_else(word: str, known: list[str], found: list[str]) -> None:
    assert nearest(word, known) == found
    assert bool(did_you_mean(word, known)) == bool(found)


def test_options_and_commands_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "nan m.py:f --foo", 2) == "no such option: --foo (see nnfuzz nan --help)"
    assert said(capsys, "fuz m.py:f", 2) == "no such command 'fuz': did you mean 'fuzz'? (see nnfuzz --help)"
    told = said(capsys, "train t.py --steps 3", 2)
    assert told == "no such option: --steps: did you mean '--max-steps'? (see nnfuzz train --help)"


# -------------------------------------------------------------------------------------------- nothing left to do


def test_a_finding_that_is_the_smallest_already(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, f"nan told_nets.py:log {SEARCH} --out RUN --max-shrink 1 --stop-on-first", 1)
    finding = "RUN/findings/F0001"
    first = said(capsys, f"shrink {finding} -n 5000", 0)
    for _ in range(3):  # until nothing changes
        told = said(capsys, f"shrink {finding} -n 300", 0)
        if "already the smallest" in told:
            break
    assert "F0001 is already the smallest that was found within 300 inputs: it stays as it was (-n tries more)" in told
    assert "already the smallest" not in first


def test_a_limit_that_is_used_up(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, f"nan told_nets.py:log {SEARCH} --out RUN", 1)
    told = said(capsys, "resume RUN --plain", 1)
    assert "nothing is left to do: the run has used 64 inputs and its limit is 64" in told
    assert "for instance nnfuzz resume RUN --max-inputs 640" in told
    assert "nothing is left" not in said(capsys, "resume RUN --plain --max-inputs 129", 1)


# --------------------------------------------------------------------------------------------- which of two models


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("told_nets.py:large told_nets.py:small", "A (told_nets.py:large) refuses the seeds: RuntimeError: "),
        ("told_nets.py:small told_nets.py:large", "B (told_nets.py:large) refuses the seeds: RuntimeError: "),
    ],
)
def test_the_model_that_refuses_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], models: str, told: str
) -> None:
    assert said(capsys, f"diff {models} --seeds told_nets.py:seeds --plain -n 32", 3).startswith(told)


def test_the_ways_to_a_second_model_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "diff m.py:f --seeds s.npy", 2)
    assert "--as fp16|bf16|int8|int8-dynamic|int8-static" in told
    assert "another model as MODEL_B" in told
    assert "both are given" in said(capsys, "diff m.py:f m.py:g --as fp16 --seeds s.npy", 2)


def test_seeds_that_disagree_unchanged_are_explained(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, f"diff told_nets.py:small told_nets.py:turned {SEARCH.replace(' --phase forward', '')}", 1)
    assert re.search(r"note: on 6 of 6 seeds the two disagree, unchanged: .*looser --compare.*preprocessing", told)


def test_seeds_that_fail_unchanged_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("some.npy", np.array([[0.1, 0.2], [-0.9, 0.3], [0.4, 0.4]], np.float32))
    told = said(capsys, "nan told_nets.py:log --seeds some.npy -n 32 --plain --phase forward", 1)
    assert "note: 1 of 3 seeds fails unchanged: that is a finding at distance 0, and the search starts from the" in told


# ------------------------------------------------------------------------------------------------ nobody answers


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stops", "breakpoint() is called, at told_nets.py:13 in stops, and a search does not stop there: take it out"),
        ("asks", "input is read from the terminal, at told_nets.py:17 in asks, and in a search nobody answers"),
        ("debugs", "input is read from the terminal, at told_nets.py:22 in debugs, and in a search nobody answers"),
    ],
)
def test_a_model_that_stops_to_ask(project: Path, capsys: pytest.CaptureFixture[str], name: str, told: str) -> None:
    hook, stdin = sys.breakpointhook, sys.stdin
    assert (
        said(capsys, f"nan told_nets.py:{name} {SEARCH}", 2)
        .splitlines()[-1]
        .removeprefix("nnfuzz: error: ")
        .startswith(told)
    )
    assert (sys.breakpointhook, sys.stdin) == (hook, stdin)


def test_breakpoints_that_are_switched_off(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    said(capsys, f"nan told_nets.py:stops {SEARCH}", 0)


# ----------------------------------------------------------------------------------------------------- places


def test_a_project_that_moved_has_the_findings_that_it_had(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = project / "old"
    old.mkdir()
    (old / "told_nets.py").write_text(SOURCE)
    monkeypatch.chdir(old)
    said(capsys, f"nan told_nets.py:log {SEARCH} --out RUN", 1)
    new = project / "new"
    old.rename(new)
    monkeypatch.chdir(new)
    document = from_json(new / "RUN/findings/F0001/finding.json")
    document["cause"] = document["cause"].replace("@told_nets.py", "@old/told_nets.py")  # as earlier versions had it
    (new / "RUN/findings/F0001/finding.json").write_text(to_json(document))
    said(capsys, f"resume RUN --plain -n 256 --model {new}/told_nets.py:log", 1)
    assert [p.name for p in sorted((new / "RUN/findings").iterdir())] == ["F0001"]


def test_the_key_of_a_site_knows_no_folder() -> None:
    sites = [Site("log", "", f"/{home}/net.py", 3, None, "forward", 4) for home in ("a/b", "c")]
    assert sites[0].key == sites[1].key == "log@net.py:3:4"
    assert _without_folder("forward non-finite at log@b/net.py:3:4[x.y]") == "forward non-finite at log@net.py:3:4[x.y]"
    assert _without_folder("ValueError: no a/b:3 at dot@c/n.py:1") == "ValueError: no a/b:3 at dot@n.py:1"
    assert _without_folder("nan in output") == "nan in output"


# ------------------------------------------------------------------------------------------------------ seeds


def test_seeds_for_a_model_in_torch(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "seeds told_nets.py:weights --input input=float32[1,4]:-1..1 --n 5 -o made.npz", 0)
    assert told.splitlines() == ["input  float32[5, 4]  -1..1, as declared", "saved in made.npz"]
    made = np.load("made.npz")["input"]
    assert made.shape == (5, 4)
    assert (abs(made) <= 1).all()
    said(capsys, "nan told_nets.py:weights --seeds made.npz -n 32 --plain", 0)


def test_seeds_that_are_whole_candidates(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "seeds told_nets.py:volume --input float32[3,5]:{0,2} --n 4 -o made.safetensors", 0)
    assert told.splitlines()[:2] == [
        "input_0  float32[4, 3, 5]  {0, 2}, as declared",
        "4 whole candidates, along an axis in front of the declared ones",
    ]
    said(capsys, "nan told_nets.py:volume --seeds made.safetensors -n 32 --plain --phase forward", 0)


def test_seeds_on_which_the_model_fails_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "seeds told_nets.py:log --input x=float32[1,4]:-2..-1 --n 3", 0)
    assert "the model gives NaN or Inf for 3 of them" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("seeds told_nets.py:log", "told_nets.py:log does not say what inputs it takes, as an ONNX model does: declare "
         "each, for instance nnfuzz seeds told_nets.py:log --input x=float32[1,3,32,32]:0..1"),
        ("seeds told_nets.py:log --input x=float32[1,4]:0..1 --dim n=3", "--range and --dim are for ONNX models: "
         "--input holds shape and range, x=float32[1,3]:0..1"),
        ("seeds told_nets.py:gone --input x=float32[1,4]:0..1", "told_nets.py has no 'gone'; it defines "),
        ("seeds told_nets.py:small --input input=float32[1,9]:0..1", "told_nets.py:small refuses inputs as --input "
         "declares them (RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)  # fmt: skip
def test_seeds_that_cannot_be_made(project: Path, capsys: pytest.CaptureFixture[str], line: str, told: str) -> None:
    assert said(capsys, line, 2).startswith(told)
    assert not list(project.glob("seeds.*"))


def test_a_crash_of_a_run_in_python_says_what_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nnfuzz.find_nans(torch.sin, torch.rand(4, 2), max_inputs=32, out="RUN")
    told = said(capsys, "crash RUN", 2)
    assert told.startswith("RUN was started in Python")
    assert told.endswith("give it, nnfuzz crash RUN --model file.py:make")


# --------------------------------------------------------------------------------------------------- starting up


def test_help_and_version_load_no_framework() -> None:
    code = (
        "import sys; from nnfuzz.cli import main; main(['--help']); main(['--version']); main(['nan', '--help']);"
        "sys.exit(' '.join({'torch', 'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
