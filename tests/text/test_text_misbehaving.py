"""Models and objectives that leave, and objectives that do not answer as asked."""

import sys

import numpy as np
import pytest
import torch

import nnfuzz
from nnfuzz.text.objectives.custom import Predicate

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
    assert finding.cause == "KeyError: \"cannot read '…' at #\""
    assert len(finding.details["prompt"]) == 6
    assert finding.details["prompt"] in finding.details["message"]


def test_a_character_that_a_message_names_is_no_quoted_prompt():
    run = nnfuzz.fuzz_text(looks_up, PROMPTS, objective="crash", alphabet="seeds", max_inputs=300)
    (finding,) = run.findings
    assert (finding.cause, finding.details["prompt"]) == ("KeyError: 'e'", "e")
