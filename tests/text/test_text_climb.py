"""Wishes: where they begin well, how prompts are changed toward them, and what a turn brings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from writers import ALPHABET, Follower, Small

import nnfuzz
from nnfuzz.text.ascent import Ascent, distinct
from nnfuzz.text.climb import FAILURES
from nnfuzz.text.codec import Characters
from nnfuzz.text.exchange import Exchanger
from nnfuzz.text.models import Writing, language_model
from nnfuzz.text.models import choosing as choosing_module
from nnfuzz.text.models.beginnings import read, step_of_marks
from nnfuzz.text.models.choosing import Chooser
from nnfuzz.text.objectives import Together
from nnfuzz.text.objectives.parse import make_objectives
from nnfuzz.text.scout import OWN, Endings, draws
from nnfuzz.text.wishes import Wishes

CHAIN = {"q": " ", " ": "b", "b": "a", "a": "d", "d": "."}


def test_places_of_a_draw_are_where_the_wish_is_likeliest() -> None:
    model = language_model(Follower(CHAIN | {".": ".", "q": "w", "w": "x", "x": "y", "y": "v", "v": " "}))
    assert model.codec is not None
    model.watch = range(len(ALPHABET))
    codec = model.codec
    unfinished = torch.tensor([c.isalnum() for c in ALPHABET])
    starts = [(codec.encode(t), n) for n, t in enumerate(["xx q", "zz.", "hello"] * 8)]
    made = draws(model, codec, starts, Writing(12), 3, unfinished)
    found = made.places(codec.encode("bad"), 6, 5, within_word=False)
    assert found
    for ids, entry in found:
        text = codec.decode(ids)
        assert len(ids) <= 5
        assert text[-1] in " .\n"
        before, _ = starts[entry]
        row = codec.decode(before) + codec.decode([i for i in made.tokens[entry].tolist() if i >= 0])
        assert row.find(text, max(0, len(before) + 12 // OWN - len(text))) >= 0
    assert codec.decode(found[0][0])[-1] == " "  # after which b is nearly certain
    anywhere = made.places(codec.encode("bad"), 400, 5, within_word=True)
    assert any(codec.decode(ids)[-1].isalnum() for ids, _ in anywhere)


def test_what_a_draw_shows_of_later_letters_counts() -> None:
    """Of two places with the same first chance the one goes first where the draw went on as the wish does."""
    model = language_model(Follower({}))
    assert model.codec is not None
    made = draws(model, model.codec, [([0], 7), ([1], 8)], Writing(8), 0, torch.zeros(len(ALPHABET), dtype=torch.bool))
    a, b = model.codec.encode("ab")
    made.tokens = torch.full((2, 8), 5)
    made.tokens[1, 4:6] = torch.tensor([a, b])
    made.logp = torch.full((2, 8, len(ALPHABET)), -2.0)
    made.logp[1, 5, b] = -0.1
    (best, *_) = made.places([a, b], 4, 9, within_word=True)
    assert best[1] == 8
    assert len(best[0]) == 5


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 1 << 20), st.booleans())
def test_mutants_are_legal_and_no_longer_than_allowed(ids: list[int], seed: int, led: bool) -> None:
    codec = Characters("abcdef", legal=[0, 1, 2, 3, 4])
    cosines = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)) if led else None
    known = {tuple(ids)}
    made = Exchanger(codec, 8, 1).mutants(ids, [[1, 2, 3]], 20, np.random.default_rng(seed), cosines, known)
    assert 0 < len(made) <= 20
    assert all(1 <= len(m) <= 8 and set(m) <= {0, 1, 2, 3, 4} for m in made)
    assert len({tuple(m) for m in made} - known) == len(made)


@given(st.text("ab cd", min_size=1, max_size=6), st.integers(0, 1 << 20))
def test_what_a_word_is_to_follow_does_not_end_within_one(prompt: str, seed: int) -> None:
    codec = Characters("abcd ")
    made = Exchanger(codec, 8, 1, apart=True).mutants(codec.encode(prompt), [], 8, np.random.default_rng(seed), None)
    assert all(codec.decode(m).endswith(" ") for m in made)


def test_a_climb_ends_where_every_prompt_is_known() -> None:
    """Of one letter there are as many prompts as it has alphabet: soon no mutant is new, which is no failure."""
    model = language_model(Follower({}))
    assert model.codec is not None
    codec = Characters(ALPHABET, legal=[3, 4])
    exchanger = Exchanger(codec, 1, 1)
    ends = torch.ones(len(ALPHABET), dtype=torch.bool)
    ascent = Ascent(model, Writing(8), exchanger, ends, gradients=True, late=lambda: False)
    found = ascent.climb([(-np.inf, [3], 0, [5, 9], 0)], np.random.default_rng(0))
    assert {tuple(ids) for _, ids, _ in found} == {(3,), (4,)}
    assert exchanger.mutants([3], [], 4, np.random.default_rng(0), None, ascent.seen) == []


def test_cosines_lead_to_the_exchange_they_name() -> None:
    cosines = torch.full((2, 6), -9.0)
    cosines[1, 4] = 9.0
    exchanger = Exchanger(Characters("abcdef"), 2, 1)
    assert exchanger._named([0, 0], cosines)[0] == 1 * 6 + 4


def test_starts_end_differently_and_not_as_those_that_have_served() -> None:
    endings = Endings()
    scored = [(-3.0, [9, 5, 6, 7, 8], 0), (-1.0, [1, 2, 3, 4], 1), (-2.0, [8, 1, 2, 3, 4], 2), (-9.0, [6], 3)]
    assert endings.varied(scored, 0, 2) == [scored[1], scored[0]]
    assert endings.varied(scored, 1, 1) == [scored[1]]
    again = Endings()
    again.load(json.loads(json.dumps(endings.to_json())))
    for each in (endings, again):
        assert each.varied(scored, 0, 2) == [scored[1], scored[3]]


def test_every_start_keeps_its_best_mutant() -> None:
    rows = [(-1.0, [1], 0, [9], 0), (-2.0, [2], 0, [9], 0), (-2.0, [1], 0, [9], 1), (-3.0, [3], 0, [9], 1)]
    assert distinct(rows, 1) == [rows[0], rows[3]]
    assert distinct(rows, 2) == [rows[0], rows[1], rows[3]]


def test_a_wish_that_no_continuation_has_room_for_is_none() -> None:
    """Prompt and wish together would go beyond the places that a transformer has."""
    model = language_model(Follower(CHAIN))
    assert model.codec is not None
    objective = Together(make_objectives(["words:bad,longer"]), model.codec, model, None)
    roomy, narrow = Wishes(objective, model, 16), Wishes(objective, model, 4)
    assert all(roomy.ids(goal, 0, "") for goal in (0, 1))
    assert narrow.ids(0, 0, "")
    assert not narrow.ids(1, 0, "")


def test_a_turn_that_raises_ends_no_search_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One goal's wish may be what the model cannot be asked; three turns in a row end the asking, and are said."""
    real, raised, limit = Ascent.climb, [], 2

    def climb(self: Ascent, *args: Any) -> Any:
        if len(raised) < limit:
            raised.append(1)
            raise IndexError("index out of range in self")
        return real(self, *args)

    how: dict[str, Any] = {"objective": "words:bad", "max_inputs": 300, "max_new": 16, "gradients": False}
    chain = CHAIN | {"o": "o", ".": "."}
    monkeypatch.setattr(Ascent, "climb", climb)
    found = nnfuzz.fuzz_text(Follower(chain), ["ooooo", "eeeee"], mutators=["delete", "wish"], **how)
    assert [f.cause for f in found.findings] == ["blacklisted word 'bad'"]
    raised[:], limit = [], 10**6
    lost = nnfuzz.fuzz_text(Follower(chain), ["ooooo", "eeeee"], mutators=["delete", "wish"], **how)
    assert not lost.findings
    assert len(raised) == FAILURES
    assert any("wishes could not be followed (IndexError: index out of range in self)" in n for n in lost.notes)


