"""Does it fail alone, and again? And where does it begin?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.told_cause import keyed
from nnfuzz.objectives.base import Cause, Objective
from nnfuzz.probe import BadOp, first_bad
from nnfuzz.probe.raised import raised_at
from nnfuzz.space import Batch
from nnfuzz.targets import PairTarget, Target, TorchTarget, Trace

RERUNS = 3
"""Runs of a candidate alone. All must fail for "confirmed"; some for "flaky"; none for "batch-only"."""


@dataclass
class Confirmation:
    """``status`` as in ``Finding``; ``cause`` and ``trace`` of the candidate alone (None when it never fails alone)."""

    status: str
    cause: Cause | None
    trace: Trace | None
    bad_op: BadOp | None = None


def confirm(target: Target, objective: Objective, candidate: Batch, again: Callable[[int], None]) -> Confirmation:
    """Runs one candidate (leading axis 1) by itself a few times; ``again(i)`` sets the random state before run i."""
    causes: list[Cause] = []
    shown: Trace | None = None
    for i in range(RERUNS):
        again(i)
        cause, trace = judge_alone(target, objective, candidate)
        if cause is not None:
            causes.append(cause)
            shown = trace if shown is None else shown
    if not causes:
        return Confirmation("batch-only", None, None)
    return Confirmation("confirmed" if len(causes) == RERUNS else "flaky", causes[0], shown)


def judge_alone(target: Target, objective: Objective, candidate: Batch) -> tuple[Cause | None, Trace | None]:
    """The cause when the candidate fails alone, None when it does not. A model that raises is a cause too."""
    try:
        trace = target.run(candidate, replace(objective.want, layers=False))  # the bare model, nothing tapped
    except NnfuzzError:
        raise
    except Exception as error:
        return exception_cause(error), None
    if not bool(objective.judge(trace, candidate).hits[0]):
        return None, trace
    return objective.cause(trace, candidate), trace


def exception_cause(error: Exception) -> Cause:
    """Messages that differ only in numbers are one cause; so are those that differ only in what a target knows to be
    the input (see ``text.target``)."""
    first = (str(error).strip().splitlines() or ["no message"])[0]
    plain = (str(getattr(error, "without_input", first)).strip().splitlines() or [first])[0]
    return Cause(
        symptom="exception",
        text=keyed(type(error).__name__, plain),
        details={"exception": type(error).__name__, "message": first[:500]},
        trace_site=True,
    )


def locate(
    target: Target, candidate: Batch, *, backward: bool, raises: bool = False, watch_internal: bool = False
) -> BadOp | None:
    """The first bad operation of a failing candidate, or where it raises; None where nothing can be looked into."""
    side = target.a if isinstance(target, PairTarget) else target
    if not isinstance(side, TorchTarget) or not side.sees_inside:
        return None
    return locate_in(side, side.model_input(candidate), backward=backward, raises=raises, watch_internal=watch_internal)


def locate_in(
    side: Target, given: Batch, *, backward: bool, raises: bool = False, watch_internal: bool = False
) -> BadOp | None:
    """The same for one call's inputs, whatever candidates they hold."""
    if not isinstance(side, TorchTarget) or not side.sees_inside:
        return None
    inputs = {n: t.detach().clone() for n, t in given.items()}
    args, kwargs = side.form.bind(side.differentiable(inputs) if backward else inputs)
    try:
        return first_bad(
            side.model,
            args,
            kwargs,
            backward=backward,
            params=[p for p in side.parameters if p.requires_grad] if backward else (),
            watch="internal" if watch_internal else "outputs",
        )
    except (Exception, SystemExit):  # what cannot be looked into is still a finding, without a site
        if raises:
            with suppress(Exception, SystemExit):
                return raised_at(side.model, args, kwargs)
        return None


def outputs_of(target: Target, trace: Trace | None) -> dict[str, Tensor]:
    """The outputs of one candidate on the CPU, as the model returns them."""
    if trace is None:
        return {}
    one = {n: t.detach().to("cpu", copy=True) for n, t in trace.outputs.items()}
    return one if target.unit == "sample" else {n: t[0] for n, t in one.items()}
