"""Ctrl-C and SIGTERM as a wish: what is in hand is brought to its end and saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from nnfuzz import watcher

EARLY = "interrupted before the run began, so nothing was written"


def came_of_it(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: some packages make one of their own of whatever keeps them from being
    imported, and the parser of the command line makes one too."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def stop_on_signal(asked: Callable[[], bool], ask: Callable[[], None]) -> Iterator[None]:
    """The first signal calls ``ask``; one that comes when it was ``asked`` already raises ``KeyboardInterrupt``.

    Only the main thread can be told of signals: elsewhere nothing changes.
    """

    def told(signum: int, frame: FrameType | None) -> None:
        watcher.taken()
        if asked():
            raise KeyboardInterrupt
        ask()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, told) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with watcher.asking(asked):
            yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
