"""Models behind the one face: what is written in a batch is what a plain loop writes alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from writers import ALPHABET, Follower, Small, Stateless, written

import nnfuzz
from nnfuzz.errors import UsageError
from nnfuzz.text.models import Prompts, Writing, language_model
from nnfuzz.text.models.choosing import noise_of
from nnfuzz.text.models.copies import copied

TEXTS = st.lists(st.text(ALPHABET, min_size=1, max_size=9), min_size=1, max_size=6)


def alone(model: Small, prompt: str, count: int) -> str:
    """The plainest loop: one prompt, one id at a time, the whole text run again for each."""
    ids = [ALPHABET.index(c) for c in prompt]
    ids = [model.start, *ids] if getattr(model, "start", None) is not None else ids
    made = ""
    for _ in range(count):
        with torch.no_grad():
            chosen = int(model.logits(torch.tensor([ids]))[0][0, -1].argmax())
        if chosen in (model.end if isinstance(model.end, list) else [model.end]):
            break
        ids.append(chosen)
        made += ALPHABET[chosen]
    return made


@given(TEXTS)
def test_prompts_of_all_lengths_are_continued_as_if_alone(texts: list[str]) -> None:
    model = Small()
    assert written(model, texts, max_new=7) == [alone(model, t, 7) for t in texts]


@given(TEXTS)
def test_a_model_without_state_writes_the_same(texts: list[str]) -> None:
    model = Small()
    assert written(Stateless(model), texts, max_new=5) == written(model, texts, max_new=5)


def test_start_and_end() -> None:
    third = written(Small(start=27), ["ab"], max_new=3)[0][2]
    model = Small(start=27, end=ALPHABET.index(third))
    assert written(model, ["", "ab", "hello"], max_new=12) == [alone(model, t, 12) for t in ("", "ab", "hello")]
    assert len(written(model, ["ab"], max_new=12)[0]) < 3


class Remembers(torch.nn.Module):
    """Its state is all that it has read: keys and values that grow, with the batch on the second axis."""

    alphabet = ALPHABET

    def __init__(self, end: int | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = torch.nn.Parameter(torch.randn(3, len(ALPHABET), 8, generator=generator))
        self.head = torch.nn.Parameter(torch.randn(8, len(ALPHABET), generator=generator))
        self.end = end

    def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        query, key, value = (t[ids] for t in self.table)
        before = 0 if state is None else state["k"].shape[0]
        if state is not None:
            key = torch.cat([state["k"].movedim(0, 1), key], 1)
            value = torch.cat([state["v"].movedim(0, 1), value], 1)
        seen = torch.arange(key.shape[1]) <= before + torch.arange(ids.shape[1])[:, None]
        weight = (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1)
        return (weight @ value) @ self.head, {"k": key.movedim(1, 0), "v": value.movedim(1, 0)}


@given(TEXTS)
def test_a_state_that_grows(texts: list[str]) -> None:
    model = Remembers(end=4)
    texts = [t.replace("e", "f") for t in texts]
    assert written(model, texts, max_new=7) == [alone(model, t, 7) for t in texts]  # type: ignore[arg-type]


def test_a_search_with_a_state_that_grows() -> None:
    run = nnfuzz.fuzz_text(Remembers(), ["hello", "a cat.", "z"], objective="loop:3", max_inputs=200, max_new=16)
    assert run.stats.inputs >= 200
    assert any("state grows" in note for note in run.notes)
    assert all(f.symptom == "loop" for f in run.findings)


def test_a_model_in_training_is_left_in_training() -> None:
    model, other = Small().train(), Small(seed=1).eval()
    model.head.eval()  # frozen, say
    nnfuzz.fuzz_text(model, ["ab"], objective="disagree", model_b=other, max_inputs=32, max_new=4)
    assert model.training
    assert model.lstm.training
    assert not model.head.training
    assert not other.training
    with pytest.raises(UsageError, match="max_new"):
        nnfuzz.fuzz_text(model, ["ab"], objective="repeat:9", max_inputs=32, max_new=4)
    assert model.lstm.training


def test_each_of_several_ends_ends_a_text() -> None:
    texts = ["ab", "hello", "the dog", "z"]
    free = written(Small(), texts, max_new=12)
    ends = sorted({ALPHABET.index(free[0][2]), ALPHABET.index(free[1][4])})
    model = Small(end=ends)
    found = written(model, texts, max_new=12)
    assert found == [alone(model, t, 12) for t in texts]
    for n in range(2):  # the first alone would not end both
        assert len(found[n]) < 12
    assert language_model(model).ends == tuple(ends)
    codec = language_model(model).codec
    assert codec is not None
    assert not set(ends) & set(codec.legal or ends)  # no prompt holds one


@given(st.text(ALPHABET, min_size=1, max_size=6), TEXTS)
def test_draws_do_not_depend_on_the_batch(text: str, others: list[str]) -> None:
    how = {"max_new": 6, "temperature": 1.5, "seed": 3}
    assert written(Small(), [text], **how)[0] == written(Small(), [*others, text], **how)[-1]


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    model = language_model(Small())
    assert model.codec is not None
    count, temperature = 4000, 1.3
    ids = model.codec.encode("ab")
    trace = model.run(Prompts([ids] * count, model.codec), Writing(1, temperature, seed=5, apart=True))
    drawn = torch.bincount(trace.outputs["tokens"][:, 0], minlength=len(ALPHABET)) / count
    with torch.no_grad():
        expected = (Small().logits(torch.tensor([ids]))[0][0, -1] / temperature).softmax(0)
    assert (drawn - expected).abs().max() < 5 * math.sqrt(0.25 / count)


def test_probabilities_and_margins_are_those_of_the_logits() -> None:
    model = language_model(Small())
    assert model.codec is not None
    model.watch = [3, 5]
    trace = model.run(Prompts([model.codec.encode("hello")], model.codec), Writing(3))
    with torch.no_grad():
        first = Small().logits(torch.tensor([model.codec.encode("hello")]))[0][0, -1].log_softmax(0)
    top = first.topk(2).values
    assert trace.outputs["logp"][0, 0] == pytest.approx(float(top[0]), abs=1e-5)
    assert trace.outputs["margin"][0, 0] == pytest.approx(float(top[0] - top[1]), abs=1e-5)
    assert trace.outputs["watched"][0, 0].tolist() == pytest.approx(first[[3, 5]].tolist(), abs=1e-5)


def test_a_step_without_distribution_is_noted() -> None:
    class Broken(Small):
        def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
            logits, state = super().logits(ids, state)
            return logits.masked_fill((ids == ALPHABET.index("z"))[:, :, None], -torch.inf), state

    model = language_model(Broken())
    assert model.codec is not None
    trace = model.run(Prompts([[25], [1]], model.codec), Writing(2))
    assert trace.outputs["bad"][:, 0].tolist() == [True, False]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_cosines_are_slopes_over_lengths(temperature: float) -> None:
    module = Small().double()
    model = language_model(module)
    writing = Writing(8, temperature, seed=1)
    prompt, wish = [3, 7, 1], [4, 9]
    found = model.wish([prompt, [2]], [wish, [5]], writing, cosines=True)
    assert found.cosines is not None
    table = module.embedding.weight.detach()
    noise = [noise_of(writing, t, (1, len(ALPHABET)), torch.device("cpu"))[0] for t in range(2)]

    def score(share: float, at: int, id_: int) -> float:
        def mix(m: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
            moved = out.clone()
            moved[:, at] += share * (table[id_] - table[prompt[at]])
            return moved

        handle = module.embedding.register_forward_hook(mix)
        logits = module.logits(torch.tensor([prompt + wish]))[0][0].detach()
        handle.remove()
        total = 0.0
        for step, wanted in enumerate(wish):
            row = logits[2 + step]
            row = row / temperature + noise[step] if temperature else row
            total += min(0.0, float(row[wanted] - torch.cat([row[:wanted], row[wanted + 1 :]]).max()))
        return total

    assert float(found.cosines.abs().max()) <= 1 + 1e-5
    for at in range(3):
        slopes = torch.tensor([(score(1e-4, at, id_) - score(-1e-4, at, id_)) / 2e-4 for id_ in range(len(table))])
        ways = (table - table[prompt[at]]).double()
        gradient = torch.linalg.lstsq(ways, slopes.double()).solution
        expected = slopes / ways.norm(dim=1).clamp(min=1e-12) / gradient.norm()
        torch.testing.assert_close(found.cosines[0, at].double(), expected.double(), rtol=1e-2, atol=1e-3)
    assert float(found.score[0]) == pytest.approx(score(0.0, 0, 0), abs=1e-4)


@given(st.text(ALPHABET, min_size=1, max_size=5), st.sampled_from([0.0, 0.8]))
def test_what_a_model_writes_is_a_wish_fulfilled(prompt: str, temperature: float) -> None:
    model = language_model(Small())
    (text,) = written(Small(), [prompt], max_new=6, temperature=temperature, seed=2)
    writing = Writing(6, temperature, seed=2)
    other = ("b" if text[3] == "a" else "a").join([text[:3], text[4:]])
    ids = [model.out.encode(t) for t in (text, other)]
    score = model.wish([model.out.encode(prompt)] * 2, ids, writing, cosines=False).score
    assert score[0] == pytest.approx(0.0, abs=1e-4)
    assert score[1] < -1e-5
    stops = torch.zeros(len(ALPHABET), dtype=torch.bool)
    stops[ALPHABET.index(text[5])] = True
    begun = [ids[0][:5]]
    assert model.wish([model.out.encode(prompt)], begun, writing, cosines=False, stops=stops).score[0] > -1e-4
    assert model.wish([model.out.encode(prompt)], begun, writing, cosines=False, stops=~stops).score[0] < -1e-5


def test_black_boxes_answer_texts_or_bytes() -> None:
    box = language_model(lambda prompts: [p.upper().encode() + b"\xff" for p in prompts])
    codec = language_model(Small()).codec
    assert codec is not None
    trace = box.run(Prompts([codec.encode("ab")], codec), Writing(8))
    assert box.out.decode([i for i in trace.outputs["tokens"][0].tolist() if i >= 0]) == "AB\udcff"


def test_black_boxes_are_passed_what_they_take() -> None:
    seen: list[dict[str, Any]] = []

    def generate(prompts: list[str], seed: int = 0, max_new_tokens: int = 0) -> list[str]:
        seen.append({"seed": seed, "max_new_tokens": max_new_tokens})
        return [""] * len(prompts)

    codec = language_model(Small()).codec
    assert codec is not None
    language_model(generate).run(Prompts([[1]], codec), Writing(9, 1.0, seed=4))
    assert seen == [{"seed": 4, "max_new_tokens": 9}]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (3, "a function generate"),
        (lambda prompts: "text", "gave a str"),
        (lambda prompts: ["one"], "gave 1 answer, but"),
        (lambda prompts: [1 for _ in prompts], "gave an int"),
    ],
)
def test_what_is_no_model_is_said(model: Any, words: str) -> None:
    codec = language_model(Small()).codec
    assert codec is not None
    with pytest.raises(UsageError, match=words):
        language_model(model).run(Prompts([[1], [2]], codec), Writing(4))


def test_modules_must_say_what_their_ids_are() -> None:
    class Mute(Small):
        alphabet = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match="says not what its ids are"):
        language_model(Mute())


def test_the_batch_axis_of_a_state_must_be_there() -> None:
    class Odd(Small):
        def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
            return super().logits(ids)[0], torch.zeros(4)

    with pytest.raises(UsageError, match="no axis for the batch"):
        language_model(Odd())


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_copies_run_and_differ_a_little(precision: str) -> None:
    texts = ["ab", "hello world", "xyz"]
    assert [len(t) for t in written(copied(Small(), precision), texts, max_new=4)] == [4, 4, 4]
    with pytest.raises(UsageError, match="copies a module"):
        copied(lambda prompts: prompts, precision)


def test_followers_follow() -> None:
    assert written(Follower({"a": "b", "b": "a"}), ["a", "xb"], max_new=4) == ["baba", "abab"]
