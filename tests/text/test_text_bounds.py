"""Long outputs, slow writers: memory and time stay within what was asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from writers import Small

import nnfuzz
from nnfuzz.text.models import Prompts, Writing, language_model
from nnfuzz.text.models.base import MOST_NEW, OutOfTime
from nnfuzz.text.models.blackbox import BlackBox
from nnfuzz.text.models.recurrent import LogitsModule

SEEDS = ["hello there", "a cat."]


class Slow(Small):
    """Quick while it is looked at first, then a hundredth of a second for every step."""

    def __init__(self, quick: int):
        super().__init__()
        self.quick, self.calls = quick, 0

    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.calls += 1
        if self.calls > self.quick:
            time.sleep(0.01)
        return super().logits(ids, state)


def test_an_absurd_length_is_refused() -> None:
    with pytest.raises(nnfuzz.UsageError, match=r"max_new is 1,000,000,000, but .*: give a smaller --max-new"):
        nnfuzz.fuzz_text(lambda prompts: prompts, SEEDS, objective="empty", max_new=10**9)


def test_more_than_the_positions_is_refused_also_where_prompts_are_texts() -> None:
    class Bounded(BlackBox):
        longest = 32

    with pytest.raises(nnfuzz.UsageError, match="takes 32 tokens at most"):
        nnfuzz.fuzz_text(Bounded(lambda prompts: prompts), SEEDS, objective="empty", max_new=32)


def test_a_model_that_writes_too_slowly_is_stopped_between_steps() -> None:
    began = time.perf_counter()
    run = nnfuzz.fuzz_text(Slow(5000), SEEDS, objective="regex:zqzq", max_new=800, max_inputs=None, max_seconds=2)
    assert run.stats.stopped == "max-time"
    assert time.perf_counter() - began < 6
    assert len(run.corpus) > 0


def test_seeds_that_take_all_the_time_are_told() -> None:
    with pytest.raises(nnfuzz.UsageError, match=r"the time was up after \d+ of 5,000 steps .*: give a longer"):
        nnfuzz.fuzz_text(Slow(0), SEEDS, objective="empty", max_new=5000, max_seconds=0.2)


def test_writing_ends_when_it_is_told_to() -> None:
    model = language_model(Small())
    assert isinstance(model, LogitsModule)
    model.late = lambda: True
    assert model.codec is not None
    with pytest.raises(OutOfTime):
        model.run(Prompts([[1, 2]], model.codec), Writing())


def test_long_answers_are_asked_for_in_parts_and_cut() -> None:
    asked: list[int] = []

    def generate(prompts: list[str]) -> list[str]:
        asked.append(len(prompts))
        return ["é\ud800😀" * 1_500_000 for _ in prompts]

    model = language_model(generate)
    codec = model.out
    prompts = Prompts([[65]] * 2, codec)
    first, second = (model.run(prompts, Writing(max_new=5)).outputs for _ in range(2))
    assert first["tokens"].tolist() == [[ord(c) for c in "é\ud800😀é\ud800"]] * 2
    assert torch.equal(first["tokens"], second["tokens"])
    assert not first["ended"].any()
    model.run(Prompts([[65]] * 12, codec), Writing(max_new=5))
    assert asked == [2, 2, 7, 5]


@pytest.mark.parametrize("size", [1, 4, 5, 6])
def test_bytes_are_cut_at_whole_characters(size: int) -> None:
    text = "é😀a\u20ac" * 3
    model = language_model(lambda prompts: [text.encode()[:-1] for _ in prompts])
    tokens = model.run(Prompts([[65]], model.out), Writing(max_new=size)).outputs["tokens"]
    assert tokens[0].tolist() == [ord(c) for c in text[:size]]


def test_the_bound_is_a_bound() -> None:
    Writing(max_new=MOST_NEW).check()
    with pytest.raises(nnfuzz.UsageError):
        Writing(max_new=MOST_NEW + 1).check()
