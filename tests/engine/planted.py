"""A network whose bug sits behind three activation steps, each a rare event that nothing but coverage rewards.

Three gates open one after the other: each wants the candidate near a point of its own block of two numbers. A closed
gate gives the same activations wherever the candidate is, so there is no slope to climb; a gate that opens shows as a
jump in the hidden layer and nowhere in the output's magnitude, so no score grows either. Only when all three are open
at once is the output a NaN. By chance, three gates of two numbers each are met about once in 60,000 uniform inputs,
and far more seldom near the seeds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import nnfuzz

WIDTH = 0.08
BUDGET = 120_000
POINTS = torch.tensor([[0.83, 0.24], [0.19, 0.72], [0.78, 0.31]])
MUTATORS = ("sparse-noise",)


class Planted(nn.Module):
    """``(batch, 6)`` in [0, 1] → ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[0.5, -0.3, 0.2], [-0.2, 0.4, -0.5]]))

    def forward(self, x: Tensor) -> Tensor:
        near = ((x.view(-1, 3, 2) - POINTS).abs().amax(-1) < WIDTH).float()
        opened = near.cumprod(-1)
        logits = self.head(opened.detach() * 2 - 1)
        return torch.where(opened[:, 2:] > 0, torch.nan, torch.tanh(logits))


def search(seed: int, coverage: str, most: int) -> nnfuzz.Run:
    """One run from plain seeds; only ``coverage`` differs between the two sides."""
    seeds = torch.rand(8, 6, generator=torch.Generator().manual_seed(1000 + seed)) * 0.1 + 0.45
    settings: dict[str, Any] = {"phase": "forward", "gradients": False, "mutators": MUTATORS}
    return nnfuzz.find_nans(
        Planted(), seeds, ranges=(0, 1), coverage=coverage, max_inputs=most, max_seconds=None, stop_on_first=True,
        seed=seed, **settings,
    )  # fmt: skip
