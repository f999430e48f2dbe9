"""``explain`` of findings of text: measured on models whose behaviour is known in advance."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from writers import ALPHABET, Follower, Small

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.text.codec import Characters
from nnfuzz.text.explain.influence import influences, told
from nnfuzz.text.telling import readme

MODEL = """
import torch
from torch import nn

def fragile(prompts):
    return [helper(p) for p in prompts]

def helper(prompt):
    if "e" in prompt:
        return {}["no such key"]
    return "fine"

def rude(prompts):
    return ["hello badword" if "e" in p else p for p in prompts]

class Breaks(nn.Module):
    alphabet = "abcdefghijklmnopqrstuvwxyz .\\n"

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(29, 29)
        self.table.weight.data = torch.eye(29)[torch.arange(1, 30) % 29] * 9

    def logits(self, ids, state=None):
        there = (ids == 7).any(1, keepdim=True) if state is None else state | (ids == 7).any(1, keepdim=True)
        seen = torch.log(1 - there.float())[:, :, None] * 0
        return self.table(ids) + seen, there
"""
SEEDS = ["hello there", "a cat.", "the dog"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "prompts.txt").write_text("\n".join(SEEDS) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def explained(model: Any, objective: Any, **more: Any) -> tuple[Any, str]:
    how: dict[str, Any] = {"max_inputs": 300, "max_new": 16, "max_shrink": 100, **more}
    run = nnfuzz.fuzz_text(model, SEEDS, objective=objective, **how)
    finding = next(f for f in run.findings if f.confirmed)
    named = {} if isinstance(model, str) else {"model": model}
    return finding, nnfuzz.explain(finding, **named)


def test_a_loop_says_where_it_begins_its_period_and_how_sure_the_model_grows() -> None:
    model = Follower(dict.fromkeys(ALPHABET, "a") | {"a": "b", "b": "a"})
    finding, said = explained(model, "loop:4")
    sure = float(torch.softmax(torch.tensor([4.0] + [-4.0] * 28), 0)[0])
    assert re.search(r"begins at character \d .*with a period of 2 characters: '(ab|ba)', \d times", said)
    assert f"repetition 1: probability {100 * sure:.2g} %, {100 * sure:.2g} %" in said
    assert "from the first to the last the mean" in said
    assert f"seed {finding.seed_index}, " in said


def test_a_repeated_word_says_the_probability_of_each_repetition() -> None:
    model = Follower(dict.fromkeys(ALPHABET, "a") | {"a": " ", " ": "a"})
    _, said = explained(model, "repeat:3")
    assert re.search(r"begins at character \d .* period of 2 characters: 'a', \d times", said)
    assert len(re.findall(r"repetition \d: probability", said)) >= 3


def test_a_word_says_its_steps_and_the_runner_up() -> None:
    model = Follower(dict.fromkeys(ALPHABET, ".") | {" ": "q"})
    model.table.weight.data[ALPHABET.index(" "), ALPHABET.index("x")] = 0.0
    _, said = explained(model, "words:q", max_inputs=600)
    assert re.search(r"'q' is written at steps (\d+) to \1", said)
    assert re.search(r"step \d+: 'q' with probability 9\d\S* %; the likeliest other is 'x' with 1.8 %", said)
    assert re.search(r"' '\s+cannot be removed\s+instead: '.' ends it", said)


def test_an_output_without_end_says_how_likely_the_end_was() -> None:
    model = Small(end=28)
    _, said = explained(model, "endless")
    assert re.search(r"the end is likeliest at step \d+, with probability \S+ %", said)
    assert "its probability over the steps: 0: " in said


def test_an_exception_names_the_users_line(desk: Path) -> None:
    _, said = explained("model.py:fragile", "crash")
    assert "raises KeyError: 'no such key'" in said
    assert "in your code at model.py:10, in helper" in said
    assert 'return {}["no such key"]' in said
    assert re.search(r"'e'\s+removed: it is gone\s+instead: '.' ends it", said)


def test_a_black_box_is_said_to_be_one(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "text",
        "model.py:rude",
        "-s",
        "prompts.txt",
        "--objective",
        "words:badword",
        "-n",
        "100",
        "-o",
        "run",
        "-q",
    ]
    assert main(words) == 1
    capsys.readouterr()
    assert main(["explain", "run/findings/F0001"]) == 0
    said = capsys.readouterr().out
    assert "'badword' is written at steps 6 to 12" in said
    assert "it shows no probabilities, so why it chose what it wrote is not known" in said
    assert "nnfuzz explain run/findings/F0001" in (desk / "run/findings/F0001/README.md").read_text()


def test_logits_that_break_name_step_count_and_line(desk: Path) -> None:
    finding, said = explained("model.py:Breaks", "nonfinite", max_inputs=100)
    step = finding.details["step"]
    assert f"step {step} is the first without distribution" in said
    assert "of its 29 logits 29 NaN; the first bad one is of id 0" in said
    line = MODEL.splitlines().index("        seen = torch.log(1 - there.float())[:, :, None] * 0") + 1
    assert f"at model.py:{line}" in said


def test_two_models_are_compared_where_they_part() -> None:
    model = Small()
    other = Small()
    other.head.bias.data[3] += 2
    run = nnfuzz.fuzz_text(model, SEEDS, objective="disagree", model_b=other, max_inputs=100, max_new=16, max_shrink=50)
    finding = next(f for f in run.findings if f.confirmed)
    said = nnfuzz.explain(finding, model=model, model_b=other)
    assert f"the first difference is at step {finding.details['first differing position']}" in said
    assert re.search(r"A writes '.+'; likeliest: '.+' \S+ %, ", said)
    assert "the hidden states are the same there: what differs comes after them" in said


class Breaks(Small):
    """All its logits are NaN after a space."""

    def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        logits, state = super().logits(ids, state)
        return torch.where((ids == ALPHABET.index(" "))[..., None], torch.nan, logits), state


def test_a_model_without_distribution_is_not_given_one() -> None:
    """No text and no probabilities of a step that had none, neither of one model nor of a pair."""
    how: dict[str, Any] = {"max_inputs": 20, "max_new": 8, "max_shrink": 40}
    seeds = ["ab ", "cd "]
    run = nnfuzz.fuzz_text(Small(), seeds, objective="disagree", model_b=Breaks(), **how)
    said = nnfuzz.explain(run.findings[0], model=Small(), model_b=Breaks())
    assert "B's logits are NaN at step 0, so what it writes from there on is arbitrary" in said
    assert "A writes '" in said
    assert "B writes '" not in said
    assert "the choice was near" not in said
    assert 'B writes      "" and then has no distribution to choose from (step 0)' in said
    run = nnfuzz.fuzz_text(Breaks(), seeds, objective="nonfinite", **how)
    details = run.findings[0].details
    assert details["continuation"] == ""
    assert details["steps"] == [{"text": "no distribution", "probability": None, "margin": None}]
    page = readme(run.findings[0], "place")
    assert page.count("| 0 | no distribution | | |") == 1
    assert "| 1 |" not in page


def test_what_was_asked_in_python_says_so() -> None:
    _, said = explained(Small(), lambda prompt, text: "i" in text)
    assert "its objective was given in Python" in said


def test_what_does_not_fail_any_more_says_so() -> None:
    run = nnfuzz.fuzz_text(Small(), SEEDS, objective="loop:4", max_inputs=200, max_new=16, max_shrink=40)
    mended = Follower({c: ALPHABET[(i * 7 + 1) % 29] for i, c in enumerate(ALPHABET)})
    said = nnfuzz.explain(run.findings[0], model=mended)
    assert "it does not fail alone, so what it hangs on cannot be measured" in said


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.sets(st.integers(0, 4), min_size=1, max_size=3))
def test_only_what_a_behaviour_hangs_on_matters(ids: list[int], needed: set[int]) -> None:
    def fails(prompts: list[list[int]]) -> list[bool]:
        return [needed <= set(p) for p in prompts]

    if not fails([ids])[0]:
        return
    codec = Characters("abcde")
    found, tried = influences(codec, ids, 0, fails)
    assert [i.removed for i in found] == [i in needed and ids.count(i) == 1 for i in ids]
    assert all(any(i.text == f"'{'abcde'[n]}'" for n in needed) for i in found if i.matters)
    assert tried == len(ids) + sum(len(i.changed) for i in found)
    assert len(told(found, tried, "character", len(ids))) == len(ids) + 1


def test_a_model_that_writes_otherwise_now_says_so() -> None:
    calls = count()

    def drifts(prompts: list[str]) -> list[str]:
        return [f"{next(calls)} la la la" for _ in prompts]

    run = nnfuzz.fuzz_text(drifts, SEEDS, objective="repeat:3", max_inputs=20, max_new=24, max_shrink=0)
    said = nnfuzz.explain(run.findings[0], model=drifts)
    assert "of what it writes now, which is not what was recorded: '" in said


def test_what_failed_only_in_its_batch_says_so(tmp_path: Path) -> None:
    run = nnfuzz.fuzz_text(Small(), SEEDS, objective="loop:4", max_inputs=200, max_new=16, max_shrink=0)
    finding = run.findings[0]
    finding.status = "batch-only"
    finding.details["run"]["objective"] = None
    assert "only together with others in one batch" in nnfuzz.explain(finding, model=Small())
