"""Arm: no training at all. Inputs alone may reach the edge where initial weights are wide."""

from __future__ import annotations

import torch

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, seeded

NEAR = 9.0  # distance (log units) below which a whole batch is tried: mean losses fail ln(rows) before the edge
DESCENT = 4  # scout steps a round
PERIOD = 60  # steps from long to short
TIRED = 30  # rounds without progress (two periods), after which other rows are taken


class Frozen(Arm):
    """Gradient descent of a few rows on one target, at weights as they are; natural and extreme rows to start from."""

    name = "inputs only"

    def __init__(self, walk: Walk, stream: Stream, lens: Lens, target: Target, start: int = 0) -> None:
        super().__init__(walk, stream, target)
        self.scout = Scout(stream, lens, [target], first=start)
        self.scout.period = PERIOD
        self._base = start
        self._lately, self._still = float("inf"), 0
        self._extremes()

    def round(self) -> Hit | None:
        seeded(self.walk.seed * 31 + self.rounds)
        self.rounds += 1
        self.moves += DESCENT
        self.charge(DESCENT, self.scout.lens, self.scout.rows)
        self.scout.batch = self.stream.noisy(self.scout.batch, self.rounds)
        self.scout.descend(self.walk, DESCENT)
        distance, row = self.scout.nearest()
        self.near = min(self.near, distance)
        self._count(distance)
        if distance > NEAR and self.rounds % 16:
            return None
        return self.check(self.scout.spread(self.stream.noisy(self.stream[self._base], self.rounds), row))

    def evade(self) -> None:
        self.scout.refresh(self.rounds)

    def _count(self, distance: float) -> None:
        """Other rows where nothing moves any more."""
        moved = distance < self._lately - 0.01 * abs(self._lately)
        self._lately = min(distance, self._lately)
        self._still = 0 if moved else self._still + 1
        if self._still >= TIRED:
            self._still, self._lately = 0, float("inf")
            self.scout.refresh(self.rounds)

    def _extremes(self) -> None:
        """Two of the rows start at the ends of the range instead."""
        if self.scout.rows < 4:
            return
        for name in self.scout.moved:
            low, high = self.walk.program.bounds(name)
            value = self.scout.batch[name]
            if self.stream.is_rowwise(self.stream.first[name]):
                self.scout.batch[name] = torch.cat(
                    [value[:-2], torch.full_like(value[-2:-1], high), torch.full_like(value[-1:], low)]
                )
