"""Whether rows of a batch change one another, seen by running: for what a graph does not show."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.drive import Named, agree

Call = Callable[[Batch], Named]

LEAST, MOST = 3, 62
"""Rows that are exchanged beside those that are looked at: what is counted or summed up may need many."""


def interacts(call: Call, seeds: Batch, others: Batch, fits: int) -> bool:
    """Whether the results of some rows change with the rows beside them.

    Batches of one size are compared, so that nothing but the other rows can be the reason: a kernel that sums in
    another order for another size is none.

    Args:
        seeds, others: candidates, ``(batch, ...)``; the others are legal, and as unlike the seeds as can be had.
        fits: rows that run together without much ado.
    """
    kept = {n: torch.cat([t[:1], others[n][-1:]]) for n, t in seeds.items()}
    beside = min(MOST, max(LEAST, fits - size(kept)))
    plain = _beside(kept, rows(seeds, [0] * beside))
    try:
        before = _first(call(plain), size(kept))
        if not agree(before, _first(call(plain), size(kept))):
            return False  # it draws random numbers: values cannot tell
    except Exception:  # a row that is refused says nothing of the others
        return False
    for i in range(size(others)):
        try:
            after = _first(call(_beside(kept, rows(others, [i] * beside))), size(kept))
        except Exception:
            continue
        if not agree(after, before):
            return True
    return False


def _beside(kept: Batch, more: Batch) -> Batch:
    return {n: torch.cat([t, more[n]]) for n, t in kept.items()}


def _first(outputs: Named, count: int) -> Named:
    return {n: t[:count] for n, t in outputs.items()}
