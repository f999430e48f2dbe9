"""Models that are none, fail at once, or make no pair: one sentence with the right model's name, and the status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from writers import ALPHABET, Follower, Small, Stateless

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.text.models import language_model

MODELS = """
from writers import Small

class Raising(Small):
    def logits(self, ids, state=None):
        raise RuntimeError("no weights")

class Ending(Small):
    def __init__(self):
        super().__init__(end=-5)

def half():
    return Small().half()

def raising(prompts):
    raise ValueError("never")

def calm(prompts):
    return ["so" for p in prompts]
"""
PAIR = ["--objective", "disagree"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.py").write_text(MODELS)
    (tmp_path / "seeds.txt").write_text("hello there\na cat.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (
            ["bad.py:Small", "bad.py:Raising", *PAIR],
            3,
            "bad.py:Raising fails on every prompt (RuntimeError: no",
        ),
        (["bad.py:Raising", "--objective", "endless"], 3, "bad.py:Raising fails on every prompt"),
        (["bad.py:calm", "bad.py:raising", *PAIR], 3, "second model, bad.py:raising, fails on every seed (ValueError"),
        (["bad.py:raising", "bad.py:calm", *PAIR], 3, "the model fails on every seed (ValueError: never)"),
        (["bad.py:half", "--as", "int8", *PAIR], 2, "weights in float32, but the model's are float16"),
        (["bad.py:half", "--as", "fp16", *PAIR], 2, "its copy would be the same"),
        (["bad.py:Ending", "--objective", "endless"], 2, "end is -5, but an id of 0 to 28 is expected"),
        (["bad.py:Small", "bad.py:calm", *PAIR, "--kind", "text"], 2, "bad.py:Small takes ids and writes ids, but"),
    ],
)
def test_one_sentence(desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, told: str) -> None:
    assert main(["text", *words, "--seeds", "seeds.txt", "-n", "20", "--quiet", "--out", "RUN"]) == status
    seen = capsys.readouterr().err
    assert told in seen
    assert len(seen.strip().splitlines()) == 1


def test_a_module_without_logits_is_no_black_box() -> None:
    with pytest.raises(UsageError, match=r"the module Linear, but a module needs logits\(ids\[, state\]\)"):
        language_model(nn.Linear(3, 4))


class Writing(nn.Module):
    def generate(self, prompts: list[str]) -> list[str]:
        return prompts


def test_a_module_that_writes_texts_is_one() -> None:
    language_model(Writing())


@pytest.mark.parametrize("which", ["start", "end"])
@pytest.mark.parametrize("value", [-1, len(ALPHABET), "\n", True, 1.5])
def test_ids_that_are_none(which: str, value: Any) -> None:
    model = Small()
    setattr(model, which, value)
    with pytest.raises(UsageError, match=f"Small: {which} is {re.escape(repr(value))}, but an id of 0 to 28 is"):
        language_model(model)


def test_several_ids_only_end() -> None:
    model = Small(end=[1, 99])
    with pytest.raises(UsageError, match="Small: end is 99, but an id of 0 to 28 is"):
        language_model(model)
    model.start, model.end = [1, 2], None  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"Small: start is \[1, 2\], but an id of 0 to 28 is"):
        language_model(model)


def test_ids_of_other_kinds_of_numbers() -> None:
    model = Small()
    model.end = torch.tensor(3)  # type: ignore[assignment]
    assert language_model(model).ends == (3,)


@pytest.mark.parametrize(("alphabet", "told"), [("abca", "Small has 'a' twice in its alphabet"), ("", "an empty")])
def test_alphabets_that_are_none(alphabet: str, told: str) -> None:
    model = Small()
    model.alphabet = alphabet
    with pytest.raises(UsageError, match=told):
        language_model(model)


class Leaving(Small):
    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        raise SystemExit(0)


def test_a_module_that_leaves_at_once_is_told() -> None:
    with pytest.raises(ModelFailure, match="Leaving fails on every prompt"):
        language_model(Leaving())


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_copies_that_would_be_the_same(precision: str) -> None:
    model: Any = {"fp16": Small().half(), "bf16": Small().bfloat16(), "int8": Follower({})}[precision]
    with pytest.raises(UsageError, match="its copy would be the same"):
        nnfuzz.fuzz_text(model, ["a cat"], objective="disagree", as_=precision, max_inputs=10)


def test_a_model_against_itself_is_noted() -> None:
    model, more = Small(), {"objective": "disagree", "max_inputs": 10, "max_new": 4}
    alone = nnfuzz.fuzz_text(model, ["a cat"], model_b=model, **more)  # type: ignore[arg-type]
    assert "Small is compared with itself, so only what is not deterministic can differ" in alone.notes
    two = nnfuzz.fuzz_text(model, ["a cat"], model_b=Small(1), **more)  # type: ignore[arg-type]
    assert not any("itself" in n for n in two.notes)


def test_training_mode_is_noticed_and_said() -> None:
    said = "Small was in training mode and is run in eval mode"
    assert said in language_model(Small().train()).notes
    assert said not in language_model(Small().eval()).notes
    part = Small().eval()
    part.lstm.train()
    assert said in language_model(part).notes
    assert language_model(Stateless(Small()).train()).notes[0].startswith("Stateless was in training mode")
