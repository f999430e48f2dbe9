"""What a search in training leaves behind when it is stopped, and what it says meanwhile."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from programs import INPUTS, SOURCE, linear, log_softmax, log_softmax_by_hand, rows, sgd, write_program

from nnfuzz.cli import main
from nnfuzz.errors import ModelFailure
from nnfuzz.training import TrainingRun, find_nans_in_training, load_program, run_program
from nnfuzz.training.status_line import StatusLine, status

STABLE = SOURCE.replace("torch.log(torch.softmax(", "(torch.log_softmax(")
COUNTING = STABLE.replace("def loss(model, batch): return", "SEEN = []\ndef loss(model, batch):\n    ACT\n    return")

LATE = """
class Late(torch.optim.SGD):
    made = 0
    def step(self, closure=None):
        Late.made += 1
        assert Late.made < 40, "oops"
        return super().step(closure)
"""


def test_ctrl_c_keeps_the_run_and_says_so(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "nnfuzz", "train", str(write_program(tmp_path, STABLE)), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as ran:
        until = time.monotonic() + 30
        while not (out / "run.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        ran.send_signal(signal.SIGINT)
        told, err = ran.communicate(timeout=30)
    assert told.splitlines()[0] == "Interrupted, saved. Nothing found", err
    assert ran.returncode == 130
    about = json.loads((out / "run.json").read_text())
    assert about["stopped"] == "interrupted"
    assert about["steps"] > 0


def test_a_finding_is_on_disk_as_soon_as_it_is_made(tmp_path):
    seen = []

    def report(run: TrainingRun) -> None:
        about = json.loads((tmp_path / "run.json").read_text())
        seen.append([f["id"] for f in about["findings"]])
        assert (tmp_path / "findings" / "T0001" / "batches.safetensors").is_file()

    find_nans_in_training(
        linear, log_softmax_by_hand, rows, optimizer=sgd, inputs=INPUTS, out=tmp_path, max_seconds=20, report=report
    )
    assert seen[-1] == ["T0001"]


def test_an_optimizer_that_raises_in_the_middle_keeps_the_run(tmp_path):
    late = STABLE.replace("return torch.optim.SGD(", "return Late(") + LATE
    program = load_program(write_program(tmp_path, late))
    with pytest.raises(ModelFailure, match=r"AssertionError: oops \(program.py:.* after \d+ steps of the search") as e:
        run_program(program, max_steps=500, out=tmp_path / "run")
    assert f"{tmp_path / 'run'} holds no findings made before" in str(e.value)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["stopped"] == "failed"
    assert about["notes"][0].startswith("the step of optimizer(model) raises (AssertionError: oops")


def test_what_the_program_prints_goes_to_its_log(tmp_path, capfd):
    loud = write_program(tmp_path, COUNTING.replace("ACT", 'print("loud")'))
    assert main(["train", str(loud), "--max-steps", "20", "--out", str(tmp_path / "run")]) == 0
    told = capfd.readouterr().out
    assert "loud" not in told
    assert "the program printed " in told
    assert set((tmp_path / "run" / "model.log").read_text().splitlines()) == {"loud"}


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/nnfuzz/run"])
def test_an_impossible_place_is_told_before_anything_else(tmp_path, capsys, place):
    (tmp_path / "file").write_text("x")
    program = write_program(tmp_path, "1 / 0")
    assert main(["train", str(program), "--out", str(tmp_path / place)]) == 2
    err = capsys.readouterr().err
    assert ("is a file, but a run is a directory" if place == "file" else "cannot create ") in err
    assert err.count("\n") == 1


def test_without_a_step_nothing_was_tried(tmp_path):
    clock = iter([0.0, *[9.0] * 1000])
    run = run_program(load_program(write_program(tmp_path)), max_seconds=1, clock=lambda: next(clock))
    assert run.summary().splitlines() == [
        "Nothing tried",
        "0 steps in 9.0 s; plain training on natural batches was not tried: the search ended before its turn",
        "  try: a longer --max-time; looking at the first batch took all the time, and no step was made",
    ]


def test_the_summary_says_what_is_left_and_that_batches_ended():
    def few(seed):
        for i, batch in enumerate(rows(seed)):
            if i == 3:
                return
            yield batch if i < 2 else {k: v[:5] for k, v in batch.items()}

    def slow(model):
        return torch.optim.SGD(model.parameters(), lr=1e-6)

    run = find_nans_in_training(linear, log_softmax_by_hand, few, optimizer=slow, inputs=INPUTS, max_steps=80)
    assert "nearest: log@programs.py" in run.summary()
    assert " to the edge of log, " in run.summary()
    assert "note: batches(seed) ended after 3: they are used again in a circle" in run.summary()
    assert "note: batches(seed) gives 5 rows in batch 2 and 12 in the first" in run.summary()


def test_a_loss_without_unsafe_operations_says_so():
    run = find_nans_in_training(linear, log_softmax, rows, optimizer=sgd, inputs=INPUTS, max_steps=20)
    assert "Nothing found" in run.summary()
    assert "in the loss no operation was seen" in run.summary()


def test_a_finding_before_its_turn_still_tells_of_plain_training():
    run = find_nans_in_training(linear, log_softmax_by_hand, rows, optimizer=sgd, inputs=INPUTS, max_seconds=20)
    assert run.findings
    assert "was not tried" not in run.findings[0].natural


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_is_in_place_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    run = TrainingRun(steps=1234, seconds=12.3)
    run.targets = [{"name": "log@f.py:3:4", "op": "log", "start": 16.0, "best": 4.0}]
    assert status(run) == "1,234 steps in 12 s, nearest log@f.py:3:4 (75 % of the way)"
    stream = Terminal()
    line = StatusLine(stream)
    line.show(run)
    line.clear()
    assert stream.getvalue() == f"\r\x1b[K{status(run)}\r\x1b[K"


def test_the_status_line_is_rare_elsewhere(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    line, run = StatusLine(stream), TrainingRun(steps=1, seconds=1.0)
    for now[0] in map(float, range(25)):
        line.show(run)
    assert stream.getvalue() == "1 steps in 1 s\n" * 2
