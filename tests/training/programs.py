"""Tiny training programs with a planted numerical bug, and their stable twins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INPUTS: dict[str, dict[str, Any]] = {
    "x": {"low": 0.0, "high": 10.0, "role": "data"},
    "y": {"kind": "onehot", "fixed": True},
}


def rows(seed: int, classes: int = 2, count: int = 12) -> Iterator[dict[str, Tensor]]:
    """Batches of 12 rows of 3 numbers in 0..10, with labels."""
    g = torch.Generator().manual_seed(seed)
    while True:
        x = torch.rand(count, 3, generator=g) * 10
        y = F.one_hot(torch.arange(count) % classes, classes).float()
        yield {"x": x, "y": y}


def linear(seed: int, out: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, out)


def dropped(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def log_softmax_by_hand(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return -(batch["y"] * torch.log(torch.softmax(model(batch["x"]), 1))).sum(1).mean()


def log_softmax(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return -(batch["y"] * torch.log_softmax(model(batch["x"]), 1)).sum(1).mean()


def log_sigmoid_by_hand(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    h, y = torch.sigmoid(model(batch["x"])), batch["y"]
    return -(y * torch.log(h) + (1 - y) * torch.log(1 - h)).mean()


def log_sigmoid(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"])


def norm_at_zero(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The gradient of the norm of an all-zero row is NaN; the loss is fine."""
    return (model(batch["x"]) - 1).square().mean() + model.weight.square().sum().mul(
        batch["x"].square().sum(1)
    ).sqrt().mean()  # type: ignore[operator, union-attr]


SOURCE = """
import torch
from torch import nn

INPUTS = {"x": dict(low=0.0, high=10.0, role="data"), "y": dict(kind="onehot", fixed=True)}

def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))

def optimizer(model): return torch.optim.SGD(model.parameters(), lr=1.0)

def batches(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield dict(x=torch.rand(12, 3, generator=g) * 10, y=torch.eye(2)[torch.arange(12) % 2])

def loss(model, batch): return -(batch["y"] * torch.log(torch.softmax(model(batch["x"]), 1))).sum(1).mean()
"""


def write_program(folder: Path, text: str = SOURCE) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path
