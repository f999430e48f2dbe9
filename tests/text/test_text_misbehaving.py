"""Models and objectives that leave, and objectives that do not answer as asked."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nnfuzz
from nnfuzz.text import quoting
from nnfuzz.text.objectives.custom import Predicate
from nnfuzz.text.telling import rows

PROMPTS = ["three apples", "seven trees", "abc"]


def leaves_at_once(prompts):
    sys.exit(0)


def leaves_later(prompts):
    if any(len(p) > 14 for p in prompts):
        sys.exit(0)
    return ["a" for _ in prompts]


def writes(prompts):
    return ["a b" for _ in prompts]


def test_a_model_that_leaves_on_its_seeds_has_not_been_searched():
    with pytest.raises(nnfuzz.NnfuzzError, match=r"the model called sys\.exit\(0\)"):
        nnfuzz.fuzz_text(leaves_at_once, PROMPTS, objective="repeat:5", max_inputs=100)


def test_a_model_that_leaves_on_a_prompt_is_a_finding_with_that_prompt():
    run = nnfuzz.fuzz_text(leaves_later, PROMPTS, objective="repeat:5", max_inputs=2000, stop_on_first=True)
    assert run.findings[0].symptom == "exception"
    assert len(run.findings[0].details["prompt"]) > 14


@pytest.mark.parametrize("answer", [None, "no", (1, 2, 3), (True, "x"), (True, None), 2, [True]])
def test_an_answer_that_is_none_is_refused(answer):
    with pytest.raises(nnfuzz.UsageError, match=r"returned .*, but True or False, or \(failed, score\)"):
        nnfuzz.fuzz_text(writes, PROMPTS, objective=lambda p, c: answer, max_inputs=50)


@pytest.mark.parametrize(
    ("answer", "judged"),
    [
        (True, (True, None)),
        (0, (False, None)),
        (np.bool_(True), (True, None)),
        (torch.tensor(False), (False, None)),
        ((False, np.float32(0.5)), (False, 0.5)),
        ((True, torch.tensor(2)), (True, 2.0)),
    ],
)
def test_answers_may_be_numbers_of_any_library(answer, judged):
    failed, score = Predicate(lambda p, c: answer)._ask("p", "c")
    assert failed is judged[0]
    assert (score == judged[1]) if judged[1] is not None else score != score


def test_an_objective_that_leaves_is_told():
    with pytest.raises(nnfuzz.UsageError, match=r"the objective .* raised SystemExit"):
        nnfuzz.fuzz_text(writes, PROMPTS, objective=lambda p, c: sys.exit(0), max_inputs=50)


def quotes(prompts):
    for p in prompts:
        if "e" in p and len(p) > 5:
            raise KeyError(f"cannot read {p!r} at {len(p)}")
    return ["ok" for _ in prompts]


def looks_up(prompts):
    known = dict.fromkeys("abcdfghijklmnopqrstuvwxyz .", 1)
    return [str(sum(known[c] for c in p)) for p in prompts]


def test_a_message_that_quotes_its_prompt_is_one_finding_and_shrinks():
    run = nnfuzz.fuzz_text(quotes, PROMPTS, objective="crash", alphabet="seeds", max_inputs=600)
    (finding,) = run.findings
    assert finding.cause.startswith("KeyError: it quotes its prompt, in test_text_misbehaving.py: raise KeyError(")
    assert len(finding.details["prompt"]) == 6
    assert finding.details["prompt"] in finding.details["message"]
    assert ("message", finding.details["message"]) in rows(finding)


def test_a_character_that_a_message_names_is_no_quoted_prompt():
    run = nnfuzz.fuzz_text(looks_up, PROMPTS, objective="crash", alphabet="seeds", max_inputs=300)
    (finding,) = run.findings
    assert (finding.details["message"], finding.details["prompt"]) == ("'e'", "e")


BOXES = """
def quoted(prompts):
    for p in prompts:
        if "zx" in p: raise ValueError(f"cannot handle {p!r}")
    return list(prompts)

def raw(prompts):
    for p in prompts:
        if "zx" in p:
            raise ValueError(f"cannot handle {p}")
    return list(prompts)

def part(prompts):
    for p in prompts:
        if "zx" in p:
            raise ValueError("cannot handle " + repr(p[-3:]))
    return list(prompts)

def constant(prompts):
    for p in prompts:
        if "zx" in p:
            raise ValueError("expected 'a', not a z")
    return list(prompts)
"""


@pytest.mark.parametrize("which", ["quoted", "raw", "part", "constant"])
def test_prompts_that_are_quoted_in_any_length_are_one_failure(which, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("boxes.py").write_text(BOXES)
    seeds = ["a  zx  b", "three apples", "zx", "abc z"]
    run = nnfuzz.fuzz_text(
        f"boxes.py:{which}", seeds, objective="crash", alphabet="seeds", max_inputs=400, max_shrink=0, out="run"
    )
    (finding,) = run.findings
    assert ("it quotes its prompt" in finding.cause) == (which != "constant")
    long = "run/findings/F0001"
    told = nnfuzz.explain(long)
    ends = [line.split()[1:] for line in told.splitlines() if "removed: it is gone" in line]
    assert sorted(e[0] for e in ends) == ["'x'", "'z'"], told
    if which in ("quoted", "raw"):
        assert "a  zx  b" in next(line for line in told.splitlines() if "raises ValueError" in line)
    small = nnfuzz.shrink(long)
    assert small.details["prompt"] == "zx"
    assert nnfuzz.repro(long).reproduced


@pytest.mark.parametrize(
    ("message", "prompt", "said", "held"),
    [
        ("cannot read 'ab'", "xaby", [], True),
        ("cannot read ''", "", [], True),
        ("cannot read ''", "xaby", [], False),
        ("expected 'a'", "banana", ["expected 'a'"], False),
        ("line '\\n'", "a\n", [], True),
        ("no abc", "abc", ["abc", "no {p}"], True),
        ("not a number", "a", ["not a number"], False),
        ("it begins with threeap", "threeapples", [], True),
        ("nothing of it", "threeapples", [], False),
    ],
)
def test_what_is_a_quotation(message, prompt, said, held):
    assert quoting.quotes(message, prompt, said, own=True) is held


WRONG = """
def none(prompts):
    return [None if "aa" in p else p for p in prompts]

def nothing(prompts):
    return None if any("aa" in p for p in prompts) else list(prompts)
"""


@pytest.mark.parametrize(("which", "said"), [
    ("none", "returns None for this prompt, not a text"), ("nothing", "returns None, not a list of texts"),
])  # fmt: skip
def test_no_text_for_one_prompt_is_a_finding_where_the_seeds_had_texts(which, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(WRONG)
    run = nnfuzz.fuzz_text(f"wrong.py:{which}", ["abc", "ab d"], objective="crash", max_inputs=3000, out="run",
                           stop_on_first=True)  # fmt: skip
    (finding,) = run.findings
    assert (finding.symptom, finding.cause, finding.details["prompt"]) == ("exception", f"WrongAnswer: {said}", "aa")
    assert nnfuzz.repro("run/findings/F0001").reproduced
    assert f"  {said}, without raising anything" in nnfuzz.explain("run/findings/F0001")
    done = subprocess.run(
        [sys.executable, "run/findings/F0001/repro.py"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr


def test_no_text_for_a_seed_is_a_mistake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(WRONG)
    with pytest.raises(nnfuzz.UsageError, match=r"gave None for the prompt 'baab', but .*: correct what it returns"):
        nnfuzz.fuzz_text("wrong.py:none", ["abc", "baab"], objective="crash", max_inputs=300)
