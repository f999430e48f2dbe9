"""What nobody should ask, answered in one sentence; runs that are gone on with elsewhere, or with another alphabet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers import ALPHABET, Small

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.crash.find import find_crash
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.text.prompts import as_prompts, load_prompts

SEEDS = ["hello there", "a cat.", "the dog", "so long"]
QUIET = ["text", "model.py:make", "-s", "prompts.txt", "--objective", "words:zqzq", "-q"]
MODEL = """
import sys
sys.path.insert(0, {here!r})
from writers import Small

def make():
    return Small()
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL.format(here=str(Path(__file__).parent)))
    (tmp_path / "prompts.txt").write_text("\n".join(SEEDS) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 1 << 70}, r"seed is \d+, but it is a whole number from 0 to 2\^62"),
        ({"sample_seed": -1}, r"sample_seed is -1"),
        ({"max_prompt": 10**12}, r"max_prompt is 1,000,000,000,000, but a prompt of more than 1,000,000"),
        ({"temperature": None}, "temperature is None, but it is a number"),
        ({"max_new": None}, "max_new is None, but it is a whole number"),
        ({"gradients": "yes"}, "gradients is 'yes', but it is True or False"),
        ({"stop_on_first": "no"}, "stop_on_first is 'no'"),
        ({"allow_special": 1}, "allow_special is 1"),
        ({"mutators": []}, "mutators is empty"),
        ({"out": 5}, "out is 5, but it is the path of a run directory"),
        ({"reporter": 5}, "reporter is 5, but it has the methods start, update"),
        ({"context": 5}, "context is 5, but it is a dict"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        nnfuzz.fuzz_text(Small(), SEEDS, objective="loop", **{"max_inputs": 10, **given})


@pytest.mark.parametrize("second", [{"as_": "bf16"}, {"model_b": Small()}])
def test_a_second_model_is_there_to_be_compared(second: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"only loop:4, repeat:5 is looked for, .* add --objective disagree"):
        nnfuzz.fuzz_text(Small(), SEEDS, objective=["loop", "repeat"], max_inputs=10, **second)


def test_seeds_in_other_shapes(tmp_path: Path) -> None:
    assert as_prompts(np.array(["a", "b"])) == ["a", "b"]
    assert as_prompts(np.array([[1, 2], [3, -1]], dtype=np.int64)) == [[1, 2], [3]]
    with pytest.raises(UsageError, match="the seeds are a dict"):
        as_prompts({"prompt": "a"})
    place = tmp_path / "seeds.json"
    place.write_text(json.dumps(["a cat", {"prompt": "a dog"}, [1, 2]]))
    assert load_prompts(place) == ["a cat", "a dog", [1, 2]]
    for text, message in (
        ('{"a": 1}', "holds a dict"),
        ("[", "is no JSON"),
        ('[{"x": 1}]', r"\[0\] has none of the keys"),
    ):
        place.write_text(text)
        with pytest.raises(UsageError, match=message):
            load_prompts(place)
    (tmp_path / "seeds.csv").write_text("prompt\na cat\n")
    with pytest.raises(UsageError, match=r"seeds\.csv is no list of prompts"):
        load_prompts(tmp_path / "seeds.csv")


def test_a_run_goes_on_from_any_folder(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*QUIET, "-n", "100", "--out", "run"]) == 0
    (desk / "elsewhere").mkdir()
    monkeypatch.chdir(desk / "elsewhere")
    assert main(["resume", "../run", "-n", "200", "-q"]) == 0


def test_ids_that_mean_something_else_now_are_refused(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = nnfuzz.fuzz_text(Small(), SEEDS, objective="loop:4", max_inputs=200, max_new=16, max_shrink=40, out="run")
    assert run.findings
    monkeypatch.setattr(Small, "alphabet", ALPHABET[::-1])
    for again in (
        lambda: nnfuzz.resume("run", model=Small(), max_inputs=400),
        lambda: nnfuzz.repro("run/findings/F0001", model=Small()),
    ):
        with pytest.raises(
            UsageError, match=r"another meaning for this model \(29 characters, but not the same ones\)"
        ):
            again()


def test_commands_that_are_not_for_text_say_so(desk: Path) -> None:
    assert main([*QUIET, "-n", "100", "--out", "run"]) == 0
    with pytest.raises(UsageError, match=r"run is no diff of a model with its own copy"):
        nnfuzz.sensitivity("run")
    with pytest.raises(Unsupported, match="run is a run in text"):
        find_crash("run")
