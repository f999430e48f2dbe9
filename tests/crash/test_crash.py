"""A model that takes its process down: the input is found, kept, and the run goes on behind it."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.crash import find, worker
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.findings.save import load_finding
from nnfuzz.report.apart import last_words
from nnfuzz.store import RunStore

SOURCE = """\
import os, signal
import torch

seeds = torch.rand(6, 4)

def die():
    os.kill(os.getpid(), signal.SIGSEGV)

def row(x):
    if bool((x[:, 0] > 2.5).any()):
        die()
    return x.tanh()

def loss(x):
    if float(x[0, 0].detach()) > 2.5:
        os.abort()
    return x.tanh().sum()

def company(x):
    if len(x) > 6:
        die()
    return x.tanh()

def at_once(x):
    if os.path.exists("RUN/corpus.sqlite"):
        die()
    return x.tanh()

def calm(x):
    return x.tanh()
"""
WORDS = ["--seeds", "crash_nets.py:seeds", "--range", "-3:3", "-n", "3000", "--phase", "forward", "-q", "--out", "RUN"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(find, "_run", forked)
    (tmp_path / "crash_nets.py").write_text(SOURCE)
    return tmp_path


def in_a_child(what: Any) -> tuple[str, str]:
    """``(signal, stderr)`` of a fork that does it: a process of its own, without the seconds that torch takes."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            os.dup2(said.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            status = 70
            try:
                status = what() or 0
            except SystemExit as leave:
                status = int(leave.code or 0)
            except BaseException as error:
                os.write(2, repr(error).encode())
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        text = said.read().decode()
    assert status != 70, text
    return (signal.Signals(-status).name if status < 0 else ""), text


def forked(*words: str, cwd: str | None) -> tuple[str, str]:
    def run() -> int:
        os.chdir(cwd or ".")
        return worker.main(list(words))

    return in_a_child(run)


@pytest.mark.parametrize(
    ("model", "died"), [("row", "SIGSEGV"), pytest.param("loss", "SIGABRT", marks=pytest.mark.slow)]
)
def test_the_input_is_found_and_the_run_goes_on(
    project: Path, model: str, died: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = ["nan", f"crash_nets.py:{model}", *WORDS]
    assert in_a_child(lambda: main(nan))[0] == died
    with RunStore.open("RUN", writable=False) as store:
        before = (store.state() or {})["counters"]["batches"]

    assert main(["crash", "RUN"]) == 1
    told = capsys.readouterr().out
    assert f"the process died of {died} in batch {before + 1}" in told
    assert "F0001  confirmed, saved in RUN/findings/F0001\n" in told
    finding = load_finding("RUN/findings/F0001")
    assert (finding.symptom, finding.cause) == ("crash", f"{died} in batch {before + 1}")
    assert float(finding.inputs["x"].reshape(-1, 4)[0, 0]) > 2.5
    assert finding.inputs["x"].shape == ((1, 4) if model == "row" else (6, 4))
    assert 0 < finding.distance["linf"] < 6

    assert main(["repro", "RUN/findings/F0001"]) == 1
    assert f"died of {died}\nreproduced\n" in capsys.readouterr().out
    for command in ("shrink", "explain"):
        assert main([command, "RUN/findings/F0001"]) == 2
        assert "F0001 takes the whole process down: only nnfuzz repro" in capsys.readouterr().err
    assert main(["show", "RUN"]) == 0
    told = capsys.readouterr().out
    assert f"crash: {died} in batch" in told
    assert "stopped: crash" in told
    with RunStore.open("RUN", writable=False) as store:
        assert (store.state() or {})["counters"]["batches"] == before + 1

    (project / "crash_nets.py").write_text(SOURCE.replace("> 2.5", "> 25"))  # mended
    done = in_a_child(lambda: main(["resume", "RUN", "-n", "500", "--plain"]))
    assert done[0] == ""
    test = in_a_child(lambda: pytest.main(["-q", "-p", "no:cacheprovider", "RUN/findings/F0001/test_finding.py"]))
    assert test[0] == ""


def test_only_together(project: Path) -> None:
    nan = ["nan", "crash_nets.py:company", "--no-gradients", *WORDS]
    assert in_a_child(lambda: main(nan))[0] == "SIGSEGV"
    finding, said = find.find_crash("RUN")
    assert finding is not None, said
    assert finding.notes == ["no candidate of its batch crashed by itself: the input holds all of them"]
    assert len(finding.inputs["x"]) > 6
    assert finding.status == "confirmed"


def test_while_gradients_are_followed(project: Path) -> None:
    nan = ["nan", "crash_nets.py:company", *WORDS]
    assert in_a_child(lambda: main(nan))[0] == "SIGSEGV"
    finding, said = find.find_crash("RUN")
    assert finding is None
    assert said.endswith("while gradients were followed, of which there is no input to keep: nnfuzz resume goes on "
                         "behind that batch")  # fmt: skip
    with RunStore.open("RUN", writable=False) as store:
        assert (store.state() or {})["counters"]["batches"] == 1


def test_the_seeds_themselves(project: Path) -> None:
    nan = ["nan", "crash_nets.py:at_once", *WORDS]
    assert in_a_child(lambda: main(nan))[0] == "SIGSEGV"
    finding, said = find.find_crash("RUN")
    assert finding is None or finding.distance["linf"] == 0
    assert "died of SIGSEGV" in said


def test_nothing_crashes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "crash_nets.py:calm", *WORDS]) == 0
    assert main(["resume", "RUN", "-n", "3100", "--plain"]) == 0
    assert "without a word" not in capsys.readouterr().out
    stats = Path("RUN/stats.json")
    stats.write_text(stats.read_text().replace('"max-inputs"', '""'))  # as a kill leaves it
    Path("RUN/model.log").write_text("odd\nFatal Python error: Segmentation fault\n\nCurrent thread …\n")
    assert main(["resume", "RUN", "-n", "3200", "--plain"]) == 0
    told = capsys.readouterr().out
    assert (
        "without a word (Segmentation fault): if it was the model that took the process down, it does so again now, "
        "and nnfuzz crash RUN then finds the input" in told
    )
    with RunStore.open("RUN", writable=False) as store:
        before = store.state()
    assert main(["crash", "RUN"]) == 0
    assert "the last session ended by itself (max-inputs)" in capsys.readouterr().out
    stats.write_text(stats.read_text().replace('"max-inputs"', '""'))
    assert main(["crash", "RUN"]) == 0
    assert "ran through, one candidate after the other" in capsys.readouterr().out
    with RunStore.open("RUN", writable=False) as store:
        assert store.state() == before


