"""Arm: two labels pumped against each other at their margin.

Trained on separable rows, a classifier's weights grow like log t, since sure answers leave no gradient. Here the batch
holds one
label at a time, the two in turn, and its rows are kept where the answer is about as unsure as at the start: gradients
stay alive, the biases cancel over a pair of steps, and what adds up is the weight between the two places: |w| grows
like √t,
with the largest factor that full batches of one label can give.
"""

from __future__ import annotations

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.frozen import NEAR
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.moves import Rprop
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, seeded

FINEST = 1e-5  # smallest step, of the range: the margin narrows as 1/|w|
LOOK = 100  # training steps between two looks of the scouts


class Pump(Arm):
    """labels: numbers of the two groups (by size). level: loss at which rows are held, in units of the first loss.
    burst: training steps a round."""

    patient = True

    def __init__(
        self,
        walk: Walk,
        stream: Stream,
        lens: Lens,
        target: Target,
        labels: tuple[int, int] = (0, 1),
        level: float = 1.15,
        burst: int = 10,
    ) -> None:
        super().__init__(walk, stream, target)
        self._labels = labels
        self.name = f"pump {labels[0]}/{labels[1]}"
        self.evade()
        self._level, self._first = level, 0.0
        self._steps = self._next_look = 0
        self.scout = Scout(stream, lens, [target])
        self.burst = burst

    def evade(self) -> None:
        groups = self.stream.groups()
        self._batches = [dict(self.stream.filled(groups[i])) for i in self._labels]
        self._movers: list[dict[str, Rprop]] = [{}, {}]

    def round(self) -> Hit | None:
        self.rounds += 1
        for _ in range(self.burst):
            if hit := self._step():
                return hit
        if self._steps < self._next_look:
            return None
        self._next_look = self._steps + LOOK
        return self._look()

    def _step(self) -> Hit | None:
        turn = self._steps % 2
        self._steps += 1
        batch = self._batches[turn] = self.stream.noisy(self._batches[turn], self._steps)
        leaves = {k: batch[k].detach().requires_grad_() for k in self.scout.moved}
        failure, gradients = self.walk.train(batch | leaves, leaves.values())
        self.passes += 1
        if failure is not None:
            return Hit(self.walk, list(self.walk.steps), failure, self.name)
        self._first = self._first or abs(self.walk.loss)
        sign = -1 if self.walk.loss > self._level * self._first else 1
        for (name, x), g in zip(leaves.items(), gradients, strict=True):
            mover = self._movers[turn].setdefault(name, Rprop(FINEST))
            batch[name] = mover.step(x, None if g is None else sign * g, *self.walk.program.bounds(name))
        return None

    def _look(self) -> Hit | None:
        seeded(self.walk.seed * 31 + self.rounds)
        self.scout.descend(self.walk, 5)
        self.scout.look(self.walk)
        self.charge(6, self.scout.lens, self.scout.rows)
        distance, row = self.scout.nearest()
        self.near = min(self.near, distance)
        if distance > NEAR:
            return None
        return self.check(self.scout.spread(self.stream.noisy(self.stream[0], self._steps), row))
