"""Arm: plain training on natural batches. Tells whether the bug comes by itself, and when."""

from __future__ import annotations

from dataclasses import dataclass

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk


@dataclass
class Natural:
    """Plain training beside the search: steps made, and the step (from 0) at which it failed, or None."""

    steps: int = 0
    failed_at: int | None = None

    def __str__(self) -> str:
        if self.failed_at is not None:
            return f"plain training on natural batches fails by itself at step {self.failed_at}"
        if not self.steps:
            return "plain training on natural batches was not tried: the search ended before its turn"
        return f"plain training on natural batches stayed finite for {self.steps} steps"


class Plain(Arm):
    name = "natural batches"

    def __init__(self, walk: Walk, stream: Stream, natural: Natural) -> None:
        super().__init__(walk, stream, None)
        self.natural = natural

    def round(self) -> Hit | None:
        self.rounds += 1
        hit = self.train(self.stream[self.rounds - 1])
        if hit is None:
            self.natural.steps += 1
        elif self.natural.failed_at is None:
            self.natural.failed_at = self.rounds - 1
        return hit
