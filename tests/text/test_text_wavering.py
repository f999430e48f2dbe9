"""A black box whose answers are not always the same."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import nnfuzz
from nnfuzz.findings.finding import Finding

SEEDS = ["hello there", "a cat.", "the dog"]
NOTE = "two calls with the same seeds gave different answers"


def wavering(chance: float) -> Any:
    draw = random.Random(0)

    def generate(prompts: list[str]) -> list[str]:
        return [p[:3] + (" no" * 5 if draw.random() < chance else draw.choice(["a", "b"])) for p in prompts]

    return generate


@pytest.mark.parametrize("chance", [0.01, 0.5])
def test_what_does_not_come_again_is_flaky_and_not_the_batchs_doing(chance: float) -> None:
    run = nnfuzz.fuzz_text(wavering(chance), SEEDS, objective="repeat:4", max_inputs=600, max_shrink=20)
    assert any(n.startswith(NOTE) for n in run.notes)
    assert {f.status for f in run.findings} <= {"flaky", "confirmed"}
    flaky: list[Finding] = [f for f in run.findings if f.status == "flaky"]
    assert flaky
    for f in flaky:
        assert (f.symptom, f.details["run"]["objective"]) == ("repeated word", "repeat:4")
        assert any("not deterministic" in n for n in f.notes)
        text = f.details["continuation"]  # the one that failed
        assert text.endswith(" no" * 5)
        assert [text[a:b] for a, b in f.details["spans"]] == ["no no no no"]
    shown = [n for f in flaky for n in f.notes if n.startswith("what is shown is the continuation that failed")]
    assert shown or chance > 0.1
    assert all(re.search(r"; asked again, it wrote '.*'$", n) for n in shown)


def test_a_steady_one_is_not_accused() -> None:
    run = nnfuzz.fuzz_text(lambda ps: [p[::-1] for p in ps], SEEDS, objective="empty", max_inputs=100)
    assert not any(n.startswith(NOTE) for n in run.notes)


def test_an_error_that_does_not_come_again_is_flaky() -> None:
    alone = 0

    def generate(prompts: list[str]) -> list[str]:
        nonlocal alone
        if all(p in SEEDS for p in prompts) or alone:
            return list(prompts)
        alone += len(prompts) == 1
        raise RuntimeError("no luck")

    run = nnfuzz.fuzz_text(generate, SEEDS, objective="crash", max_inputs=6000, max_shrink=20)
    assert [(f.symptom, f.status) for f in run.findings] == [("exception", "flaky")]
