"""Running a batch when some candidates may make the model raise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.errors import NnfuzzError
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.base import Target, Trace, Want

NOTHING = "no output"
MOST_CRASHES = 4
"""A batch is searched for at most this many candidates that raise; what is undecided then is left unrun."""


@dataclass
class Guarded:
    """``trace`` covers the candidates ``ran`` (row numbers), ``crashed`` the rows that raised alone, with the error."""

    trace: Trace | None
    ran: NDArray[np.int64]
    crashed: list[tuple[int, Exception]] = field(default_factory=list)


def run_guarded(target: Target, batch: Batch, want: Want, most_crashes: int = MOST_CRASHES) -> Guarded:
    """Runs the batch; when the model raises, halves it until the candidates to blame stand alone.

    Out of memory is nobody's fault in particular: the halves are run one after the other and joined.
    """
    count = size(batch)
    try:
        return Guarded(_run(target, batch, want), np.arange(count))
    except NnfuzzError:
        raise
    except Exception as error:
        first: Exception = error
    crashed: list[tuple[int, Exception]] = []
    parts: list[tuple[int, int, Trace]] = []
    pending = [(0, count, first)]
    while pending and len(crashed) < most_crashes:
        start, stop, blamed = pending.pop()
        if stop - start == 1:
            crashed.append((start, blamed))
            continue
        middle = (start + stop) // 2
        for a, b in ((middle, stop), (start, middle)):
            try:
                parts.append((a, b, _run(target, rows(batch, slice(a, b)), want)))
            except NnfuzzError:
                raise
            except Exception as inner:
                pending.append((a, b, inner))
    parts.sort(key=lambda p: p[0])  # row i of the trace is the i-th candidate that ran
    ran = [row for a, b, _ in parts for row in range(a, b)]
    return Guarded(
        target.stacked([t for _, _, t in parts], [b - a for a, b, _ in parts]) if parts else None,
        np.array(ran, np.int64),
        crashed,
    )


def _run(target: Target, batch: Batch, want: Want) -> Trace:
    """A trace has an output at least: where no candidate gives anything, an empty one."""
    trace = target.run(batch, want)
    if not trace.outputs:
        trace.outputs[NOTHING] = torch.zeros(size(batch), 0, device=target.device)
    return trace


def seed_all(seed: int, device: torch.device) -> None:
    """Models that draw random numbers (dropout in training mode) draw the same ones in a resumed run. Only the
    generators in use: ``torch.manual_seed`` looks at every kind of device and takes longer than a small batch."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
