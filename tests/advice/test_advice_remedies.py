"""Every kind of failure gets its remedy, tried; what does not hold is not shown as holding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from advice_zoo import EXAMPLES, STABLE, Example, cross_entropy, log_softmax, normalised, rectified, two_logs
from torch import Tensor, nn

from nnfuzz.advice import REMEDIES, Case, Found, Proposal, Remedy, advise
from nnfuzz.advice.divisions import _signed_guard
from nnfuzz.advice.logs import _clamped_log
from nnfuzz.advice.patching import Repair, find_calls, patched
from nnfuzz.probe import first_bad

Z, Z0 = torch.tensor([[60.0, -60.0, 0.0]]), torch.tensor([[0.5, -0.2, 0.1]])


def case_of(e: Example) -> Case:
    params = list(e.fn.parameters()) if isinstance(e.fn, nn.Module) and e.backward else []
    return Case(e.fn, e.bad, backward=e.backward, params=params, seeds=[(e.good, {})])


def by_id(proposals: list[Proposal]) -> dict[str, Proposal]:
    return {p.id: p for p in proposals}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_right_remedy_comes_first_and_is_verified(example: Example) -> None:
    case = case_of(example)
    bad = case.bad()
    assert bad is not None, "the example does not fail"
    proposals = advise(case, bad)
    assert proposals, f"no remedy for {bad.site}"
    assert proposals[0].id == example.first, [(p.id, str(p.verification)) for p in proposals]
    assert proposals[0].verified, str(proposals[0].verification)
    for other in example.also:
        assert by_id(proposals)[other].verified, str(by_id(proposals)[other].verification)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_repaired_program_is_finite_and_agrees_with_the_seed(example: Example) -> None:
    case = case_of(example)
    best = advise(case)[0]
    repaired = patched(example.fn, best.repairs)
    assert first_bad(repaired, example.bad, backward=example.backward, params=case.params) is None
    with torch.enable_grad():
        good, now = example.fn(*example.good), repaired(*example.good)
    tolerance = torch.finfo(good.dtype).eps ** 0.6
    torch.testing.assert_close(now.to(good.dtype), good, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("fn", "x"), STABLE)
def test_stable_programs_need_no_advice(fn: Any, x: Tensor) -> None:
    assert advise(Case(fn, (x,), backward=True, seeds=[((x,), {})])) == []


def test_the_program_itself_is_untouched() -> None:
    e = EXAMPLES[0]
    before = torch.get_rng_state()
    x = e.bad[0].clone().requires_grad_()
    advise(Case(e.fn, (x,), seeds=[(e.good, {})]))
    assert x.grad is None
    assert torch.equal(x.detach(), e.bad[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.isfinite(e.fn(*e.bad))


# ---------------------------------------------------------------------------------------- what must not hold


def wrong(id: str, ops: tuple[str, ...], rewrite: Any, eps: float | None = None) -> Remedy:
    return Remedy(id, ops, "guard", "a wrong remedy", rewrite, eps=None if eps is None else lambda _: (eps,))


def test_an_eps_that_half_precision_cannot_hold_is_rejected() -> None:
    case = Case(lambda x: x.log(), (torch.tensor([0.0]).half(),), seeds=[((torch.tensor([0.4]).half(),), {})])
    (p,) = advise(case, remedies=[wrong("tiny", ("log",), _clamped_log, 1e-8)])
    assert not p.verified
    assert "still give -inf at log" in p.verification.reason


def test_a_clamp_that_changes_ordinary_results_is_rejected() -> None:
    case = Case(log_softmax, (Z,), seeds=[((Z0,), {})])
    (p,) = advise(case, remedies=[wrong("coarse", ("log",), _clamped_log, 0.5)])
    assert not p.verified
    assert p.verification.checks[0].passed
    assert "on the seeds it differs by" in p.verification.reason


def test_a_guard_too_late_for_the_gradient_is_rejected() -> None:
    after = wrong("after", ("sqrt",), lambda call, here: call.func(*call.args).clamp(min=1e-6))
    case = Case(lambda x: x.sqrt(), (torch.tensor([0.0]),), backward=True, seeds=[((torch.tensor([0.4]),), {})])
    (p,) = advise(case, remedies=[after])
    assert not p.verified
    assert "sqrt" in p.verification.reason


def test_a_remedy_that_raises_is_rejected_with_the_error() -> None:
    def breaks(call: Any, here: Any) -> Tensor:
        raise RuntimeError("shapes do not match")

    (p,) = advise(Case(log_softmax, (Z,), seeds=[((Z0,), {})]), remedies=[wrong("broken", ("log",), breaks)]) or [None]
    assert p is None or "raises RuntimeError" in p.verification.reason


def test_the_search_has_the_last_word() -> None:
    bad = Case(log_softmax, (Z,)).bad()
    assert bad is not None
    asked = []

    def finds_again(program: Any) -> Found:
        asked.append(program)
        return Found((bad.site,), 100)

    proposals = advise(Case(log_softmax, (Z,), seeds=[((Z0,), {})], search=finds_again), bad)
    assert asked
    assert not any(p.verified for p in proposals)
    assert "still finds a failure there" in proposals[0].verification.reason


def test_what_the_search_finds_elsewhere_does_not_count_against_a_remedy() -> None:
    other = Case(normalised, (torch.zeros(1, 3),)).bad()
    assert other is not None
    case = Case(log_softmax, (Z,), seeds=[((Z0,), {})], search=lambda program: Found((other.site,), 100))
    best = advise(case)[0]
    assert best.verified
    assert "nothing more at that site (1 elsewhere)" in str(best.verification)


# ---------------------------------------------------------------------------------------- several at once


def test_a_failure_behind_a_failure_gets_its_remedy_too() -> None:
    def chain(x: Tensor) -> Tensor:
        part = torch.log(x)
        return part / (x * 0)

    case = Case(chain, (torch.tensor([0.0, 1.0]),))
    best = advise(case)[0]
    assert best.verified
    assert [r.site.op for r in best.repairs] == ["log", "div"]
    assert "then also" in best.words


# ---------------------------------------------------------------------------------------- words and code


def test_the_line_is_the_users_own_with_the_remedy_in_it() -> None:
    def line(fn: Any, bad: Tensor, good: Tensor, **more: Any) -> str:
        return advise(Case(fn, (bad,), seeds=[((good,), {})], **more))[0].code

    assert line(log_softmax, Z, Z0) == "return -torch.log_softmax(z, -1).sum()"
    assert line(two_logs, torch.tensor([40.0]), torch.tensor([0.3])) == (
        "return -(y * torch.log(h) + (1 - y) * torch.nn.functional.logsigmoid(-z)).mean()"
    )
    assert line(rectified, Z, Z0) == "return torch.log_softmax(z, 1)"
    assert line(normalised, torch.zeros(1, 3), torch.ones(1, 3)) == (
        "return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)"
    )
    assert line(lambda x: x.sqrt(), torch.zeros(1), torch.ones(1), backward=True).find("torch.sqrt(x + 1e-24)") > 0


def test_numbers_are_those_of_the_dtype() -> None:
    half = advise(Case(cross_entropy, (Z.half(), Z.half()), seeds=[]))
    clamp = by_id(half)["log.clamp"]
    assert clamp.repairs[0].eps is not None
    assert torch.tensor(clamp.repairs[0].eps, dtype=torch.float16) > 0


def test_repairs_know_their_calls() -> None:
    bad = Case(log_softmax, (Z,)).bad()
    assert bad is not None
    repair = Repair(bad.site, next(r for r in REMEDIES if r.id == "log.clamp"), 1e-12)
    find_calls(log_softmax, (Z,), {}, [repair])
    assert repair.names == {"log"}


def test_remedies_are_complete() -> None:
    assert len({r.id for r in REMEDIES}) == len(REMEDIES)
    for r in REMEDIES:
        assert r.words
        assert r.code
        assert r.ops
        assert ("{eps}" in r.words or "{eps}" in r.code) == (r.eps is not None), r.id


def test_denominators_keep_their_sign() -> None:
    case = Case(lambda a, b: a / b, (torch.ones(2), torch.tensor([-1e-20, 0.0])))
    bad = case.bad()
    assert bad is not None
    remedy = Remedy("signed", ("div",), "guard", "w", _signed_guard, eps=lambda _: (0.5,))
    repair = Repair(bad.site, remedy, 0.5, frozenset({"div"}))
    assert patched(case.fn, [repair])(*case.args).tolist() == [-2.0, 2.0]
