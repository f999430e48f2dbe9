"""Subnormal numbers: reached in small inputs, rare all over large ones, where they would stall whole batches."""

from __future__ import annotations

import numpy as np
import torch

from nnfuzz.mutators import MUTATORS, Context
from nnfuzz.mutators.pool import shared_pool
from nnfuzz.space import InputSpace, InputSpec

GROUPS, ROWS = 60, 16


def share_of_subnormals(width: int) -> float:
    """Share of nonzero elements below the smallest normal number, over groups by every mutator of sizes."""
    spec = InputSpec("x", (width,), torch.float32, torch.tensor(0.0), torch.tensor(1.0))
    space = InputSpace({"x": spec})
    seeds = torch.rand(ROWS, width, generator=torch.Generator().manual_seed(0))
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    small = total = 0
    for name in ("scale", "constant", "log-noise", "equal", "outlier", "offset"):
        mutator = MUTATORS[name]()
        for _ in range(GROUPS):
            anchors = space.anchors({"x": seeds})
            context = Context(
                space, rng, generator, shared_pool(torch.device("cpu")), anchors, lambda: {"x": seeds.clone()}
            )
            x = mutator({"x": seeds.clone()}, context)["x"]
            small += int(((x != 0) & (x.abs() < torch.finfo(torch.float32).tiny)).sum())
            total += x.numel()
    return small / total


def test_small_inputs_become_subnormal_often() -> None:
    assert share_of_subnormals(8) > 0.01


def test_large_inputs_hardly_ever_do() -> None:
    assert share_of_subnormals(4096) < 0.001
