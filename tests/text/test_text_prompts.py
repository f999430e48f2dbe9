"""Prompts in: files, arrays, alphabets, dictionaries; what is legal, and what is refused in one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from writers import ALPHABET

from nnfuzz.errors import UsageError
from nnfuzz.mutators import Context, NoisePool
from nnfuzz.space import Anchors
from nnfuzz.text.codec import PAD, Characters, Ids, pack, unpack
from nnfuzz.text.dictionary import load_dictionary, parse_dictionary
from nnfuzz.text.mutators import TEXT_MUTATORS
from nnfuzz.text.mutators.unusual import REPERTOIRE
from nnfuzz.text.prompts import as_prompts, encoded, load_prompts
from nnfuzz.text.shrink import TextShrinker
from nnfuzz.text.space import PROMPT, text_space

LISTS = st.lists(st.lists(st.integers(0, 28), max_size=9), min_size=1, max_size=5)


@given(LISTS)
def test_packed_prompts_come_back(prompts: list[list[int]]) -> None:
    assert unpack(pack(prompts, 9)) == prompts


@given(st.lists(st.lists(st.integers(-3, 40), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(0, 2))
def test_legal_prompts_are_legal_and_stay(rows: list[list[int]], shortest: int) -> None:
    codec = Ids(32, special=[0, 5])
    space = text_space(codec, 6, shortest)
    x = torch.tensor(rows, dtype=torch.int32)
    anchors = Anchors({PROMPT: x})
    once = space.project({PROMPT: x.clone()}, anchors)
    assert bool(space.legal_boxes(once, anchors).all())
    assert torch.equal(space.project({PROMPT: once[PROMPT].clone()}, anchors)[PROMPT], once[PROMPT])
    for ids in unpack(once[PROMPT]):
        assert len(ids) >= shortest
        assert not {0, 5} & set(ids)


def test_files_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\n\ntwo\u2028still two\n".encode())
    assert load_prompts(tmp_path / "a.txt") == ["one", "two\u2028still two"]
    lines = [json.dumps(x) for x in ("x", "", {"prompt": "p"}, [1, 2], {"input_ids": [3]})]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    assert load_prompts(tmp_path / "b.jsonl") == ["x", "", "p", [1, 2], [3]]
    np.save(tmp_path / "c.npy", np.array([[1, 2, -1], [3, -1, -1]]))
    assert load_prompts(tmp_path / "c.npy") == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "a.txt holds no prompt"),
        ("a.txt", b"ok\n\xff\n", r"is not UTF-8 \(byte 3\)"),
        ("a.jsonl", b'"\\ud800x"\n', r"lone surrogate \(U\+D800 at character 0\)"),
        ("a.jsonl", b"{}\n", "has none of the keys"),
        ("a.jsonl", b"nonsense\n", "line 1, is no JSON"),
        ("a.jsonl", b"1.5\n", "a prompt is a text or a list"),
    ],
)
def test_files_that_are_no_prompts(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        load_prompts(tmp_path / name)


@pytest.mark.parametrize("given", [3, [1.5], torch.zeros(2, 3), [["a"]], []])
def test_objects_that_are_no_prompts(given: Any) -> None:
    with pytest.raises(UsageError):
        as_prompts(given)


def test_ids_outside_the_vocabulary_are_named() -> None:
    with pytest.raises(UsageError, match=r"\[1\]: the id 9 is outside 0 … 7"):
        encoded([[1], [9]], Ids(8))
    with pytest.raises(UsageError, match="the id 0 is special"):
        encoded([[0]], Ids(8, special=[0]))
    with pytest.raises(UsageError, match="'é' is not in the model's alphabet"):
        encoded(["é"], Characters("abc"))


def test_dictionaries(tmp_path: Path) -> None:
    text = '# words\nkw1="blah"\n"\\"ac\\\\dc\\""\nkw3="\\xF0\\x9F\\x98\\x80"\n\n"foo\\x0Abar" # why not\n'
    assert parse_dictionary(text) == ["blah", '"ac\\dc"', "😀", "foo\nbar"]
    (tmp_path / "d").write_text('"a"\nb\n')
    with pytest.raises(UsageError, match="line 2: 'b' is no entry"):
        load_dictionary(tmp_path / "d")
    with pytest.raises(UsageError, match=r"\\q is no escape"):
        parse_dictionary('"\\q"')
    with pytest.raises(UsageError, match="not UTF-8"):
        parse_dictionary('"\\xff"')


def grow(name: str, codec: Any, prompts: list[list[int]], seed: int, width: int = 24) -> list[list[int]]:
    space = text_space(codec, width, 0)
    x = pack(prompts, width)
    others = {PROMPT: x.flip(0)}
    context = Context(
        space, np.random.default_rng(seed), torch.Generator(), NoisePool(0, numbers=1 << 10), Anchors({PROMPT: x}),
        lambda: others,
    )  # fmt: skip
    mutator = TEXT_MUTATORS[name](codec, [[1, 2, 3]])
    if not mutator.targets(space):
        return []
    made = mutator({PROMPT: x.clone()}, context)
    assert bool(space.legal_boxes(made, context.anchors).all())
    return unpack(made[PROMPT])


@pytest.mark.parametrize("name", list(TEXT_MUTATORS))
def test_every_mutator_makes_legal_prompts_and_changes_some(name: str) -> None:
    codec = Characters("".join(dict.fromkeys(ALPHABET + "ABCXYZ0123456789 \t" + REPERTOIRE)))
    prompts = [codec.encode(p) for p in ("hello world 42", "A", "", "the quick brown fox jumps")]
    codec.learn(prompts)
    made = [grow(name, codec, prompts, seed) for seed in range(12)]
    assert any(m != prompts for m in made)
    assert made == [grow(name, codec, prompts, seed) for seed in range(12)]


@pytest.mark.parametrize("name", ["case", "digits", "emoji", "homoglyphs", "whitespace"])
def test_mutators_of_characters_leave_tokens_alone(name: str) -> None:
    assert grow(name, Ids(50), [[1, 2]], 0) == []


def test_what_mutators_are_for_is_reached() -> None:
    codec = Characters("".join(dict.fromkeys(ALPHABET + REPERTOIRE)))
    seed = [codec.encode("scope")] * 8
    codec.learn(seed)

    def reached(name: str) -> str:
        return "".join(codec.decode(i) for s in range(20) for i in grow(name, codec, seed, s, width=40))

    assert "\u202e" in reached("right-to-left")
    assert "\u200d" in reached("zero-width")
    assert "\u0301" in reached("combining")
    assert "с" in reached("homoglyphs")  # Cyrillic
    assert "\x00" in reached("controls")
    assert any(len(i) == 40 for s in range(5) for i in grow("huge", codec, seed, s, width=40))
    assert [] in grow("tiny", codec, seed * 4, 1)
    assert "abcd"[1:4] in "".join(codec.decode(i) for i in grow("dictionary", codec, seed, 0))


def test_shrinking_gives_the_shortest_and_most_ordinary() -> None:
    codec = Characters(ALPHABET)
    codec.learn([codec.encode("eeee tt a")])
    b = codec.encode("b")[0]

    def fails(prompts: list[list[int]]) -> list[bool]:
        return [p.count(b) >= 2 and len(p) >= 4 for p in prompts]

    shrinker = TextShrinker(codec, 0, fails, 10_000)
    small = codec.decode(shrinker.shrink(codec.encode("the bold bear. abracadabra")))
    assert sorted(small) == ["b", "b", "e", "e"]
    assert shrinker.complete


@given(st.integers(0, 2**32))
def test_shrinking_ends_within_its_budget_and_still_fails(seed: int) -> None:
    draw = random.Random(seed)
    codec = Characters(ALPHABET)
    ids = [draw.randrange(29) for _ in range(40)]
    codec.learn([ids])
    wanted = set(draw.sample(ids, 3))

    def fails(prompts: list[list[int]]) -> list[bool]:
        return [wanted <= set(p) for p in prompts]

    shrinker = TextShrinker(codec, 1, fails, 300)
    small = shrinker.shrink(ids)
    assert wanted <= set(small)
    assert shrinker.tried <= 300
    assert not shrinker.complete or len(small) == len(wanted)
    assert PAD not in small


def test_ids_behind_the_end_of_a_prompt_are_not_lost() -> None:
    with pytest.raises(UsageError, match=r"the seeds\[1\] holds ids behind a -1, which stands for the end"):
        as_prompts(np.array([[5, 7, -1], [5, -1, 7]]))
    assert as_prompts(np.array([[5, 7, -1], [5, -1, -1]])) == [[5, 7], [5]]