@pytest.mark.parametrize("way", ["wish", "gradient"])
def test_wishes_find_what_mutation_does_not(way: str) -> None:
    """Only one character in 29, standing last, leads to the word."""
    how: dict[str, Any] = {"objective": "words:bad", "max_inputs": 200, "max_new": 16, "max_shrink": 50}
    how |= {"gradients": way == "gradient"}
    chain = CHAIN | {"o": "o", ".": "."}
    found = nnfuzz.fuzz_text(Follower(chain), ["ooooo", "eeeee"], mutators=["delete", way], **how)
    assert [f.cause for f in found.findings] == ["blacklisted word 'bad'"]
    assert set(found.stats.yields) == {"delete", way}
    alone = nnfuzz.fuzz_text(Follower(chain), ["ooooo", "eeeee"], mutators=["delete"], **how)
    assert alone.findings == []


def read_by(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """The shapes of ids that the module is called with; logits and states must be those of each prompt alone."""
    small, calls = Small(), []

    def call(ids: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        calls.append(tuple(ids.shape))
        logits, state = small.logits(ids, state)
        return logits[:, -1], state

    with torch.no_grad():
        logits, state = read(prompts, call, [1, 1], torch.device("cpu"))
        for n, prompt in enumerate(prompts):
            alone, (h, c) = small.logits(torch.tensor([prompt]))
            assert torch.allclose(alone[0, -1], logits[n], atol=1e-5)
            assert torch.allclose(h[:, 0], state[0][:, n], atol=1e-5)
            assert torch.allclose(c[:, 0], state[1][:, n], atol=1e-5)
    return calls


def test_prompts_of_many_lengths_are_read_in_few_calls() -> None:
    prompts = [[(7 * n + k) % 26 for k in range(n)] for n in range(1, 41)]
    calls = read_by(prompts)
    assert len(calls) < 16
    assert sum(a * b for a, b in calls) <= sum(map(len, prompts))  # nothing is read twice, and no padding


def test_a_beginning_that_prompts_share_is_read_once() -> None:
    stem = [k % 26 for k in range(40)]
    prompts = [[*stem[:n], 25, n % 5] for n in range(1, 41)] + [[*stem, 3, 3]] * 5
    calls = read_by(prompts)
    assert sum(a * b for a, b in calls) < sum(map(len, prompts)) / 3
    assert max(a for a, _ in calls) < len(prompts)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=12))
