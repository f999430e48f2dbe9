"""Losses that are broken in known ways, and healthy ones beside them. Labels are int64 classes or floating 0 and 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sigmoid_squared(z: Tensor, y: Tensor) -> Tensor:
    return (torch.sigmoid(z) - y).square()


def softmax_squared(logits: Tensor, label: Tensor) -> Tensor:
    return (logits.softmax(-1) - F.one_hot(label, logits.shape[-1])).square().sum(-1)


def clipped_entropy(z: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(z).clamp(1e-3, 1 - 1e-3)
    return -(y * p.log() + (1 - y) * (1 - p).log())


def upside_down_hinge(z: Tensor, y: Tensor) -> Tensor:
    return 1 - torch.relu(z * (2 * y - 1)).clamp(max=1)


def saturating_generator(z: Tensor) -> Tensor:
    return torch.log(1 - torch.sigmoid(z) + 1e-7)


def mean_sigmoid_squared(z: Tensor, y: Tensor) -> Tensor:
    return (torch.sigmoid(z) - y).square().mean()


class Learner(nn.Module):
    """A model with its loss inside; its weights are large enough to saturate it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        with torch.no_grad():
            self.net[2].weight.mul_(40)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (torch.sigmoid(self.net(x)[:, 0]) - y).square()


class Backwards(torch.autograd.Function):
    """A hand-written gradient with the wrong sign beyond 1."""

    @staticmethod
    def forward(ctx, z):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(z)
        return z.square()

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (z,) = ctx.saved_tensors
        return torch.where(z > 1, -2 * z, 2 * z) * g


def wrong_way(z: Tensor) -> Tensor:
    return Backwards.apply(z)  # type: ignore[no-any-return, no-untyped-call]


# ---------------------------------------------------------------------------------------------- healthy


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(logits, label, reduction="none")


def entropy_on_logits(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, y, reduction="none")


def hinge(z: Tensor, y: Tensor) -> Tensor:
    return torch.relu(1 - z * (2 * y - 1))


def squared(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().mean(-1)


def huber(prediction: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(prediction, target, reduction="none").mean(-1)


def good_generator(z: Tensor) -> Tensor:
    return F.softplus(-z)


def mean_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(logits, label)
