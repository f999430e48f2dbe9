"""What models print, by any way, is kept out of what the run says, counted, and not lost."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from nnfuzz.cli import main
from nnfuzz.loading import load_object
from nnfuzz.report import apart
from nnfuzz.report.apart import ModelOutput

NOISY = """\
import ctypes, os, subprocess, sys, warnings
import torch

seeds = torch.rand(6, 4)
libc = ctypes.CDLL(None)
once = [1]

def net(x):
    print("by print")
    print("on stderr", file=sys.stderr)
    sys.stdout.buffer.write(b"as bytes\\n")
    os.write(1, b"past python\\n")
    libc.puts(b"from C")
    if once:
        once.clear()
        subprocess.run(["echo", "from a child"])
        warnings.warn("a warning", stacklevel=1)
    return torch.log(x)

def calm(x):
    return x.tanh()

def failing(x):
    print("the last words")
    raise ValueError("no")
"""
WAYS = ("by print", "on stderr", "as bytes", "past python", "from C", "from a child", "UserWarning: a warning")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "noisy.py").write_text(NOISY)
    return tmp_path


WORDS = ["nan", "noisy.py:net", "--seeds", "noisy.py:seeds", "--range", "-1:1", "-n", "64", "--phase", "forward"]


@pytest.mark.parametrize("capture", ["capsys", "capfd"])
def test_the_runs_lines_and_the_models_are_apart(
    project: Path, capture: str, request: pytest.FixtureRequest, recwarn: pytest.WarningsRecorder
) -> None:
    captured = request.getfixturevalue(capture)
    assert main([*WORDS, "--plain", "--out", "RUN"]) == 1
    told = captured.readouterr()
    log = Path("RUN/model.log").read_text()
    assert all(way in log for way in WAYS[:6])
    assert not any(way in told.out + told.err for way in WAYS)
    assert f"note: the model printed {log.count(chr(10)):,} lines: see RUN/model.log\n" in told.out
    assert told.out.index("the model printed") < told.out.index("1 finding in 64 inputs")
    assert told.err == ""

    assert main(["resume", "RUN", "-n", "128", "--json"]) == 1
    told = captured.readouterr()
    events = [json.loads(line) for line in told.out.splitlines()]
    more = Path("RUN/model.log").read_text()
    assert more.startswith(log)
    notes = [e["text"] for e in events if e["event"] == "note"]
    assert notes == [f"the model printed {more[len(log) :].count(chr(10)):,} lines: see RUN/model.log"]
    assert events[-1]["event"] == "end"

    assert main(["shrink", "RUN/findings/F0001", "-n", "20"]) == 0
    told = captured.readouterr()
    assert not any(way in told.out + told.err for way in WAYS)
    assert told.out.startswith("note: the model printed ")


def test_a_model_that_is_silent_leaves_no_log(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["noisy.py:calm" if w == "noisy.py:net" else w for w in WORDS]
    assert main([*words, "--plain", "--out", "RUN"]) == 0
    assert "printed" not in capsys.readouterr().out
    assert not Path("RUN/model.log").exists()


def test_the_last_words_of_a_model_that_fails_are_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["noisy.py:failing" if w == "noisy.py:net" else w for w in WORDS]
    assert main([*words, "--plain", "--out", "RUN"]) == 3
    *said, error = capsys.readouterr().err.splitlines()
    assert 0 < len(said) <= apart.TAIL
    assert set(said) == {"the last words"}
    assert error.startswith("nnfuzz: error: the model fails on its own seeds")


def test_a_terminal_is_left_to_the_panel(project: Path) -> None:
    ours, theirs = pty.openpty()
    script = "import sys; from nnfuzz.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *WORDS, "--out", "RUN"], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 1
    text = shown.decode()
    assert not any(way in text for way in WAYS)
    assert "\x1b[?25l" in text  # it was the panel
    assert "the model printed" in text
    assert all(way in Path("RUN/model.log").read_text() for way in WAYS)


def test_a_scripted_model_is_heard(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = "import torch\n@torch.jit.script\ndef talks(x):\n    print('scripted')\n    return x.exp()\n"
    (project / "talks.py").write_text(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would have torch.export
        load_object("talks.py:talks").save("talks.pt")
    assert main(["nan", "talks.pt", "--seeds", "noisy.py:seeds", "-n", "64", "-q", "--out", "RUN"]) == 0
    assert capfd.readouterr() == ("", "")
    assert set(Path("RUN/model.log").read_text().split()) == {"scripted"}


def test_too_much_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_BYTES", 1000)
    output = ModelOutput()
    with output.led_away():
        print("early")
        output.keep(tmp_path)
        for i in range(300):
            print(f"line {i}")
            os.write(1, b"another\n")
            output.check()
        assert output.dropped
        lines = output.lines()
    output.close()
    log = (tmp_path / "model.log").read_text()
    assert log.startswith("early\nline 0\nanother\n")
    assert 1000 <= len(log) <= 1020
    assert lines == log.count("\n")


def test_all_is_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    output = ModelOutput()
    with suppress(KeyError), output.led_away():
        print("hidden")
        raise KeyError
    print("hidden?", end="", file=output.shown)
    assert output.tail() == "hidden\n"
    assert output.lines() == 1
    output.close()
    assert (sys.stdout, sys.stderr) == before
    os.write(1, b" no")
    os.write(2, b"error")
    assert capfd.readouterr() == ("hidden? no", "error")


def test_a_closed_descriptor_is_no_trouble(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.close(2)
        output = ModelOutput()
        output.keep(tmp_path)
        with output.led_away():
            os.write(1, b"here\n")
            print("and here", file=sys.stderr)
        os._exit(output.lines())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert (tmp_path / "model.log").read_text() == "here\nand here\n"