def test_prompts_that_share_much_are_read_as_each_alone(prompts: list[list[int]]) -> None:
    calls = read_by(prompts)
    assert sum(a * b for a, b in calls) <= sum(map(len, prompts))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30))
def test_marks_never_take_more_calls_than_lengths(lengths: list[int]) -> None:
    step = step_of_marks(lengths)
    assert len({(n - 1) // step for n in lengths}) + max((n - 1) % step for n in lengths) <= len(set(lengths))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_noted_does_not_depend_on_how_often(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    logits = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0))
    logits[2, 1] = torch.nan
    logits[3, 0, 2] = torch.inf

    def noted() -> dict[str, torch.Tensor]:
        chooser = Chooser(3, Writing(8, temperature, seed=1), [0, 3], [4], torch.device("cpu"))
        for step in logits:
            chooser.step(step)
        return chooser.outputs()

    whole = noted()
    monkeypatch.setattr(choosing_module, "BLOCK", 20)
    for name, value in noted().items():
        assert torch.equal(value.nan_to_num(9.0), whole[name].nan_to_num(9.0)), name
    assert whole["tokens"].shape == (3, 8)
    assert whole["bad"][1, 2] | (whole["tokens"][1, 2] == -1)


class Grows(Follower):
    """Its logits grow ten thousandfold with every letter of "zqxjkvwypbfm" that it has read."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(ALPHABET, "."))

    def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        rare = torch.tensor([ALPHABET.index(c) for c in "zqxjkvwypbfm"])
        read = (ids[:, :, None] == rare).any(1).float()
        read = read if state is None else torch.maximum(read, state)
        return self.table(ids) * (10000.0 ** read.sum(1))[:, None, None], read


def test_logits_lead_to_overflow() -> None:
    seeds = ["the lazy dog", "a cat."]
    how: dict[str, Any] = {"max_inputs": 4000, "max_new": 4, "max_shrink": 0, "seed": 2}
    led = nnfuzz.fuzz_text(Grows(), seeds, objective="nonfinite", coverage="ngrams", **how)
    assert led.findings[0].symptom == "non-finite logits"
    assert not nnfuzz.fuzz_text(Grows(), seeds, objective="nonfinite", coverage="none", **how).findings


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=6))
def test_reach_is_a_share_and_grows_with_the_largest_logit(values: list[float]) -> None:
    x = torch.tensor([values], dtype=torch.float32)
    share = float(choosing_module.reach(x))
    assert 0 <= share <= 1
    finite = [abs(v) for v in x[0].tolist() if abs(v) < float("inf")]
    more = torch.tensor([[*values, 2 * max(finite, default=1.0) + 1]], dtype=torch.float32)
    assert float(choosing_module.reach(more)) >= share
    assert float(choosing_module.reach(torch.tensor([[torch.finfo(torch.float16).max]]).half())) > 0.99
