"""The command line against the real engine, on networks that take milliseconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnfuzz.cli import main
from nnfuzz.store import RunStore

SOURCE = """\
import time
import torch
from torch import nn

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return torch.log(self.fc(x).softmax(1) - 0.05)

net = Net().eval()
tanh = nn.Tanh()
seeds = torch.rand(6, 4)

def calm(x):
    return x.tanh()

def big(outputs, inputs):
    return outputs[:, 0] > 0.9

def slow(x):
    time.sleep(0.01)
    return x.tanh()

def broken(x):
    raise RuntimeError("wrong shape")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cli_nets.py").write_text(SOURCE)
    return tmp_path


SEARCH = ["--seeds", "cli_nets.py:seeds", "--range", "-30", "30", "--plain", "-n", "2000"]


def test_nan_from_words_to_repro(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "cli_nets.py:net", *SEARCH, "--out", "RUN"]) == 1
    told = capsys.readouterr().out
    assert "looks for NaN and Inf in outputs" in told
    assert "x  float32[4]    -30..30" in told
    assert "where     log" in told
    assert "cli_nets.py:13" in told
    assert "nnfuzz repro RUN/findings/F0001" in told

    assert main(["repro", "RUN/findings/F0001"]) == 1
    assert capsys.readouterr().out.endswith("reproduced\n")

    assert main(["repro", "RUN/findings/F0001", "--model", "cli_nets.py:calm"]) == 0
    assert capsys.readouterr().out.endswith("not reproduced\n")

    assert main(["show", "RUN"]) == 0
    told = capsys.readouterr().out
    assert "model     cli_nets.py:net" in told
    assert "ran       2,000 inputs" in told
    assert "stopped: max-inputs" in told
    assert "F0001" in told

    assert main(["show", "RUN/findings/F0001"]) == 0
    told = capsys.readouterr().out
    assert "input     x  float32[1, 4]" in told
    assert "repro.py" in told

    assert main(["show", "RUN", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stats"]["execs_done"] == 2000
    assert document["findings"][0]["site"]["op"] == "log"


def test_shrink(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "cli_nets.py:net", *SEARCH, "--out", "RUN", "--stop-on-first"]) == 1
    capsys.readouterr()
    assert main(["shrink", "RUN/findings/F0001", "-n", "500"]) == 0
    assert capsys.readouterr().out.endswith("saved in RUN/findings/F0001\n")


def test_quiet_prints_findings_only(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [w for w in SEARCH if w != "--plain"]
    assert main(["nan", "cli_nets.py:net", *words, "-q", "--out", "RUN"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("F0") and "RUN/findings/F0" in line for line in lines)


def test_nothing_found_then_resumed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "cli_nets.py:calm", *SEARCH, "--out", "RUN"]) == 0
    told = capsys.readouterr().out
    assert "Nothing found in 2,000 inputs" in told
    assert "nnfuzz resume RUN --max-inputs 20000" in told
    assert main(["resume", "RUN", "-n", "3000", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "end"
    assert events[-1]["stats"]["execs_done"] == 3000


def test_diff_and_fuzz(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff = ["diff", "cli_nets.py:tanh", "--as", "bf16", "--compare", "allclose:1e-6", "-n", "200"]
    assert main([*diff, "--seeds", "cli_nets.py:seeds", "--plain"]) == 1
    fuzz = ["fuzz", "cli_nets.py:calm", "--objective", "cli_nets.py:big", *SEARCH]
    assert main(fuzz) == 1
    assert Path("nnfuzz-runs/fuzz-cli_nets-calm-1/findings/F0001").is_dir()


def test_a_model_that_fails_on_its_seeds(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "cli_nets.py:broken", *SEARCH]) == 3
    told = capsys.readouterr().err
    assert told.startswith("nnfuzz: error: the model fails on its own seeds: RuntimeError: wrong shape")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--range", "z=0:1"], "ranges names the input 'z', but the inputs are x: use one of these"),
        (["--range", "0:0.001"], "seed 0 is not legal for the input 'x': it holds "),
        (["--mutators", "noize"], "no mutator is called 'noize'"),
        (["--coverage", "logit"], "no coverage is called 'logit'"),
        (["--kind", "x=onehott"], "the input 'x' has the kind 'onehott', but kinds are "),
        (["--eps", "q=1"], "eps names the input 'q'"),
    ],
)
def test_the_engines_own_complaints(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["nan", "cli_nets.py:calm", "--seeds", "cli_nets.py:seeds", "-n", "64", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("nnfuzz: error: ")
    assert message in told
    assert told.count("\n") == 1


def test_a_run_is_not_written_over(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nan", "cli_nets.py:calm", "--seeds", "cli_nets.py:seeds", "-n", "64", "--out", "RUN"]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "RUN" in capsys.readouterr().err


def test_repro_of_a_run_with_several_findings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("F0001", "F0002"):
        (project / "RUN" / "findings" / name).mkdir(parents=True)
        (project / "RUN" / "findings" / name / "finding.json").write_text("{}")
    assert main(["repro", "RUN"]) == 2
    assert capsys.readouterr().err == (
        "nnfuzz: error: RUN is a run with 2 findings (F0001, F0002): name one, RUN/findings/F0001\n"
    )


def test_repro_of_a_damaged_training(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = project / "RUN" / "findings" / "T0001"
    place.mkdir(parents=True)
    (place / "finding.json").write_text('{"kind": "training", "id": "T0001", "symptom": "nan"}')
    for path in ("RUN", "RUN/findings/T0001"):
        assert main(["repro", path]) == 2
        assert capsys.readouterr().err == (
            "nnfuzz: error: RUN/findings/T0001/finding.json is damaged: its 'phase' is None\n"
        )
    assert main(["show", "RUN/findings/T0001"]) == 0
    assert capsys.readouterr().out == "T0001  nan\n"


HASTY = """\
import json, os, signal, sqlite3
import torch

how_often, batches = 2, 3
seeds = torch.rand(6, 4)

def now():
    for run in ("RUN", "my run", "nnfuzz-runs/nan-hasty-net-1"):
        if os.path.exists(run + "/corpus.sqlite"):
            db = sqlite3.connect(run + "/corpus.sqlite")
            try:
                done = [json.loads(row[0])["counters"]["batches"] for row in db.execute("SELECT json FROM state")]
            except sqlite3.OperationalError:
                done = []
            finally:
                db.close()
            return sum(done) >= batches
    return False

def net(x):
    global how_often
    if how_often and now():
        for _ in range(how_often):
            how_often -= 1
            os.kill(os.getpid(), signal.SIGINT)
    return x.tanh().sum() if x.dim() else x
"""


@pytest.mark.parametrize("out", [["--out", "my run"], []])
def test_a_second_ctrl_c_says_what_is_kept(project: Path, out: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hasty.py").write_text(HASTY)
    words = ["nan", "hasty.py:net", "--seeds", "hasty.py:seeds", "-t", "60s", "--plain", "--phase", "forward", *out]
    assert main(words) == 130
    told = capsys.readouterr()
    place = "my run" if out else "nnfuzz-runs/nan-hasty-net-1"
    found = re.fullmatch(
        rf"nnfuzz: error: interrupted at once, without the batch in hand: {place} holds ([\d,]+) inputs and 0 "
        rf"findings; go on with (.*)\n",
        told.err,
    )
    assert found is not None, told.err
    with RunStore.open(place, writable=False) as store:
        state = store.state()
        assert state is not None
        inputs = int(found[1].replace(",", ""))
        assert state["counters"]["inputs"] == inputs > 0
    resume = shlex.split(found[2])
    assert resume == ["nnfuzz", "resume", place]
    assert main([*resume[1:], "-n", str(inputs + 64), "-q"]) == 0


def test_ctrl_c_before_there_is_anything_leaves_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hasty_too.py").write_text(
        HASTY.replace("how_often, batches = 2", "how_often, batches = 1").replace(
            "if how_often and now():", "if how_often:"
        )
    )
    words = ["nan", "hasty_too.py:net", "--seeds", "hasty_too.py:seeds", "--plain", "--out", "RUN"]
    assert main(words) == 130
    assert capsys.readouterr().err == "nnfuzz: error: interrupted before the run began, so nothing was written\n"
    assert not Path("RUN").exists()


def test_ctrl_c_while_looking_at_the_seeds(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hasty_seeds.py").write_text(HASTY.replace("how_often, batches = 2, 3", "how_often, batches = 1, 0"))
    words = ["nan", "hasty_seeds.py:net", "--seeds", "hasty_seeds.py:seeds", "--plain", "--out", "RUN"]
    assert main(words) == 130
    told = capsys.readouterr().err
    assert told == "nnfuzz: error: interrupted before the first batch was saved, so nothing was kept\n"
    assert not Path("RUN").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(project: Path) -> None:
    script = "import sys; from nnfuzz.cli import main; sys.exit(main())"
    words = ["nan", "cli_nets.py:slow", "--seeds", "cli_nets.py:seeds", "-t", "60s", "--out", "RUN", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "status":
                break
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["stats"]["stopped"]) == ("end", "interrupted")
    assert (project / "RUN" / "run.json").is_file()
