"""A few rows that look, at the weights of the moment, for the input nearest to an unsafe operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.moves import along
from nnfuzz.training.program import Batch
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk

# A step of each element, of the range: from LONGEST down to SHORTEST along a cosine, again and again. On two wide
# convolutional networks this came to a gap of 95 where constant steps, momentum and Rprop came to 77..90 (600 steps).
LONGEST, SHORTEST, PERIOD = 0.2, 0.002, 20
ROWS = 8  # rows that look; the whole batch is needed for training only
Aim = Literal["best", "sum", "loss"]


class Scout:
    """Descends on the distance of its targets by the sign of the gradient, every row on its own.

    targets: row i looks for target i mod len(targets).
    """

    def __init__(
        self, stream: Stream, lens: Lens, targets: list[Target], rows: int = ROWS, first: int = 0, noise: bool = False
    ) -> None:
        self.stream, self.lens, self.targets = stream, lens, targets
        self.rows = stream.few(rows)
        order = _varied(stream.groups(), self.rows) if first == 0 else torch.arange(self.rows)
        self.batch: Batch = stream.take(stream[first], order)
        self.period, self._turn = PERIOD, 0
        self.distance = torch.full((self.rows,), float("inf"))
        self.noise = noise
        self.moved = lens.program.movable(self.batch, noise)

    def look(self, walk: Walk) -> Tensor:
        """Distances per row (rows,), live in inputs and weights."""
        read = self.lens.read(walk.model, self.batch, self.rows, self.targets)
        lost = torch.full((self.rows,), float("inf"))
        mine = (
            [read.get(self.targets[i % len(self.targets)].name, lost)[i] for i in range(self.rows)]
            if len(self.targets) > 1
            else [read.get(self.targets[0].name, lost)]
        )
        live = torch.stack(mine) if len(self.targets) > 1 else mine[0]
        self.distance = torch.nan_to_num(live.detach(), nan=float("inf"))
        return live

    def descend(self, walk: Walk, times: int, aim: Aim = "best") -> None:
        """`times` steps of all rows; with the aim "loss" every row looks for the largest loss of its own label."""
        for _i in range(times):
            stride = SHORTEST + 0.5 * LONGEST * (1 + math.cos(math.pi * self._turn / self.period))
            self._turn = (self._turn + 1) % self.period
            leaves = {k: self.batch[k].detach().requires_grad_() for k in self.moved}
            self.batch = self.batch | leaves
            value = -walk.program.loss(walk.model, self.batch) if aim == "loss" else self.look(walk).sum()
            gradients = _gradients(value, list(leaves.values()))
            for (name, x), g in zip(leaves.items(), gradients, strict=True):
                self.batch[name] = along(x, g, *walk.program.bounds(name), -stride)

    def direction(self, walk: Walk, aim: Aim) -> list[Tensor | None]:
        """Gradient of the distance by the weights: where training must not... and shall go.

        "best": of the nearest row; "sum": of all rows; "loss": of the negative loss of the rows.
        """
        live = self.look(walk)
        if aim == "loss":
            value = -walk.program.loss(walk.model, self.batch)
        else:
            value = live.sum() if aim == "sum" else live[int(self.distance.argmin())]
        return _gradients(value, walk.parameters)

    def nearest(self) -> tuple[float, int]:
        """(distance, row) of the nearest row when it was last looked at."""
        row = int(self.distance.argmin())
        return float(self.distance[row]), row

    def refresh(self, number: int) -> None:
        """The two farthest rows make room for rows of natural batch `number`."""
        if self.rows < 4:
            return
        worst = self.distance.argsort(descending=True)[:2]
        source = self.stream[number]
        for name, value in self.batch.items():
            if self.stream.is_rowwise(source[name]) and self.stream.rows > 1:
                fresh = value.clone()
                fresh[worst] = source[name][:2]
                self.batch[name] = fresh

    def tiled(self, batch: Batch) -> Batch:
        """`batch` with the scouts' rows, again and again in their order; the labels of the first ones are theirs."""
        rows = self.stream.rows
        turns = torch.arange(rows) % self.rows
        out = dict(batch)
        for name, value in batch.items():
            if self.stream.is_rowwise(value):
                out[name] = self.batch[name][turns].detach().clone()
            elif name in self.moved:
                out[name] = self.batch[name].detach().clone()
        return out

    def spread(self, batch: Batch, row: int) -> Batch:
        """`batch` with the scout's row in every row, the labels as they are: one of them may be the label that "
        "fails."""
        out = dict(batch)
        for name in batch:
            if self.stream._program.role(name) != "label" and self.stream.is_rowwise(batch[name]):
                out[name] = self.batch[name][row : row + 1].detach().expand_as(batch[name]).clone()
            elif name in self.moved:
                out[name] = self.batch[name].detach().clone()
        return out


def _varied(groups: list[Tensor], count: int) -> Tensor:
    """Row numbers with as many different labels as can be."""
    picked: list[int] = []
    turn = 0
    while len(picked) < count:
        available = [g for g in groups if turn < len(g)]
        if not available:
            turn = 0
            continue
        picked += [int(g[turn]) for g in available]
        turn += 1
    return torch.tensor(picked[:count])


def _gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    if not value.requires_grad or not leaves:
        return [None] * len(leaves)
    return list(torch.autograd.grad(value, list(leaves), allow_unused=True))
