"""The bare model's own speed, against which a run's speed is stated."""

from __future__ import annotations

import time

import torch

from nnfuzz.seeds import SeedGroup
from nnfuzz.targets import Target, Want

PATIENCE = 0.15
"""Seconds for the whole measurement (one call a size at least): it is for the status line; benchmarks take longer."""


def raw_rate(target: Target, group: SeedGroup, most_rows: int, patience: float = PATIENCE) -> float | None:
    """Candidates per second of the model alone, at the best of a few batch sizes, nothing watched; None when it
    raises on some seed (a finding, which the first look has reported)."""
    try:
        return _best_rate(target, group, most_rows, patience)
    except Exception:
        return None


def _best_rate(target: Target, group: SeedGroup, most_rows: int, patience: float) -> float:
    sizes = sorted({1, *(n for n in (2, 4, 16, 64) if n < most_rows), max(1, most_rows // 4), most_rows})
    best, started = 0.0, time.perf_counter()
    for count in sizes:
        slow = best > 0 and count / best > 4 * patience  # as things stand this size alone would take too long
        if slow or time.perf_counter() - started > patience:  # what is known must do
            break
        index = torch.arange(count) % len(group.index)
        batch = {n: t[index.to(t.device)] for n, t in group.batch.items()}
        began = last = time.perf_counter()
        while last - began < patience / len(sizes):
            start = last
            target.run(batch, Want(layers=False))
            if target.device.type == "cuda":
                torch.cuda.synchronize(target.device)
            last = time.perf_counter()
            best = max(best, count / max(last - start, 1e-9))
    return best
