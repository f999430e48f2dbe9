"""From a failure to the remedies that hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nnfuzz.advice import bounds, divisions, exps, halves, logs, masks, matrices, reductions, roots
from nnfuzz.advice.patching import Repair
from nnfuzz.advice.remedy import Remedy, dtype_of, remedies_for
from nnfuzz.advice.source import code_line
from nnfuzz.advice.verify import (
    Case,
    Check,
    Verification,
    gradients_finite,
    same_place,
    try_inputs,
    try_search,
    try_seeds,
)
from nnfuzz.probe.first_bad import BadOp

TABLES = (logs, exps, roots, divisions, bounds, masks, reductions, halves, matrices)
"""Where remedies are defined, in the order in which equals are tried."""
SHOWN = 3
"""Remedies that are taken through the search: more choice than that helps nobody."""
DEPTH = 3
"""Repairs together, where one failure hides another."""
TRIES = 60
"""Runs of the failing inputs altogether."""
OUT_OF_REACH = "it could not be put in place here: the operation runs inside a scripted program"


@dataclass
class Proposal:
    """A remedy with what came of trying it.

    repairs: the remedy at the failing site first, then what else was needed.
    code:    the user's own line with the remedy in it, where it could be rewritten; else a pattern.
    """

    remedy: Remedy
    repairs: list[Repair]
    words: str
    code: str
    verification: Verification = field(default_factory=Verification)

    @property
    def verified(self) -> bool:
        return self.verification.verified

    @property
    def id(self) -> str:
        return self.remedy.id


def advise(case: Case, bad: BadOp | None = None, *, remedies: Sequence[Remedy] | None = None) -> list[Proposal]:
    """Remedies for a failure, each tried; verified ones first, best first.

    bad:      the failing operation, looked for when not given.
    remedies: these instead of the registered ones.
    """
    bad = bad or case.bad()
    if bad is None:
        return []
    budget = _Budget(TRIES)
    proposals: list[Proposal] = []
    for remedy in remedies if remedies is not None else list(remedies_for(bad)):
        if any(p.id == remedy.instead and p.verified for p in proposals):
            continue
        proposal = _best_variant(case, bad, remedy, budget)
        if proposal is not None:
            proposals.append(proposal)
    fine = [p for p in proposals if p.verified]
    for p in fine:
        p.verification.gradients = gradients_finite(case, p.repairs)
    fine.sort(key=_order)
    held, searched = 0, case.search is not None or case.walk is not None
    for p in fine:
        if searched and held < SHOWN and (check := try_search(case, p.repairs)) is not None:
            p.verification.checks.append(check)
            held += p.verified
    kept = [p for p in fine if len(p.verification.checks) == 3 or not searched]
    failed = [p for p in proposals if p not in fine]
    return sorted(kept, key=lambda p: not p.verified) + failed


def _order(p: Proposal) -> tuple[int, bool, int]:
    """Exact forms first; a guard with gradients that are not finite comes after float32."""
    bare = p.verification.gradients is False
    return (p.remedy.rank + (2 if bare and p.remedy.rank else 0), bare, len(p.repairs))


@dataclass
class _Budget:
    left: int

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _variants(remedy: Remedy, bad: BadOp) -> Iterator[float | None]:
    yield from remedy.eps(dtype_of(bad)) if remedy.eps is not None else (None,)


def _best_variant(case: Case, bad: BadOp, remedy: Remedy, budget: _Budget) -> Proposal | None:
    """The remedy with the first of its numbers that holds; with the last, and why not, if none does; None if it has
    nothing to act on here."""
    last: Proposal | None = None
    for eps in _variants(remedy, bad):
        if not budget.spend():
            break
        repairs, verification = _repaired(case, [Repair(bad.site, remedy, eps)], budget)
        if not repairs[0].reachable and _plausible(remedy, bad):
            verification = Verification([Check("inputs", False, OUT_OF_REACH)])
            return Proposal(remedy, repairs, _worded(repairs), _coded(repairs), verification)
        if not repairs[0].fired:
            continue
        last = Proposal(remedy, repairs, _worded(repairs), _coded(repairs), verification)
        if verification.checks[-1].passed:
            verification.checks.append(try_seeds(case, repairs))
        if last.verified:
            return last
    return last


def _plausible(remedy: Remedy, bad: BadOp) -> bool:
    """Whether a remedy may be named where it cannot be tried: what needs a pattern only if the chain shows it."""
    if remedy.kind != "exact":
        return True
    made = [link.site.op for link in bad.chain if link.site is not None]
    return remedy.id == "log.softmax" and any(op in ("softmax", "sigmoid") for op in made)


def _repaired(case: Case, repairs: list[Repair], budget: _Budget) -> tuple[list[Repair], Verification]:
    """The repairs, with more of them where another operation fails once the first is repaired."""
    check, bad = try_inputs(case, repairs)
    verification = Verification([check])
    if check.passed or bad is None or len(repairs) >= DEPTH or any(same_place(bad.site, r.site) for r in repairs):
        return repairs, verification
    held: tuple[list[Repair], Verification] | None = None
    for remedy in remedies_for(bad):
        for eps in _variants(remedy, bad):
            if not budget.spend():
                break
            further, result = _repaired(case, [*repairs, Repair(bad.site, remedy, eps)], budget)
            if result.checks[-1].passed:
                if try_seeds(case, further).passed:
                    return further, result
                held = held or (further, result)  # it mends the failing inputs at least: told with what it changes
    if held is not None:
        return held
    try_inputs(case, repairs)
    return repairs, verification


def _worded(repairs: Sequence[Repair]) -> str:
    parts = [_words(r) for r in repairs]
    return parts[0] + "".join(f"; then also, {r.site}: {w}" for r, w in zip(repairs[1:], parts[1:], strict=True))


def _words(repair: Repair) -> str:
    return repair.remedy.words.replace("{eps}", "" if repair.eps is None else f"{repair.eps:.3g}")


def _coded(repairs: Sequence[Repair]) -> str:
    return "\n".join(line for line in (code_line(r) for r in repairs) if line)
