"""What an arm of the portfolio is: one way of searching, that goes on from where it stopped."""

from __future__ import annotations

from dataclasses import dataclass

from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.program import Batch
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Failure, Step, Walk


@dataclass(frozen=True, eq=False)
class Hit:
    """A failure with all that leads to it: the walk's start and the steps, the failing one last."""

    walk: Walk
    steps: list[Step]
    failure: Failure
    arm: str


class Arm:
    """One search in progress. `round` does a little work and returns a hit or None.

    near: least distance of its target so far, in the target's unit. steps: training steps made. passes:
    forward-backward passes, the
    deterministic measure of its cost.
    """

    name = "arm"
    patient = False  # grows slowly but for ever: not to be judged by its first steps

    def __init__(self, walk: Walk, stream: Stream, target: Target | None) -> None:
        self.walk, self.stream, self.target = walk, stream, target
        self.near = float("inf")
        self.rounds, self.passes, self.moves = 0, 0.0, 0
        self.finished = False

    @property
    def covered(self) -> float:
        """Share of the way to the edge, 0..1."""
        return 0.0 if self.target is None or self.near == float("inf") else self.target.covered(self.near)

    def charge(self, looks: int, lens: Lens, rows: int) -> None:
        """Count traced looks at so many rows as passes."""
        weights = sum(p.numel() for p in self.walk.parameters)
        self.passes += looks * lens.cost(weights, rows, self.stream.rows)

    def round(self) -> Hit | None:
        raise NotImplementedError

    def train(self, batch: Batch) -> Hit | None:
        """One recorded training step."""
        failure, _ = self.walk.train(batch)
        self.passes += 1
        return None if failure is None else Hit(self.walk, list(self.walk.steps), failure, self.name)

    def dismiss(self, hit: Hit) -> None:
        """The hit was nothing new: the step that failed is taken back, and the search goes on elsewhere."""
        if self.walk.steps and self.walk.steps[-1] is hit.steps[-1]:
            self.walk.steps.pop()
            self.moves += 1
        self.evade()

    def evade(self) -> None:
        """Leave the batch that fails; what that means is the arm's own matter."""

    def check(self, batch: Batch, seed: int | None = None) -> Hit | None:
        """Would this batch fail now, with these random numbers?"""
        failure = self.walk.check(batch, seed)
        self.passes += 1
        if failure is None:
            return None
        return Hit(self.walk, [*self.walk.steps, self.walk.fresh_step(batch, seed)], failure, self.name)

    def check_scouts(self, scout: Scout, natural: Batch, seed: int) -> Hit | None:
        """Would a batch fail that holds what the scouts found? `seed`: of the random numbers with which they looked.

        Their nearest row everywhere, or all of them in turn and in their order: dropout then strikes the first ones as
        it did when they looked.
        """
        distance, row = scout.nearest()
        if hit := self.check(scout.spread(natural, row), seed):
            return hit
        return self.check(scout.tiled(natural), seed) if distance <= 0 else None
