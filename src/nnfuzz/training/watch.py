"""When a search ends, and who is told meanwhile how it goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

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

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the search after the round in hand; a second one at once."""

        def ask(signum: int, frame: FrameType | None) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)
