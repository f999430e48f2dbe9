"""Program files, saved findings and the script that runs one again with torch alone."""

import json
import os
import subprocess
import sys

import pytest
import torch
from programs import INPUTS, linear, log_softmax_by_hand, rows, sgd, write_program
from safetensors.torch import load_file

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.training import find_nans_in_training, load_program, run_program


def rerun(script, *args):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(script), *args], capture_output=True, text=True, timeout=60, env=env, check=False
    )


def test_a_saved_finding_reruns_to_the_same_failure(tmp_path):
    run = run_program(load_program(write_program(tmp_path)), max_seconds=20, out=tmp_path / "run")
    folder = tmp_path / "run" / "findings" / "T0001"
    about = json.loads((folder / "finding.json").read_text())
    assert about["site"]["op"] == "log"
    assert about["step"] == run.findings[0].step
    assert {p.name for p in folder.iterdir()} == {
        "README.md",
        "batches.safetensors",
        "finding.json",
        "initial_state.safetensors",
        "program_source.txt",
        "repro.py",
    }
    done = rerun(folder / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.endswith("reproduced\n")
    assert "NOT" not in done.stdout
    text = (folder / "repro.py").read_text()
    assert "import nnfuzz" not in text
    assert "from nnfuzz" not in text


def test_a_repaired_program_does_not_reproduce(tmp_path):
    program = write_program(tmp_path)
    run = run_program(load_program(program), max_seconds=20)
    folder = run.findings[0].save(tmp_path / "finding")
    program.write_text(
        program.read_text().replace(
            'torch.log(torch.softmax(model(batch["x"]), 1))', 'torch.log_softmax(model(batch["x"]), 1)'
        )
    )
    done = rerun(folder / "repro.py")
    assert (done.returncode, "NOT reproduced" in done.stdout) == (0, True)


def test_without_a_file_the_script_asks_for_the_program(tmp_path):
    run = find_nans_in_training(linear, log_softmax_by_hand, rows, optimizer=sgd, inputs=INPUTS)
    folder = run.findings[0].save(tmp_path / "f")
    assert rerun(folder / "repro.py").returncode == 2
    assert load_file(folder / "initial_state.safetensors").keys() == {"weight", "bias"}


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "old").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        find_nans_in_training(linear, log_softmax_by_hand, rows, optimizer=sgd, inputs=INPUTS, out=tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": {}}, "must name the tensors"),
        ({"inputs": {"x": {"low": 0, "high": 10}}}, "inputs does not say what it is"),
        ({"inputs": {**INPUTS, "z": {"fixed": True}}}, "inputs names 'z'"),
        ({"inputs": {**INPUTS, "x": {"low": 0, "high": 1}}}, "widen the range"),
        ({"inputs": {**INPUTS, "x": {"low": 4, "high": 0}}}, "exchange them"),
        ({"inputs": {**INPUTS, "x": {"low": 4}}}, "only one of low and high"),
        ({"inputs": {**INPUTS, "x": {"lo": 4}}}, "but only"),
        ({"inputs": {**INPUTS, "x": 3}}, "must be a dict"),
        ({"inputs": {**INPUTS, "x": {"low": 0, "high": 4, "role": "image"}}}, "the role 'image'"),
        ({"optimizer": None}, "optimizer is a NoneType"),
        ({"batches": lambda seed: iter([])}, "yields nothing"),
        ({"batches": lambda seed: iter([torch.zeros(2)])}, "must yield dicts"),
        ({"loss": lambda model, batch: model(batch["x"])}, "needs a scalar"),
        ({"max_seconds": None}, "needs an end"),
    ],
)
def test_bad_input_is_one_clear_sentence(changed, message):
    given = {"build": linear, "loss": log_softmax_by_hand, "batches": rows, "optimizer": sgd, "inputs": INPUTS}
    given |= changed
    with pytest.raises(UsageError, match=message) as caught:
        find_nans_in_training(given.pop("build"), given.pop("loss"), given.pop("batches"), **given)
    assert "\n" not in str(caught.value)


def test_a_loss_that_fails_at_once_is_the_programs_own_failure():
    with pytest.raises(ModelFailure, match="nan already"):
        find_nans_in_training(linear, lambda m, b: m(b["x"]).sum() * float("nan"), rows, optimizer=sgd, inputs=INPUTS)


def test_a_program_file_without_its_names_says_which(tmp_path):
    with pytest.raises(UsageError, match="does not define batches"):
        load_program(write_program(tmp_path, "def build(seed): ...\ndef loss(m, b): ...\ndef optimizer(m): ...\n"))
    with pytest.raises(UsageError, match="is no Python file"):
        load_program(tmp_path / "absent.py")
    with pytest.raises(UsageError, match="cannot be run"):
        load_program(write_program(tmp_path, "1 / 0"))
