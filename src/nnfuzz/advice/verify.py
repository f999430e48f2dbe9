"""Whether a repair holds: the failing inputs, the seeds, and the search run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nnfuzz.advice.agreement import Call, all_finite, gap, nearer_to_truth, outputs_of, tolerance_of
from nnfuzz.advice.patching import Repair, find_calls, patched
from nnfuzz.probe.first_bad import BadOp, first_bad
from nnfuzz.probe.raised import raised_at
from nnfuzz.probe.sites import Site

Program_ = Callable[..., Any]
Step = Literal["inputs", "seeds", "search", "plain training", "walk"]

WITHIN = 2.5
"""An operand that a guard moves by at most so many times its number is at the edge itself: there answers may differ."""
SECONDS = 1.5
"""Time for one remedy's answers on inputs besides the seeds, once a few have been compared."""
FEW = 8


@dataclass(frozen=True)
class Found:
    """What a search gave: sites of its findings (None where unknown), and how many inputs it ran."""

    sites: tuple[Site | None, ...]
    inputs: int


@dataclass
class Case:
    """A failure to be repaired.

    fn, args, kwargs: the program and its failing inputs.
    backward:         whether the failure is one of gradients; `params` are differentiated by as well.
    seeds:            inputs on which the program works, as (args, kwargs).
    others:           legal inputs besides the seeds; on those on which it works a repaired program must agree, too.
    search:           runs a short search against a (repaired) program; None leaves that step out.
    watch:            "internal" if what vanishes again before the output counts as well.
    plain, walk:      of a training, in the place of seeds and search: whether plain training is as it was, and whether
                      the walk that failed stays finite (None: that was tried often enough).
    """

    fn: Program_
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    backward: bool = False
    params: Sequence[Tensor] = ()
    seeds: Sequence[Call] = ()
    others: Sequence[Call] = ()
    search: Callable[[Program_], Found] | None = None
    watch: Literal["outputs", "internal"] = "outputs"
    plain: Callable[[Sequence[Repair]], Check] | None = None
    walk: Callable[[Sequence[Repair]], Check | None] | None = None
    _before: dict[int, list[Tensor] | None] = field(default_factory=dict, repr=False)

    def outputs(self, call: Call) -> list[Tensor]:
        """What the program itself gives."""
        return outputs_of(self.fn, self.fn, call)

    def other_outputs(self, place: int) -> list[Tensor] | None:
        """The same of one of the other inputs; None where it raises or is not finite."""
        if place not in self._before:
            try:
                given = self.outputs(self.others[place])
            except Exception:  # legal by range, and still not what the program takes: nothing to compare with
                given = None
            self._before[place] = given if given is not None and all_finite(given) else None
        return self._before[place]

    def bad(self, fn: Program_ | None = None, *, backward: bool | None = None) -> BadOp | None:
        """The first bad operation of the program, or of a repaired one, on the failing inputs; where it raises."""
        gradients = self.backward if backward is None else backward
        params, program = self.params if gradients else (), fn or self.fn
        try:
            return first_bad(program, self.args, self.kwargs, backward=gradients, params=params, watch=self.watch)
        except Exception:
            if (raised := raised_at(program, self.args, self.kwargs)) is None:
                raise
            return raised


@dataclass(frozen=True)
class Check:
    """One step of a verification. `text` says what was seen, with its numbers."""

    step: Step
    passed: bool
    text: str
    places: tuple[int, ...] = ()
    """Of the seeds' step: which of the case's other inputs agree."""


@dataclass
class Verification:
    """Steps in order; the first that failed is the last."""

    checks: list[Check] = field(default_factory=list)
    gradients: bool | None = None
    """Whether the gradients of the failing inputs are finite too; None where there are none."""

    @property
    def verified(self) -> bool:
        """Every step was taken and passed."""
        return bool(self.checks) and all(c.passed for c in self.checks)

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the case's other inputs agree."""
        return next((c.places for c in self.checks if c.step == "seeds"), ())

    @property
    def reason(self) -> str:
        """Why not, "" when verified."""
        return next((c.text for c in self.checks if not c.passed), "" if self.checks else "it was not tried")

    def __str__(self) -> str:
        return "; ".join(c.text for c in self.checks)


def same_place(a: Site | None, b: Site) -> bool:
    """Whether two sites are one call of the user's, whichever operation inside it is named."""
    if a is None:
        return False
    if b.file is None:
        return a.file is None and a.module == b.module
    return (a.file, a.line, a.column) == (b.file, b.line, b.column)


def try_inputs(case: Case, repairs: Sequence[Repair]) -> tuple[Check, BadOp | None]:
    """Step 1: the failing inputs, repaired. Also gives what still goes wrong, for a second repair."""
    for repair in repairs:
        repair.fired = 0
    repaired = patched(case.fn, repairs)
    try:
        find_calls(case.fn, case.args, case.kwargs, repairs)
        bad = case.bad(repaired)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:120]
        return Check("inputs", False, f"the repaired program raises {type(error).__name__}: {first}"), None
    idle = next((r for r in repairs if not r.fired), None)
    if idle is not None:
        return Check("inputs", False, f"{idle.remedy.id} found no call to act on"), None
    what = "outputs and gradients" if case.backward else "outputs"
    if bad is not None:
        still = "raise" if bad.symptom == "exception" else f"give {bad.symptom}"
        return Check("inputs", False, f"the failing inputs still {still} at {bad.site}"), bad
    return Check("inputs", True, f"the failing inputs give finite {what}"), None


