"""What is wrong in the user's words or in what their model answers: one sentence, status 2, and nothing lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from writers import ALPHABET, Small
from writers import look as looked

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.errors import UsageError
from nnfuzz.loading import objects
from nnfuzz.report.base import RunInfo
from nnfuzz.report.summary import harder
from nnfuzz.stats import Stats
from nnfuzz.text.given import kind_of
from nnfuzz.text.objectives import make_objective
from nnfuzz.text.prompts import as_prompts, load_prompts

SEEDS = ["hello there", "a cat.", "the dog", "so long"]
MODEL = """
def later(prompts):
    return [None if "\\x07" in p else "la " * (2 + len(p) % 3) for p in prompts]

def fewer(prompts):
    texts = ["la " * (2 + len(p) % 3) for p in prompts]
    return texts[1:] if any("\\x07" in p for p in prompts) else texts

def calm(prompts):
    return ["la " * (2 + len(p) % 3) for p in prompts]

def judge(prompt, text):
    return None if "\\x07" in prompt else False

words = ["not", "a", "function"]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "prompts.txt").write_text("\n".join(SEEDS) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("repeat:-1", r"'repeat:-1' must name a whole number of at least 2 .* repeat:5, or repeat alone"),
        ("repeat:", r"'repeat:' must name a whole number"),
        ("repeat:²", r"whole number of at least 2"),
        ("loop:x", r"'loop:x' must name a whole number of at least 2 .* loop:4, or loop alone"),
        ("echo:1.5", r"'echo:1\.5' must name a whole number of at least 2 .* echo:20, or echo alone"),
        ("blacklist:folder", r"folder is a directory, but a list of words is a file: .*blacklist:words\.txt"),
        ("blacklist:nowhere", r"there is no file nowhere: .*blacklist:words\.txt"),
        ("blacklist", r"'blacklist' lacks its argument: .* blacklist:words\.txt"),
        ("blacklist:empty.txt", r"empty\.txt holds no words"),
        ("words:", r"'words:' lacks its argument: .* words:apple,pear"),
        ("words:,,", r"words:,, names no word: .* words:apple,pear"),
        ("regex:", r"'regex:' lacks its argument: .* regex:nan\|inf"),
        ("regex:(", r"regex:\( is no regular expression .* regex:nan\|inf"),
        ("regex:a*", r"regex:a\* matches the empty text.* regex:a\+"),
        ("endless:3", r"'endless:3' has an argument, but endless takes none: write endless"),
        ("utf8:", r"'utf8:' has an argument"),
        ("Repeat:3", r"'Repeat:3' is no objective \(did you mean 'repeat'\?\)"),
        ("regx:nan", r"did you mean 'regex'"),
        ("foo", r"'foo' is no objective: choose one of repeat\[:K\]"),
        ("foo:3", r"'foo:3' is no objective: choose one of"),
        ("model.py", r"names a file but no function in it: write model\.py:fn"),
        ("model.py:words", r"model\.py:words is a list, but an objective of your own is a function"),
    ],
)
def test_objectives_that_are_none(desk: Path, spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        make_objective(spec)
    assert "\n" not in str(raised.value)


def test_words_alone_are_their_defaults() -> None:
    assert [make_objective(w).spec for w in ("repeat", "loop", "echo")] == ["repeat:5", "loop:4", "echo:20"]


def test_the_help_and_the_manual_tell_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    main(["text", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    manual = (Path(__file__).parents[2] / "docs/USAGE.md").read_text()
    for word, number in (("repeat", 5), ("loop", 4), ("echo", 20)):
        assert f"{word} alone: {number}" in shown
        assert f"`{word}` alone is `{word}:{number}`" in " ".join(manual.split())


@pytest.mark.parametrize(("objective", "need"), [("repeat:9", 17), ("loop:17", 17), ("echo:17", 17), ("loop:2", 12)])
def test_what_an_output_has_no_room_for_is_refused(objective: str, need: int) -> None:
    with pytest.raises(UsageError, match=rf"{objective} needs an output of {need} characters at least, but --max-new"):
        nnfuzz.fuzz_text(Small(), SEEDS[:1], objective=objective, max_inputs=10, max_new=need - 1)
    nnfuzz.fuzz_text(Small(), ["abcdef"], objective=objective, max_inputs=10, max_new=need)


def test_a_hit_needs_no_less_room_than_is_said() -> None:
    for objective, text in (("repeat:3", "a a a"), ("loop:3", "abcd" * 3), ("echo:4", "abcd")):
        need = make_objective(objective).needs("character")
        assert need == len(text)
        assert looked(objective, [text], [text]).found[0]
        assert not looked(objective, [text[:-1]], [text]).found[0]


@pytest.mark.parametrize(
    ("value", "told"),
    [(5, "an int"), (None, "None"), ("x", "a str"), (torch.zeros(2, 3), "a tensor [2, 3]"),
     (np.zeros((2, 1)), "an array [2, 1]"), ([], "a list")],
)  # fmt: skip
def test_kinds_in_a_sentence(value: Any, told: str) -> None:
    assert kind_of(value) == told


def test_prompts_that_are_none(desk: Path) -> None:
    for given, told in (([], "the seeds hold no prompt"), (5, "the seeds are an int"), (None, "the seeds are None")):
        with pytest.raises(UsageError, match=told):
            as_prompts(given)
    for name, told in (("empty.txt", r"empty\.txt holds no prompt"), ("folder", "folder is a directory, but")):
        with pytest.raises(UsageError, match=told):
            load_prompts(name)


def test_a_byte_order_mark_is_no_part_of_a_word(desk: Path) -> None:
    (desk / "marked.txt").write_bytes(b"\xef\xbb\xbfapple\npear\n")
    assert load_prompts("marked.txt") == ["apple", "pear"]
    assert make_objective("blacklist:marked.txt").goals == ["apple", "pear"]


class Wrong(torch.nn.Module):
    """Logits that do not fit its ids."""

    alphabet = ALPHABET

    def __init__(self, cut: Any, stateful: bool) -> None:
        super().__init__()
        self.of, self.cut = Small(), cut
        if stateful:
            self.logits = lambda ids, state=None: (cut(self.of.logits(ids, state)[0]), ids[:, -1:].float())
        else:
            self.logits = lambda ids: cut(self.of.logits(ids)[0])


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (lambda x: None, "None"),
        (lambda x: x[:, -1], r"a tensor \[\d+, 29\]"),
        (lambda x: x[:, 1:], r"for ids \["),
        (lambda x: x.numpy(), r"an array \["),
        (lambda x: torch.cat([x, x], 2), "gave 58 logits for each id, but its alphabet has 29"),
        (lambda x: x[..., :5], "gave 5 logits for each id, but its alphabet has 29"),
    ],
)
def test_logits_that_do_not_fit(cut: Any, told: str, stateful: bool) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        nnfuzz.fuzz_text(Wrong(cut, stateful), ["hello there"], objective="loop", max_inputs=10)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize(
    ("activations", "told"),
    [
        (lambda ps: None, "activations gave None that is no array"),
        (lambda ps: ["a"] * len(ps), "activations gave a list that is no array"),
        (lambda ps: [[0.0] * len(p) for p in ps], "activations gave a list that is no array"),
        (lambda ps: np.array([object()] * len(ps)), r"activations gave an array \[4\] that is no array"),
        (lambda ps: np.ones((1, 3)), r"activations gave shape \[1, 3\].* a row for each of 4 prompts"),
        (5, "activations is an int, but it is a function"),
    ],
)
def test_activations_that_are_none(activations: Any, told: str) -> None:
    def generate(prompts: list[str]) -> list[str]:
        return [p[::-1] for p in prompts]

    generate.activations = activations  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=told) as raised:
        nnfuzz.fuzz_text(generate, SEEDS, objective="loop", max_inputs=10)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize(
    ("name", "told"),
    [("later", "returns None for this prompt, not a text"), ("fewer", "returns fewer answers than prompts")],
)
def test_a_wrong_answer_later_is_a_finding(
    desk: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    (desk / "dict").write_text('"\\x07"\n')
    words = ["text", f"model.py:{name}", "-s", "prompts.txt", "--objective", "crash", "--dict", "dict"]
    assert main([*words, "-n", "20000", "--max-new", "24", "--out", "run", "--stop-on-first", "-q"]) == 1
    assert f"exception: WrongAnswer: {told}, prompt of 1 character" in capsys.readouterr().out


def test_an_objective_that_answers_wrongly_later_loses_nothing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "dict").write_text('"\\x07"\n')
    words = ["text", "model.py:calm", "-s", "prompts.txt", "--objective", "model.py:judge", "--objective", "repeat:4"]
    assert main([*words, "--dict", "dict", "-n", "20000", "--max-new", "24", "--out", "run", "-q"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"the objective model.py:judge returned 'None' on the prompt '.*\\x07", said), said
    assert len(said.splitlines()) == 1
    held = re.search(r"run holds (\d+) findings?: nnfuzz resume run goes on", said)
    assert held, said
    kept = sorted(p.name for p in (desk / "run/findings").iterdir())
    assert len(kept) == int(held[1]) > 0
    assert main(["show", "run"]) == 0
    assert "stopped: error" in capsys.readouterr().out
    assert main(["repro", f"run/findings/{kept[0]}"]) == 1
    (desk / "model.py").write_text(MODEL.replace("None if", "False if"))
    objects._LOADED.clear()
    assert main(["resume", "run", "-n", "1500", "-q"]) == 1
    assert {p.name for p in (desk / "run/findings").iterdir()} >= set(kept)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_new": "a"}, "max_new is 'a', but it is a whole number"),
        ({"max_new": True}, "max_new is True, but it is a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot', but it is a number"),
        ({"max_seconds": "1m"}, "max_seconds is '1m', but it is a number"),
        ({"mutators": "swap"}, "mutators is 'swap', but it is a list of texts"),
        ({"dictionary": [1]}, r"dictionary is \[1\], but it is a list of texts"),
        ({"mutators": ["foo"]}, "no text mutator is called 'foo': choose one of"),
        ({"seeds": "hello"}, "the seeds are the text 'hello': give a list of texts, or a path"),
    ],
)
def test_arguments_of_another_kind(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        nnfuzz.fuzz_text(**{"model": lambda ps: ps, "seeds": SEEDS, "objective": "empty", "max_inputs": 10, **given})


def test_a_dictionary_without_words_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "dict").write_text("# none\n")
    words = ["text", "model.py:calm", "-s", "prompts.txt", "--objective", "empty", "--dict", "dict"]
    assert main(words) == 2
    assert "dict holds no word: a dictionary has an entry a line" in capsys.readouterr().err


def test_advice_names_only_options_that_there_are() -> None:
    facts: dict[str, Any] = {"title": "nnfuzz text", "target": "m", "unit": "sample", "why": "", "inputs": [],
                             "seed": 0, "device": "cpu", "out": None}  # fmt: skip
    stats = Stats(seed=0, target="m", unit="sample")
    stats.inputs, stats.seconds, stats.last_novel = 100, 50.0, 1.0
    assert any("another --coverage" in h for h in harder(RunInfo(**facts), stats))
    assert not any("--layers" in h for h in harder(RunInfo(**facts), stats))
