"""A candidate that fails only beside others: with which of them, and where its failure begins then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.confirm import locate_in
from nnfuzz.objectives.base import Cause, Objective
from nnfuzz.probe import BadOp
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets import PairTarget, Target

RUNS = 40
"""Of batches, to find the fewest rows beside which a candidate fails."""


@dataclass
class Together:
    """``batch``: as few candidates as were found to be enough, in their order; ``row``: the one that fails in it;
    ``cause``: of its failure there."""

    batch: Batch
    row: int
    cause: Cause

    @property
    def beside(self) -> int:
        """How many others there are."""
        return size(self.batch) - 1


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

    index = _at_once(target, row, size(batch))
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
    trace = target.run(some, objective.want)
    if not bool(objective.judge(trace, some).hits[at]):
        return None
    cause = objective.cause(trace.rows([at]), rows(some, [at]))
    return Together(some, at, cause)


def locate_together(target: Target, found: Together, *, watch_internal: bool) -> BadOp | None:
    """The first bad operation of the run of the whole batch."""
    side = target.a if isinstance(target, PairTarget) else target
    with suppress(Exception):
        inputs = side.joined(found.batch)  # type: ignore[attr-defined]
        if inputs is not None and found.cause.trace_site:
            backward = found.cause.phase == "backward"
            return locate_in(side, inputs, backward=backward, watch_internal=watch_internal)
    return None


def said(found: Together | None, unit: str) -> str:
    """What a reader is told beside "not alone"."""
    if found is None:
        return "run again with its batch it did not fail: the model is not deterministic, or the failure hangs on more"
    if unit != "sample":
        return f"{found.beside} other{'s' * (found.beside != 1)} beside it {_are(found.beside)} enough"
    return (
        f"{found.beside} other row{'s' * (found.beside != 1)} beside it {_are(found.beside)} enough: the rows of a "
        "batch depend on one another here, and --unit batch searches whole batches"
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _at_once(target: Target, row: int, count: int) -> list[int]:
    """Rows that one call of the model took together with this one."""
    side = target.a if isinstance(target, PairTarget) else target
    chunk = int(getattr(side, "chunk", 0)) or count
    start = row // chunk * chunk
    return list(range(start, min(count, start + chunk)))