def try_seeds(case: Case, repairs: Sequence[Repair]) -> Check:
    """Step 2: on the seeds, and on other legal inputs on which it works, the repaired program says what the program
    said. At the edge that a guard keeps off, other inputs may differ."""
    if case.plain is not None:
        return case.plain(repairs)
    repaired = patched(case.fn, repairs)
    seen = _Compared(case)
    for call in case.seeds:
        if why := seen.differs(repaired, call, case.outputs(call)):
            return Check("seeds", False, f"on the seeds it {why}")
    start = perf_counter()
    for place, call in enumerate(case.others):
        if len(seen.places) >= FEW and perf_counter() - start > SECONDS:
            break
        before = case.other_outputs(place)
        if before is None:
            continue
        for repair in repairs:
            repair.watched, repair.moved = True, 0.0
        why = seen.differs(repaired, call, before, excused=lambda: _at_edge(repairs, case))
        for repair in repairs:
            repair.watched = False
        if why:
            return Check("seeds", False, f"on other legal inputs, which do not fail, it {why}")
        if why is not None:
            seen.places.append(place)
    return Check("seeds", True, seen.told(len(case.seeds)), tuple(seen.places))


class _Compared:
    """Answers of a repaired program beside those of the program.

    places: which of the other inputs agree. excused: how many differ where they may, by the reason.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.places: list[int] = []
        self.worst = self.bound = 0.0
        self.excused: Counter[str] = Counter()

    def differs(
        self, repaired: Program_, call: Call, before: list[Tensor], excused: Callable[[], bool] | None = None
    ) -> str | None:
        """How it differs, "" if it does not; None if it does and may. ``excused``: whether the inputs are at the edge;
        without it, they must agree."""
        try:
            after = outputs_of(repaired, self.case.fn, call)
        except Exception as error:
            if excused is None:
                raise
            return f"raises {type(error).__name__}"
        if len(before) != len(after):
            return "returns another number of tensors"
        gaps = []
        for x, y in zip(before, after, strict=True):
            if x.shape != y.shape:
                return f"returns shape {list(y.shape)}, not {list(x.shape)}"
            gaps.append((gap(x, y), tolerance_of(x)))
        here, allowed = max(gaps, key=lambda g: g[0] / g[1], default=(0.0, 1.0))
        if here <= allowed:
            self.worst, self.bound = max(self.worst, here), max(self.bound, *(t for _, t in gaps), 0.0)
            return ""
        if excused is not None and (reason := self._reason(call, before, after, at_edge=excused())):
            self.excused[reason] += 1
            return None
        return f"differs by {here:.2g} (relative), more than {allowed:.2g}"

    def _reason(self, call: Call, before: list[Tensor], after: list[Tensor], *, at_edge: bool) -> str:
        """Why other answers are no harm here; "" where they are."""
        if at_edge:
            return "at the guarded edge itself"
        if nearer_to_truth(self.case.fn, call, before, after):
            return "and are nearer to float64 than before"
        if self.case.watch == "internal" and first_bad(self.case.fn, *call, watch="internal") is not None:
            return "where something is not finite inside"
        return ""

    def told(self, seeds: int) -> str:
        if not seeds and not self.places:
            return "there are no seeds to compare on"
        said = f"{compared(seeds, len(self.places))} within {self.worst:.2g} (relative, tolerance {self.bound:.2g})"
        return said + "".join(f", {n} more differ {why}" for why, n in self.excused.items())


def compared(seeds: int, others: int) -> str:
    """ "12 seeds and 40 other inputs agree"."""
    parts = [f"{n} {what}{'s' if n > 1 else ''}" for n, what in ((seeds, "seed"), (others, "other input")) if n]
    parts[0] = "the seed" if seeds == 1 else parts[0]
    return f"{' and '.join(parts)} agree{'s' if seeds + others == 1 else ''}"


def _at_edge(repairs: Sequence[Repair], case: Case) -> bool:
    """Whether all that guards did in the last run was done at their edges: they moved operands, none by more than its
    guard's width."""
    floating = [t.dtype for t in tree_leaves((case.args, dict(case.kwargs))) if isinstance(t, Tensor)]
    dtype = next((d for d in floating if d.is_floating_point), torch.float32)
    guards = [r for r in repairs if r.remedy.kind == "guard"]
    within = all(r.moved <= WITHIN * (r.eps or 0.0) + r.remedy.reach(dtype) for r in guards)
    return within and any(r.moved > 0 for r in guards)


def try_search(case: Case, repairs: Sequence[Repair]) -> Check | None:
    """Step 3: the search finds nothing more at that site; None if it was not run."""
    if case.walk is not None:
        return case.walk(repairs)
    assert case.search is not None
    found = case.search(patched(case.fn, repairs))
    again = [s for s in found.sites if any(same_place(s, r.site) for r in repairs)]
    if again:
        return Check("search", False, f"the search run again still finds a failure there ({again[0]})")
    if not found.inputs:
        why = "repaired, it still fails elsewhere on the seed" if found.sites else "no input could be run in the time"
        return Check("search", True, f"not searched again ({why})")
    elsewhere = f" ({len(found.sites)} elsewhere)" if found.sites else ""
    return Check("search", True, f"{found.inputs:,} inputs searched again: nothing more at that site{elsewhere}")


def gradients_finite(case: Case, repairs: Sequence[Repair]) -> bool | None:
    """Whether the repaired program's gradients on the failing inputs are finite; None when it has none."""
    if case.backward:
        return True
    try:
        return case.bad(patched(case.fn, repairs), backward=True) is None
    except Exception:  # not differentiable: no gradients, no verdict
        return None
