"""When a search ends, and who is told meanwhile how it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnfuzz.interrupt import stop_on_signal

if TYPE_CHECKING:
    from nnfuzz.training.portfolio import Portfolio

EVERY = 1.0  # seconds between two looks


@dataclass(eq=False)
class Watch:
    """Asked after every round. look: called about once a second while the search goes on. asked: an end is wanted."""

    clock: Callable[[], float]
    max_steps: int | None
    max_seconds: float | None
    look: Callable[[], None]
    started: float = field(init=False)
    asked: bool = False
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self.started, self._next = self.clock(), time.monotonic() + EVERY

    @property
    def seconds(self) -> float:
        return self.clock() - self.started

    def over(self, portfolio: Portfolio) -> bool:
        if time.monotonic() >= self._next:
            self.look()
            self._next = time.monotonic() + EVERY
        if self.asked or (self.max_steps is not None and portfolio.moves >= self.max_steps):
            return True
        return self.max_seconds is not None and self.seconds >= self.max_seconds

    def on_signals(self) -> AbstractContextManager[None]:
        """Ctrl-C and SIGTERM end the search after the round in hand; a second one at once."""
        return stop_on_signal(lambda: self.asked, self._ask)

    def _ask(self) -> None:
        self.asked = True