def test_what_cannot_be_looked_for(tmp_path: Path) -> None:
    nnfuzz.find_nans(torch.sin, torch.rand(4, 2), max_inputs=32, out=tmp_path / "run")
    with pytest.raises(
        Unsupported,
        match=r"was started in Python.*: write a function that makes it into a file and give it, nnfuzz crash .* --mod",
    ):
        find.find_crash(tmp_path / "run")


def test_words_of_the_dying() -> None:
    said = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        f'  File "{Path(os.__file__).parent}/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/u/net.py", line 7 in forward\n'
        '  File "/home/u/venv/lib/site-packages/torch/x.py", line 1 in call\n'
    )
    assert find._place(said) == ", at net.py:7 in forward"
    assert find._place("nothing") == ""


def test_a_log_without_a_death(tmp_path: Path) -> None:
    assert last_words(tmp_path) == ""
    (tmp_path / "model.log").write_text("all is well: no Fatal Python error: here\n")
    assert last_words(tmp_path) == ""


@pytest.mark.slow
def test_in_processes_of_their_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    os.chdir(project)
    run = [sys.executable, "-m", "nnfuzz"]
    assert subprocess.run([*run, "nan", "crash_nets.py:row", *WORDS]).returncode == -signal.SIGSEGV
    assert last_words(project / "RUN") == "Segmentation fault"
    done = subprocess.run([*run, "crash", "RUN"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "at crash_nets.py:7 in die" in done.stdout
    assert "F0001  confirmed" in done.stdout
    script = subprocess.run([sys.executable, "RUN/findings/F0001/repro.py"])
    assert script.returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("status", "stderr", "died"),
    [
        (-11, "Fatal Python error", "SIGSEGV"),
        (7, "", "an exit with status 7"),
        (0, "half a line", "an exit with status 0"),
        (0, f"a warning{worker.END}", ""),
    ],
)
def test_what_ended_a_process_is_told(monkeypatch: pytest.MonkeyPatch, status: int, stderr: str, died: str) -> None:
    """os._exit leaves no signal: what is missing then is the word that every end known to Python writes."""
    monkeypatch.setattr(find.subprocess, "run", lambda *_, **__: CompletedProcess([], status, "", stderr))
    assert find._run("next", "RUN", cwd=None) == (died, stderr.replace(worker.END, ""))


def test_a_batch_that_cannot_be_run_again_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = f"Traceback\nnnfuzz.errors.UsageError: net.py is gone{worker.END}"
    monkeypatch.setattr(find.subprocess, "run", lambda *_, **__: CompletedProcess([], 1, "", stderr))
    with pytest.raises(UsageError, match=r"the batch cannot be run again: net\.py is gone$"):
        find._run("next", "RUN", cwd=None)
