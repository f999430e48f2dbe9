"""Long outputs, slow writers: memory and time stay within what was asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from writers import Small, look

import nnfuzz
from nnfuzz.text.coverage import gram_counts
from nnfuzz.text.models import Prompts, Writing, blackbox, language_model
from nnfuzz.text.models.base import MOST_NEW, OutOfTime
from nnfuzz.text.models.blackbox import MOST_JUDGED, BlackBox
from nnfuzz.text.models.recurrent import LogitsModule

SEEDS = ["hello there", "a cat."]


class Slow(Small):
    """Quick while it is looked at first, then so many seconds for every step."""

    def __init__(self, quick: int, step: float = 0.01):
        super().__init__()
        self.quick, self.step, self.calls = quick, step, 0

    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.calls += 1
        if self.calls > self.quick:
            time.sleep(self.step)
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
    model = Slow(200, 0.1)
    with pytest.raises(nnfuzz.UsageError, match="2 seeds and a first batch that did not come to its end"):
        nnfuzz.fuzz_text(model, SEEDS, objective="regex:zqzq", max_new=100, max_inputs=None, max_seconds=2)
    assert model.calls < 200 + 100  # not one whole text once it is slow


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
    assert first["tokens"].shape == (2, MOST_JUDGED)
    assert first["tokens"][1, :5].tolist() == [ord(c) for c in "é\ud800😀é\ud800"]
    assert torch.equal(first["tokens"], second["tokens"])
    assert first["ended"].all()
    assert model.cut == 4
    model.run(Prompts([[65]] * 12, codec), Writing(max_new=5))
    assert asked == [2, 2, 7, 5]


@pytest.mark.parametrize("size", [1, 4, 5, 6])
def test_bytes_are_cut_at_whole_characters(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox, "MOST_JUDGED", size)
    text = "é😀a\u20ac" * 3
    model = language_model(lambda prompts: [text.encode()[:-1] for _ in prompts])
    tokens = model.run(Prompts([[65]], model.out), Writing(max_new=3)).outputs["tokens"]
    assert tokens[0].tolist() == [ord(c) for c in text[:size]]


def test_the_whole_answer_of_a_black_box_is_judged() -> None:
    """However long, whatever --max-new says; and in batches of answers of different lengths, some of which raise."""

    def generate(prompts: list[str]) -> list[str]:
        if any(p.startswith("no") for p in prompts):
            raise ValueError("no")
        return ["x" * (7 * len(p)) + " foo bar" * 40 + " end" for p in prompts]

    seeds = ["a", "no", "a" * 600, "bb"]
    how: dict[str, Any] = {"max_inputs": 8, "max_new": 4, "max_shrink": 0}
    run = nnfuzz.fuzz_text(generate, seeds, objective=["words:end", "repeat:40", "echo:30"], **how)
    assert "blacklisted word 'end'" in [f.cause for f in run.findings]
    assert all(f.details["continuation"].endswith("bar end") for f in run.findings if f.symptom != "exception")
    with pytest.raises(nnfuzz.UsageError, match=r"is a function that returned, so nothing it writes is endless: drop"):
        nnfuzz.fuzz_text(generate, seeds, objective="endless", **how)


def test_two_black_boxes_may_answer_at_different_lengths() -> None:
    run = nnfuzz.fuzz_text(
        lambda ps: [p[:3] for p in ps], ["abc", "abcdef"], objective="disagree", model_b=lambda ps: list(ps),
        max_inputs=4, max_shrink=20,
    )  # fmt: skip
    assert [f.details["first differing position"] for f in run.findings] == [3]


def test_what_is_not_judged_of_an_answer_is_said() -> None:
    run = nnfuzz.fuzz_text(lambda ps: ["y" * 100_001 for _ in ps], ["ab"], objective="words:foo", max_inputs=2)
    assert any("longer than 100,000 characters: only their beginning was judged" in note for note in run.notes)


def test_long_outputs_are_judged_as_short_ones() -> None:
    texts = [f"{'q' * 10}{' '.join(map(str, range(3000)))} {'abcde' * 9}", "abcde" * 9, "nothing here"]
    found = look("loop:9", texts).found
    assert [bool(f) for f in found] == [True, True, False]
    assert found[0][0].details == found[1][0].details
    prompt = "what(" + texts[0][12_000:12_031] + ") is"
    echoed = look("echo:30", texts, [prompt] * 3).found
    assert [bool(f) for f in echoed] == [True, False, False]
    ((start, stop),) = echoed[0][0].spans
    assert texts[0][start:stop] == texts[0][12_000:12_031]
    many = torch.randint(0, 9, (3, 1 << 20))
    assert torch.equal(gram_counts(many), torch.cat([gram_counts(row[None]) for row in many]))


def test_the_bound_is_a_bound() -> None:
    Writing(max_new=MOST_NEW).check()
    with pytest.raises(nnfuzz.UsageError):
        Writing(max_new=MOST_NEW + 1).check()
