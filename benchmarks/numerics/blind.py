"""Training with no gradient of any operand: what is left of the search when its guide is taken away.

"random": every step trains on natural rows, some of them replaced by uniform noise, by the ends of the range or by
noise around themselves. "coverage": the same changes, kept where they bring the nearest unsafe operand nearer (a
traced pass tells the distance, its gradient is never taken); TensorFuzz's way, with the distance as its guide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.training.lens import Lens
from nnfuzz.training.program import Batch, Program
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, seeded

ROWS = 8  # rows that are watched by their distance, as many as the search's own scouts


def mutated(program: Program, batch: Batch, rows: int, g: torch.Generator) -> Batch:
    """Some rows of the searched tensors changed in one of four ways, within their range."""
    out = dict(batch)
    for name in program.movable(batch):
        x = batch[name].detach().clone()
        low, high = program.bounds(name)
        whole = x.dim() == 0 or x.shape[0] != rows
        which = torch.ones(1, dtype=torch.bool) if whole else torch.rand(rows, generator=g) < 0.5
        kind = int(torch.randint(4, (1,), generator=g))
        noise = torch.rand(x.shape, generator=g)
        if kind == 0:
            new = low + (high - low) * noise
        elif kind == 1:
            new = torch.where(noise < 0.5, low, high).to(x.dtype)
        elif kind == 2:
            new = x + 0.3 * (high - low) * (2 * noise - 1)
        else:
            new = torch.full_like(x, high if float(noise.flatten()[0]) < 0.5 else low)
        mask = which.reshape(-1, *[1] * (x.dim() - 1)) if x.dim() else which[0]
        out[name] = torch.where(mask, new, x).clamp(low, high).to(x.dtype)
    return out


def blind(
    program: Program, seconds: float, seed: int, guided: bool, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Search for `seconds`: {"found", "op", "steps", "seconds", "near"}."""
    stream, walk, lens = Stream(program, seed), Walk(program, seed), Lens(program)
    g = torch.Generator().manual_seed(seed)
    rows = min(ROWS, stream.rows)
    scouts = stream.take(stream.first, torch.arange(rows))
    lens.survey(walk.model, scouts, rows)
    targets = list(lens.targets.values())
    best = float("inf")
    started, steps, failure = clock(), 0, None
    while failure is None and clock() - started < seconds:
        seeded(seed * 31 + steps)
        batch = mutated(program, stream[steps], stream.rows, g)
        if guided and targets:
            near, scouts = nearer(program, lens, walk, scouts, rows, g)
            best = min(best, near)
            batch = _joined(stream, batch, scouts, rows)
        failure = walk.check(batch) or walk.train(batch)[0]
        steps += 1
    return {
        "found": failure is not None,
        "steps": steps,
        "seconds": clock() - started,
        "near": best if best < float("inf") else None,
    }


def nearer(
    program: Program, lens: Lens, walk: Walk, scouts: Batch, rows: int, g: torch.Generator
) -> tuple[float, Batch]:
    """One mutation of the watched rows; each row keeps whichever of the two is nearer to any edge."""
    other = mutated(program, scouts, rows, g)
    old, new = (_distances(lens, walk, b, rows) for b in (scouts, other))
    take = new < old
    kept = {
        k: torch.where(take.reshape(-1, *[1] * (v.dim() - 1)), other[k], v) if v.dim() and v.shape[0] == rows else v
        for k, v in scouts.items()
    }
    return float(torch.minimum(old, new).min()), kept


def _distances(lens: Lens, walk: Walk, batch: Batch, rows: int) -> Tensor:
    """Of every row to the nearest edge, as a share of where natural data lie."""
    targets = list(lens.targets.values())
    with torch.no_grad():
        read = lens.read(walk.model, batch, rows, targets)
    shares = [read[t.name].detach() / t.start for t in targets if t.name in read]
    return torch.nan_to_num(torch.stack(shares).amin(0), nan=0.0) if shares else torch.zeros(rows)


def _joined(stream: Stream, batch: Batch, scouts: Batch, rows: int) -> Batch:
    """The watched rows in the place of the first rows of a batch."""
    return {
        k: torch.cat([scouts[k], v[rows:]]) if stream.is_rowwise(v) and stream.rows > rows else v
        for k, v in batch.items()
    }
