"""A remedy must leave right answers as they are: on legal inputs besides the seeds, on which nothing fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nnfuzz
from nnfuzz.advice import Case, Proposal, advise
from nnfuzz.advice.agreement import gap
from nnfuzz.advice.others import other_inputs
from nnfuzz.advice.patching import patched
from nnfuzz.rerun import job_of

T = torch.tensor


def ratio(a: Tensor, b: Tensor) -> Tensor:
    return a / b


def tried(fn: Any, bad: Any, good: Any, others: Any, **more: Any) -> dict[str, Proposal]:
    def calls(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x if isinstance(x, tuple) else (x,), {})

    args, _ = calls(bad)
    case = Case(fn, args, seeds=[calls(good)], others=[calls(x) for x in others], **more)
    return {p.id: p for p in advise(case)}


WRONG: dict[str, tuple[str, Callable[..., Tensor], Any, Any, Any]] = {
    "denominator below zero": ("div.guard", ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), (T([1.0]), T([-0.5]))),
    "reciprocal of a negative": ("div.guard", lambda x: 1 / x, T([0.0]), T([2.0]), T([-0.5])),
    "lgamma of a negative": ("bound.gamma", torch.lgamma, T([0.0]), T([2.0]), T([-0.5])),
    "whole power of a negative": ("pow.clamp", lambda x: x**-1, T([0.0]), T([2.0]), T([-0.5])),
    "angle beyond the right half": (
        "div.atan2", lambda y, x: torch.atan(y / x) + 0 * (x * y).log2().nan_to_num(0, 0, 0), (T([0.0]), T([0.0])),
        (T([1.0]), T([2.0])), (T([1.0]), T([-2.0])),
    ),
    "infinity that is right": (
        "div.double_where", lambda a, b: torch.exp(-(a / b)), (T([-1.0]), T([0.0])), (T([1.0]), T([2.0])),
        (T([1.0]), T([0.0])),
    ),
    "exp in half precision": ("exp.clamp", lambda x: x.exp(), T([12.0]).half(), T([1.0]).half(), T([10.0]).half()),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_changes_right_answers_does_not_hold(name: str) -> None:
    remedy, fn, bad, good, other = WRONG[name]
    alone, beside = tried(fn, bad, good, []), tried(fn, bad, good, [other])
    assert alone[remedy].verified, str(alone[remedy].verification)
    assert not beside[remedy].verified
    assert "on other legal inputs, which do not fail, it differs by" in beside[remedy].verification.reason


HELD: dict[str, tuple[str, Callable[..., Tensor], Any, Any, Any]] = {
    "log": ("log.clamp", torch.log, T([0.0]), T([0.4]), T([3e-13])),
    "log below zero": ("log.clamp", torch.log, T([0.0]), T([0.4]), T([-0.4])),
    "quotient": ("div.guard", ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), (T([1.0]), T([-1e-13]))),
    "root": ("sqrt.floor", lambda x: x.sqrt() * 1e12, T([-1.0]), T([0.4]), T([1e-25])),
    "norm": ("exp.clamp", torch.exp, T([95.0]), T([0.4]), T([87.0])),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_at_the_edge_itself_answers_may_differ(name: str) -> None:
    remedy, fn, bad, good, other = HELD[name]
    held = tried(fn, bad, good, [other])[remedy]
    assert held.verified, str(held.verification)
    if "below" not in name:
        assert "the seed agrees within" in str(held.verification)
        assert "1 more differ at the guarded edge itself" in str(held.verification)


def test_where_the_program_has_lost_its_digits_the_better_form_may_differ() -> None:
    def spread(x: Tensor) -> Tensor:
        return ((x * x).mean(-1) - x.mean(-1) ** 2).sqrt()

    def near(mean: float, width: float, seed: int) -> Tensor:
        return mean + width * torch.rand(64, generator=torch.Generator().manual_seed(seed))

    bad = next(x for x in (near(731, 1e-3, seed) for seed in range(99)) if bool(spread(x).isnan()))
    worse = near(100, 0.3, 4)
    held = tried(spread, bad, near(-1, 2, 1), [worse])["sqrt.two_pass"]
    assert held.verified, str(held.verification)
    assert "1 more differ and are nearer to float64 than before" in str(held.verification)


def test_the_guard_of_two_sides_comes_where_that_of_one_does_not_hold() -> None:
    args = (ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])))
    assert "div.signed" not in tried(*args, [])
    assert next(iter(tried(*args, [(T([1.0]), T([-0.5]))]))) == "div.signed"


def test_what_is_told_is_what_was_compared() -> None:
    others = [(T([1.0]), T([d])) for d in (1.0, 3.0, 0.0, float("nan"))] + [(T([1.0]), torch.ones(2, 3)[:, :2])]
    said = str(tried(ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), others)["div.guard"].verification)
    assert "the seed and 3 other inputs agree within" in said  # the two others are not finite as it is
    none = str(tried(ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), [])["div.guard"].verification)
    assert "the seed agrees within" in none


def test_inputs_that_the_program_refuses_say_nothing() -> None:
    others = [(torch.ones(2), torch.ones(3))]
    held = tried(ratio, (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), others)["div.guard"]
    assert held.verified
    assert "the seed agrees within" in str(held.verification)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5, 5, width=32).filter(lambda d: abs(d) > 0.01), min_size=1, max_size=6))
def test_a_verified_remedy_gives_the_answers_of_the_program(denominators: list[float]) -> None:
    others = [(T([1.0, -2.0]), T([d, 1.0])) for d in denominators]
    found = tried(ratio, (T([1.0, 1.0]), T([0.0, 1.0])), (T([1.0, 1.0]), T([2.0, 1.0])), others)
    assert found["div.guard"].verified == (min(denominators) > 0)
    for p in found.values():
        for a, b in others if p.verified else ():
            assert gap(ratio(a, b), patched(ratio, p.repairs)(a, b)) <= 1e-4


class Tempered(nn.Module):
    """Finite for every temperature but 1."""

    def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
        return torch.softmax(x / (temperature - 1), -1)


QUICK: dict[str, Any] = {"max_inputs": 3000, "max_seconds": 6, "stop_on_first": True}


def test_explain_of_a_module_proposes_nothing_that_changes_its_answers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    seeds = {"x": torch.rand(6, 3, generator=generator), "temperature": torch.full((6, 1), 2.0)}
    model = Tempered()
    run = nnfuzz.find_nans(model, seeds, ranges={"temperature": (0.5, 2.0)}, out=tmp_path / "run", **QUICK)
    said = nnfuzz.explain(tmp_path / "run" / "findings" / run.findings[0].id, model, inputs=100, seconds=0.2)
    assert "[div.signed]" in said, said
    assert "[div.guard]" not in said
    assert "  div.guard: on other legal inputs, which do not fail, it differs by" in said
    assert "the seed and " in said


def limited(x: Tensor, k: Tensor) -> Tensor:
    return torch.log(x[..., :1] + k)


@pytest.mark.parametrize("eps", [None, 0.75])
def test_other_inputs_are_legal_and_lie_on_both_sides(eps: float | None, tmp_path: Path) -> None:
    seeds = {"x": torch.full((4, 2), 0.5), "k": torch.tensor([[0], [1], [0], [1]])}
    more = QUICK if eps is None else QUICK | {"eps": {"x": eps}}
    run = nnfuzz.find_nans(limited, seeds, ranges={"x": (-1.0, 1.0), "k": [0, 1]}, out=tmp_path / "run", **more)
    finding, place = run.findings[0], tmp_path / "run" / "findings" / run.findings[0].id
    made = other_inputs(finding, job_of(finding, place, limited, None))
    assert len(made) > 50
    x, k = torch.cat([m["x"] for m in made]), torch.cat([m["k"] for m in made])
    assert x.shape[1:] == (2,)
    assert set(k.flatten().tolist()) == {0, 1}
    assert k.dtype == torch.int64
    low = -1.0 if eps is None else 0.5 - eps
    assert low - 1e-6 <= float(x.min()) < low + 0.25
    assert 0.75 < float(x.max()) <= 1.0
    again = other_inputs(finding, job_of(finding, place, limited, None))
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(made, again, strict=True))
