"""Seeds that a run kept beside its findings, for whoever mends its model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nnfuzz.errors import NnfuzzError
from nnfuzz.space import Batch
from nnfuzz.store_files import from_json
from nnfuzz.store_seeds import load_seed_groups

MOST = 32
"""Seeds on which a repaired graph is compared with the original."""


def seeds_of_run(place: Path, unit: str) -> list[Batch]:
    """A few of them as model inputs. ``place``: a finding's directory; ``unit``: what its candidates are."""
    run = place.resolve().parent.parent
    try:
        kept = load_seed_groups(run, from_json(run / "run.json"))
    except (NnfuzzError, OSError):  # a finding that was copied away from its run
        return []
    some = [(group.batch, i) for group in kept.groups for i in range(len(group.index))][:MOST]
    rows_apart = kept.stacked and unit == "sample"
    if kept.stacked and not rows_apart:
        return [kept.groups[0].batch]
    return [{n: t[i : i + 1] if rows_apart else t[i] for n, t in batch.items()} for batch, i in some]


def with_kept(own: list[Batch], place: Path, unit: str) -> list[Batch]:
    """Seeds at hand and those of the run, each once: a finding's own is mostly one of them."""
    of_run = seeds_of_run(place, unit)
    return [s for s in own if not any(_same_input(s, r) for r in of_run)] + of_run


def _same_input(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(same(t, b[n]) for n, t in a.items())


def same(x: Tensor, y: Tensor) -> bool:
    """Bit for bit, NaN at equal places."""
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num())
