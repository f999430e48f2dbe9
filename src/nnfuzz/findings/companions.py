"""A candidate that fails only beside others: with which of them, and where its failure begins then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.batch import InBatch, as_taken, kept, take_ways, ways_of
from nnfuzz.findings.confirm import RERUNS, Confirmation, exception_cause, locate_in, outputs_of
from nnfuzz.findings.finding import Finding
from nnfuzz.objectives.base import Cause, Objective
from nnfuzz.probe import BadOp
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets import PairTarget, Target, Trace, Want

RUNS = 40
"""Of batches, to find the fewest rows beside which a candidate fails."""
MOST_BYTES = 256 << 20
"""Of a batch that is saved with a finding."""


@dataclass
class Together:
    """``batch``: as few candidates as were found to be enough, in their order; ``row``: the one that fails in it;
    ``cause`` and ``trace``: of its failure there."""

    batch: Batch
    row: int
    cause: Cause
    trace: Trace

    @property
    def beside(self) -> int:
        """How many others there are."""
        return size(self.batch) - 1

    @property
    def fits(self) -> bool:
        """Whether it is small enough to be saved."""
        return sum(t.numel() * t.element_size() for t in self.batch.values()) <= MOST_BYTES

    def complete(self, finding: Finding, target: Target, want: Want) -> None:
        """What the finding has of its batch: the candidates, where they fit, and what the model gave for its row."""
        finding.outputs = outputs_of(target, self.trace)
        if self.fits:
            finding.batch = kept(target, self.batch, self.row, want)


def together(
    target: Target, objective: Objective, batch: Batch, row: int, again: Callable[[int], None]
) -> Together | None:
    """Fewer and fewer of the others, as long as it fails; None where it does not fail again even among all of them.

    Others that fail themselves are left out first: what is found out about the batch is meant to be about this one.
    """
    left = RUNS

    def failing(index: Sequence[int]) -> set[int]:
        nonlocal left
        left -= 1
        again(0)
        try:
            some = rows(batch, list(index))
            hits = objective.judge(target.run(some, objective.want), some).hits
        except NnfuzzError:
            raise
        except Exception:
            return set()
        return {index[i] for i in hits.nonzero()[:, 0].tolist()}

    index = _at_once(target, row, size(batch), objective.want)
    found = failing(index)
    if row not in found:
        return None
    calm = [i for i in index if i == row or i not in found]
    if 1 < len(calm) < len(index) and row in failing(calm):
        index = calm
    parts = 2
    others = [i for i in index if i != row]
    while len(others) > 1 and parts <= len(others) and left > 0:
        step = -(-len(others) // parts)
        pieces = [others[a : a + step] for a in range(0, len(others), step)]
        tried = [*pieces, *([[i for i in others if i not in p] for p in pieces] if parts > 2 else [])]
        smaller = next((p for p in tried if p and left > 0 and row in failing(sorted([*p, row]))), None)
        parts = 2 if smaller is not None else 2 * parts
        others = others if smaller is None else smaller
    index = sorted([*others, row])
    some, at = rows(batch, index), index.index(row)
    again(0)
    cause, trace = judge_in(target, objective, some, at)
    return None if cause is None or trace is None else Together(some, at, cause, trace)


def judge_in(target: Target, objective: Objective, batch: Batch, row: int) -> tuple[Cause | None, Trace | None]:
    """The cause when one row of a batch fails, None when it does not; and what the row gave. A model that raises is a
    cause too, without a trace."""
    try:
        trace = target.run(batch, objective.want)
    except NnfuzzError:
        raise
    except Exception as error:
        return exception_cause(error), None
    own = trace.rows([row])
    if not bool(objective.judge(trace, batch).hits[row]):
        return None, own
    return objective.cause(own, rows(batch, [row])), own


def confirm_in(target: Target, objective: Objective, saved: InBatch, again: Callable[[int], None]) -> Confirmation:
    """A saved batch run a few times as it was run: "batch-only" when its row fails each time, "flaky" when not; without
    a cause when it never does. ``again(i)`` sets the random state before run i. The target keeps the saved ways."""
    take_ways(target, saved.ways)
    batch = as_taken(target, saved)
    causes: list[tuple[Cause, Trace | None]] = []
    for i in range(RERUNS):
        again(i)
        cause, trace = judge_in(target, objective, batch, saved.row)
        if cause is not None:
            causes.append((cause, trace))
    if not causes:
        return Confirmation("batch-only", None, None)
    return Confirmation("batch-only" if len(causes) == RERUNS else "flaky", *causes[0])


def failing_in(
    target: Target, objective: Objective, saved: InBatch, cause: str, again: Callable[[int], None]
) -> Callable[[Batch], Tensor]:
    """For a shrinker: which candidates fail by that cause in the place of the saved row, each in a run of its own."""
    batch = as_taken(target, saved)

    def fails(tries: Batch) -> Tensor:
        mask = torch.zeros(size(tries), dtype=torch.bool)
        for i in range(size(tries)):
            again(0)
            seen, _ = judge_in(target, objective, with_row(batch, saved.row, rows(tries, slice(i, i + 1))), saved.row)
            mask[i] = seen is not None and seen.text == cause
        return mask

    return fails


def with_row(batch: Batch, row: int, candidate: Batch) -> Batch:
    """A copy in which one candidate (leading axis 1) is another."""
    made = {n: t.clone() for n, t in batch.items()}
    for name, t in made.items():
        t[row] = candidate[name][0].to(t.device)
    return made


def locate_together(target: Target, found: Together, *, watch_internal: bool) -> BadOp | None:
    """The first bad operation of the run of the whole batch."""
    side = target.a if isinstance(target, PairTarget) else target
    saved = kept(target, found.batch, found.row, Want(backward=found.cause.phase == "backward"))
    with suppress(Exception):
        inputs = saved.ways[0].joined({n: t.to(side.device) for n, t in saved.inputs.items()})
        if inputs is not None and found.cause.trace_site:
            backward = found.cause.phase == "backward"
            return locate_in(side, inputs, backward=backward, watch_internal=watch_internal)
    return None


def said(found: Together | None, unit: str) -> str:
    """What a reader is told beside "not alone"."""
    if found is None:
        return (
            "run again with its batch it did not fail, so the batch is not saved: the model is not deterministic, or "
            "the failure hangs on more"
        )
    enough = "is enough" if found.beside == 1 else "are enough"
    ending = "s" * (found.beside != 1)
    saved = "" if found.fits else f"; the batch has more than {MOST_BYTES >> 20} MiB, so it is not saved"
    if unit != "sample":
        return f"{found.beside} other{ending} beside it {enough}{saved}"
    return (
        f"{found.beside} other row{ending} beside it {enough}: the rows of a batch depend on one another here, and "
        f"--unit batch searches whole batches{saved}"
    )


def _at_once(target: Target, row: int, count: int, want: Want) -> list[int]:
    """Rows that one call of the model took together with this one."""
    chunk = ways_of(target, want)[0].chunk or count
    start = row // chunk * chunk
    return list(range(start, min(count, start + chunk)))
