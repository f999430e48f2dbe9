"""Whether a repair holds: the failing inputs, the seeds, and the search run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from nnfuzz.advice.patching import Repair, find_calls, patched
from nnfuzz.probe.first_bad import BadOp, first_bad
from nnfuzz.probe.modules import Program, restored_buffers, restored_random_state
from nnfuzz.probe.raised import raised_at
from nnfuzz.probe.sites import Site

Program_ = Callable[..., Any]
NOISE = 16
"""Differences of at most so many eps count as none: the rounding of a few numbers of the size of one."""

Step = Literal["inputs", "seeds", "search", "plain training", "walk"]

AGREEMENT = 0.6
"""Seeds must agree within eps(dtype) ** AGREEMENT of the output's size: 7e-5 in float32, 0.016 in float16."""


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
    seeds: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]] = ()
    search: Callable[[Program_], Found] | None = None
    watch: Literal["outputs", "internal"] = "outputs"
    plain: Callable[[Sequence[Repair]], Check] | None = None
    walk: Callable[[Sequence[Repair]], Check | None] | None = None

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
    """Step 2: on the seeds the repaired program says what the program said."""
    if case.plain is not None:
        return case.plain(repairs)
    if not case.seeds:
        return Check("seeds", True, "there are no seeds to compare on")
    repaired, worst, bound = patched(case.fn, repairs), 0.0, 0.0
    for args, kwargs in case.seeds:
        before, after = (_outputs(fn, case.fn, args, kwargs) for fn in (case.fn, repaired))
        if len(before) != len(after):
            return Check("seeds", False, "on the seeds it returns another number of tensors")
        for x, y in zip(before, after, strict=True):
            if x.shape != y.shape:
                return Check("seeds", False, f"on the seeds it returns shape {list(y.shape)}, not {list(x.shape)}")
            tolerance = torch.finfo(x.dtype).eps ** AGREEMENT
            here = gap(x, y)
            bound = max(bound, tolerance)
            worst = max(worst, here)
            if not here <= tolerance:
                said = f"on the seeds it differs by {here:.2g} (relative), more than {tolerance:.2g}"
                return Check("seeds", False, said)
    return Check("seeds", True, f"the seeds agree within {worst:.2g} (relative, tolerance {bound:.2g})")


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


def gap(x: Tensor, y: Tensor) -> float:
    """Largest difference relative to the element and the typical size of the output; 0 where both are equal."""
    if not x.numel():
        return 0.0
    a, b = x.double(), y.double()
    finite = a.isfinite()
    if bool((finite & ~b.isfinite()).any()):
        return float("inf")
    # A logarithm of a probability near one has an absolute error of eps, however small it is itself: a better form of
    # it must not be held against that noise.
    noise = NOISE * torch.finfo(x.dtype).eps
    typical = a[finite].square().mean().sqrt() if bool(finite.any()) else torch.zeros(())
    relative = torch.where(finite & ((a - b).abs() > noise), (a - b).abs() / (a.abs() + typical).clamp(min=1e-30), 0.0)
    return float(relative.max())


def _outputs(run: Program_, fn: Program_, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Floating outputs of a run that leaves nothing behind, complex ones as pairs; where there are none, the others in
    float64."""
    program = Program.of(fn, (*args, *kwargs.values()))
    copies, named = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, dict(kwargs)))
    with restored_random_state(), restored_buffers(program), torch.enable_grad():
        outputs = run(*copies, **named)
    tensors = [t.detach() for t in tree_leaves(outputs) if isinstance(t, Tensor)]
    tensors = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return [t for t in tensors if t.is_floating_point()] or [t.double() for t in tensors]
