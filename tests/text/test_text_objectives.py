"""Objectives against words that are known, and against plain definitions."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from writers import ALPHABET, Follower, Small, look

from nnfuzz.errors import UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.text.codec import pack
from nnfuzz.text.models import Prompts, Writing, language_model
from nnfuzz.text.objectives import Found, Together, custom, make_objective, make_objectives
from nnfuzz.text.objectives.endings import common
from nnfuzz.text.objectives.repeats import SHORTEST_LOOP, loops
from nnfuzz.text.objectives.spelling import formed
from nnfuzz.text.objectives.words import Words
from nnfuzz.text.space import PROMPT
from nnfuzz.text.telling import named, readme


def hit(objective: str, text: str, prompt: str = "x") -> bool:
    return bool(look(objective, [text], [prompt]).found[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what a BOMB", True),
        ("bombs", False),
        ("abomb", False),
        ("b0mb!", True),
        ("b-o-m-b", True),
        ("b.o.m.b", True),
        ("b o m b", False),
        ("bo\u200bmb", True),
        ("bömb", True),
        ("b_o_m_b", True),
        ("bom b", False),
        ("(bomb)", True),
        ("ｂｏｍｂ", True),
    ],
)
def test_blacklisted_words(text: str, expected: bool) -> None:
    assert hit("words:bomb", text) is expected


FOREIGN = [
    "café",
    "über",
    "naïve",
    "мой",
    "한국",
    "がき",
    "Ångström",
    "straße",
    "हिन्दी",
    "İstanbul",
    "ﬁn",
    "đã ăn",
]


@pytest.mark.parametrize("word", FOREIGN)
@pytest.mark.parametrize("forms", [("NFC", "NFC"), ("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_words_with_marks_are_found_however_they_are_composed(word: str, forms: tuple[str, str]) -> None:
    given, said = (unicodedata.normalize(f, word) for f in forms)
    found = look(f"words:{given}", [f"see {said} here", f"see {said.upper()}", f"see x{said} here"]).found
    assert found[0][0].spans == [(4, 4 + len(said))]
    assert found[1]
    assert not found[2]


@given(st.text(st.characters(categories=["L"]), min_size=1, max_size=6))
def test_any_word_of_letters_is_found(word: str) -> None:
    assume(formed(word).bare.strip())  # a few letters of Arabic are a mark on a space
    for given_, said in product(("NFC", "NFD"), repeat=2):
        words = Words([unicodedata.normalize(given_, word)])
        again = Words([words.spec_of(Found(0, "", "")).removeprefix("words:")])
        text = formed(f"see {unicodedata.normalize(said, word)} here")
        for one in (words, again):
            assert any(one._spellings[0].spans(text)), (word, given_, said)


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        ("schön", "schon", False),  # another word
        ("мой", "мои", False),
        ("かき", "がき", True),  # a mark more
        ("がき", "かき", False),
        ("café", "c-a-f-é", True),
        ("café", "cáfe", False),
        ("café", "ca\u200bfe\u0301", True),
        ("đã ăn", "đã  ăn", True),
        ("한국", "한국어", False),
        ("ह", "हि", False),
        ("foo", "\u0301foo", True),
    ],
)
def test_marks_of_a_word_must_be_there(word: str, text: str, expected: bool) -> None:
    assert hit(f"words:{word}", text) is expected


def test_a_word_of_marks_alone_is_none() -> None:
    with pytest.raises(UsageError, match="names no word"):
        make_objective("words:\u200b")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_score_and_the_wish_of_a_word_with_marks_fit_the_alphabet(form: str) -> None:
    """Each letter as the alphabet has it: one id, or one and its mark."""
    said = unicodedata.normalize(form, "é")
    model = Follower({"c": "a", "a": "f"})
    model.alphabet = "".join(dict.fromkeys(f"caf{said}x g" + ALPHABET))[: len(ALPHABET)]
    order = {c: i for i, c in enumerate(model.alphabet)}
    chain = {"x": "c", "c": "a", "a": "f", "f": said[0], **dict(pairwise(said))}
    model.table.weight.data[:] = -4.0
    for c, i in order.items():
        model.table.weight.data[i, order[chain.get(c, "g")]] = 4.0
    language = language_model(model)
    assert language.codec is not None
    together = Together(make_objectives("words:café"), language.codec, language, None)
    words = together.parts[0]
    assert words.wish(0, 0, "") == "caf" + said
    ids = [language.codec.encode(" ")]
    model.table.weight.data[order[" "]] = model.table.weight.data[order["x"]]
    scores, hits = [], []
    for n in range(1, 4 + len(said)):
        trace = language.run(Prompts(ids, language.codec), Writing(n))
        verdict = together.judge(trace, {PROMPT: pack(ids, 1)})
        scores.append(float(verdict.goals[0, 0]))
        hits.append(bool(verdict.hits[0]))
    assert hits == [False] * (2 + len(said)) + [True]
    assert scores == sorted(scores)
    assert scores[0] < 0.5
    assert scores[-1] > 0.9


def test_a_word_that_the_prompt_has_begun_is_not_whole() -> None:
    chain = Follower({"x": "b", "b": "a", "a": "d", "d": " "})
    model = language_model(chain)
    assert model.codec is not None
    together = Together(make_objectives("words:bad"), model.codec, model, None)
    ids = [model.codec.encode(p) for p in ("x", "x. ")]
    chain.table.weight.data[ALPHABET.index(" ")] = chain.table.weight.data[ALPHABET.index("x")]
    trace = model.run(Prompts(ids, model.codec), Writing(4))
    assert together.judge(trace, {PROMPT: pack(ids, 3)}).hits.tolist() == [False, True]


@pytest.mark.parametrize("where", [0, 3])
def test_what_comes_after_a_step_without_a_distribution_is_no_text(where: int) -> None:
    """A chain that would say "bad" again and again for ever, but breaks at one step."""

    class Breaking(Follower):
        def logits(self, ids: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
            count = 0 if state is None else int(state[0, 0])
            logits = self.table(ids)
            return logits * (torch.nan if count == where else 1), torch.full((len(ids), 1), count + 1.0)

    chain = {" ": "b", "b": "a", "a": "d", "d": " "}
    model = language_model(Breaking(chain, end=ALPHABET.index("z")))
    assert model.codec is not None
    together = Together(make_objectives(["words:bad", "repeat:2", "endless", "empty"]), model.codec, model, None)
    ids = [model.codec.encode("d")]
    trace = model.run(Prompts(ids, model.codec), Writing(24))
    found = together.look(together.read(trace, {PROMPT: pack(ids, 1)}))[0][0]
    assert [f.symptom for _, f in found] == []
    whole = language_model(Follower(chain, end=ALPHABET.index("z")))
    together = Together(make_objectives(["words:bad", "repeat:2", "endless", "empty"]), model.codec, whole, None)
    trace = whole.run(Prompts(ids, model.codec), Writing(24))
    found = together.look(together.read(trace, {PROMPT: pack(ids, 1)}))[0][0]
    assert {f.symptom for _, f in found} == {"blacklisted word", "repeated word", "endless output"}


def test_the_place_of_a_disguised_word_is_the_place_in_the_text() -> None:
    text = "so: b\u0308o\u200bmb, no"
    ((start, stop),) = look("words:bomb", [text]).found[0][0].spans
    assert text[start:stop] == "b\u0308o\u200bmb"


def test_the_score_of_a_word_grows_with_what_stands_of_it() -> None:
    scores = look("words:bomb", ["x", "a b", "a bo", "a bom", "xbom"]).scores[:, 0]
    assert scores[0] < scores[1] < scores[2] < scores[3] < 1
    assert scores[4] == scores[0]


def test_the_score_of_a_word_knows_the_chance_of_its_next_letter() -> None:
    model = language_model(Small())
    assert model.codec is not None
    (part,) = make_objectives("words:cat")
    together = Together([part], model.codec, model, None)
    ids = [model.codec.encode(p) for p in ("ab", "hello", "zz.", "cat cat")]
    trace = model.run(Prompts(ids, model.codec), Writing(10))
    reading = together.read(trace, {PROMPT: pack(ids, 8)})
    (scores,) = part.look(reading).scores.T
    chances = trace.outputs["watched"].exp()
    for row, text in enumerate(reading.texts):
        best = 0.0
        for at in range(len(text)):
            for n in range(3):
                begins = at - n
                before = (reading.prompts[row] + text)[: len(reading.prompts[row]) + begins]
                if begins >= 0 and text[begins:at] == "cat"[:n] and not before[-1:].isalpha():
                    column = list(model.watch).index(model.codec.encode("cat"[n])[0])
                    best = max(best, (n + float(chances[row, at, column])) / 3)
        assert scores[row] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the the the", True),
        ("The, the; THE", True),
        ("the the", False),
        ("the cat the the", False),
        ("no no no!", True),
    ],
)
def test_repeated_words(text: str, expected: bool) -> None:
    assert hit("repeat:3", text) is expected


def test_repetitions_that_the_prompt_holds_are_one_failure() -> None:
    texts = ["no no no", "yes yes yes", "no no no", "no, no no yes yes yes"]
    prompts = ["no no. NO", "yes yes yes what", "no no", "yes yes yes"]
    found = look("repeat:3", texts, prompts).found
    assert [[f.cause for f in row] for row in found] == [
        ["a word 3 times in a row, as in the prompt"],
        ["a word 3 times in a row, as in the prompt"],
        ["the word 'no' 3 times in a row"],
        ["the word 'no' 3 times in a row", "a word 3 times in a row, as in the prompt"],
    ]


def test_repeats_have_a_slope_and_a_wish() -> None:
    scores = look("repeat:4", ["a b c", "a a b", "a a a b"]).scores[:, 0]
    assert scores[0] < scores[1] < scores[2] < 1
    assert make_objective("repeat:3").wish(0, 0, "one two two three") == " two two two"


def plain_loop(row: list[int], times: int) -> float:
    """The most repetitions by trying every period and place."""
    best = 1.0
    for period in range(1, len(row) // times + 1):
        for start in range(len(row)):
            n = 0
            while start + period + n < len(row) and row[start + n] == row[start + period + n] >= 0:
                n += 1
            if n + period >= SHORTEST_LOOP and n > 0:
                best = max(best, (n + period) / period)
    return best


@given(st.lists(st.lists(st.integers(0, 2), min_size=24, max_size=24), min_size=1, max_size=3), st.integers(2, 4))
def test_loops_are_all_found(rows: list[list[int]], times: int) -> None:
    repeats, _, _ = loops(torch.tensor(rows), times)
    for row, found in zip(rows, repeats.tolist(), strict=True):
        plain = plain_loop(row, times)
        assert (found >= times) == (plain >= times)
        if plain >= times:
            assert found == pytest.approx(plain)


def test_a_loop_is_marked_where_it_is() -> None:
    text = "so it is: " + "and on " * 6
    ((start, stop),) = look("loop:4", [text]).found[0][0].spans
    assert text[start:stop].count("and on") >= 5
    assert not hit("loop:4", "nothing here goes round")
    assert not hit("loop:4", "oh ....... well")


@given(st.lists(st.tuples(st.text("ab", max_size=12), st.text("ab", max_size=12)), min_size=1, max_size=4))
def test_the_longest_common_stretch(pairs: list[tuple[str, str]]) -> None:
    longest, end = common([p for p, _ in pairs], [t for _, t in pairs])
    for (prompt, text), n, at in zip(pairs, longest.tolist(), end.tolist(), strict=True):
        every = [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in prompt]
        assert n == max(map(len, every), default=0)
        assert n == 0 or text[at - n + 1 : at + 1] in prompt


def test_the_other_objectives() -> None:
    assert hit("echo:5", "you say hello", "hello you")
    assert not hit("echo:6", "you say hello", "hello")
    assert hit("empty", " \n ")
    assert not hit("empty", " a ")
    assert hit("regex:[0-9]{3}-", "call 555-1234")
    assert not hit("regex:[0-9]{3}-", "call 55-1234")
    assert hit("utf8", "bad \udcff byte")
    assert not hit("utf8", "cut \ufffd")
    assert hit("utf8", "bad \ufffd byte")
    ends = look("endless", ["abc", "abcdef"]).found
    assert [bool(f) for f in ends] == [False, True]


def test_two_models_part_ways_where_they_do() -> None:
    a, b = language_model(Follower({"a": "b", "b": "c"})), language_model(Follower({"a": "b", "b": "d"}))
    assert a.codec is not None
    together = Together(make_objectives("disagree"), a.codec, a, b)
    ids = [a.codec.encode("a"), a.codec.encode("x")]
    trace = a.run(Prompts(ids, a.codec), Writing(3))
    trace.outputs |= {f"b.{n}": t for n, t in b.run(Prompts(ids, a.codec), Writing(3)).outputs.items()}
    found, scores = together.look(together.read(trace, {PROMPT: pack(ids, 1)}))
    assert found[0][0][1].details["first differing position"] == 1
    assert found[0][0][1].details["margin of A there"] == pytest.approx(8.0, abs=1e-3)
    assert not found[1]
    assert np.isfinite(scores).all()


def test_your_own_predicate_with_a_score() -> None:
    from writers import Spoken

    model = Spoken(["abc", "xyz"])
    parts = make_objectives(lambda prompt, text: (text.startswith("x"), len(prompt) / 10))
    from nnfuzz.text.codec import CodePoints

    codec = CodePoints()
    together = Together(parts, codec, model, None)
    verdict = together.judge(model.trace(), {PROMPT: pack([codec.encode("aa"), codec.encode("b")], 2)})
    assert verdict.hits.tolist() == [False, True]
    assert verdict.score is not None
    assert verdict.score.tolist() == [0.2, 0.1]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nothing", "is no objective"),
        ("repeat:x", "a whole number of at least 2"),
        ("repeat:1", "a whole number of at least 2"),
        ("regex:(", "no regular expression"),
        ("regex:a*", "matches the empty text"),
        ("blacklist:/nowhere/words.txt", "there is no file"),
        ("words: ,", "names no word"),
        ("empty:3", "takes none"),
    ],
)
def test_objectives_that_are_none(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_objective(word)


@pytest.mark.parametrize(("word", "message"), [("disagree", "needs two models"), ("endless", "no id that ends a text")])
def test_objectives_that_fit_no_such_model(word: str, message: str) -> None:
    model = language_model(Small())
    assert model.codec is not None
    with pytest.raises(UsageError, match=message):
        Together(make_objectives(word), model.codec, model, None)


def test_words_are_refused_where_only_numbers_are_written() -> None:
    module = Small()
    module.alphabet, module.vocabulary = None, len(ALPHABET)  # type: ignore[assignment]
    model = language_model(module)
    assert model.codec is not None
    with pytest.raises(UsageError, match=r"writes are numbers, and the words foo, bar cannot come: give a model"):
        Together(make_objectives("words:foo,bar"), model.codec, model, None)
    Together(make_objectives(["words:17", "regex:1 2"]), model.codec, model, None)


def test_what_a_classifier_says_is_told_and_a_name_is_left_as_it_is() -> None:
    told = "class 1 with logit 1.5, class 0 with logit 0.25, class 2 with logit -2 and 1 more"
    assert named([0.25, 1.5, -2.0, None]) == told
    finding = Finding(
        id="F0001", objective="text", symptom="predicate", cause="obj.py:cls says so", inputs={}, outputs={}, seed={},
        seed_index=0, lineage=[], distance={}, inputs_tried=1, seconds=0.0, status="confirmed",
        details={"prompt": "x", "classes": [0.0, 3.0]},
    )  # fmt: skip
    page = readme(finding, "place")
    assert "says          class 1 with logit 3, class 0 with logit 0" in page
    assert "\nobj.py:cls says so. It fails" in page


def test_every_objective_says_what_it_searches() -> None:
    for word in ("repeat:5", "loop:4", "words:a,b", "regex:x", "echo:20", "endless", "empty", "utf8", "nonfinite"):
        assert re.search(r"\w{3}", make_objective(word).searched())


def test_a_regex_scores_the_longest_beginning_of_a_match() -> None:
    scores = look(r"regex:\bnan\d{3}", ["x", "an", "n", "na. xnan", "say nan12", "nan123"]).scores[:, 0].tolist()
    assert scores[0] == scores[1] == 0
    assert 0 < scores[2] < scores[3] < scores[4] < scores[5] < 1
    assert scores[4] == pytest.approx(5 / 9)


def test_a_pattern_that_takes_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "PATIENCE", 0.2)
    with pytest.raises(UsageError, match=r"takes more than 0.2 s on an output of 41 characters: write it without rep"):
        look(r"regex:(a|a)+\b$", ["a" * 40 + "!"])
