"""Ctrl-C while a model does not return: Python hears of a signal only between two of its own instructions.

A signal also writes a byte to a socket (``signal.set_wakeup_fd``), whatever the main thread is doing. A thread reads
it there, and the handler in the main thread, once it runs, writes another byte behind it. Where that does not come,
the main thread is in native code. This works as long as that code has released the GIL, which all of torch, ONNX
Runtime and ``ctypes.CDLL`` do; code that holds on to it stops every thread of Python, this one too.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

GRACE = 2.0
"""Seconds that the main thread is given to take a signal."""
STATUS = 130
_TAKEN = 255
_ASKING = (int(signal.SIGINT), int(signal.SIGTERM))
_voices: list[int] = []
"""Descriptors of stderr where it was before it was led away, the latest last."""
_current: Watcher | None = None


class Watcher:
    """Reads the signals of one run.

    Args:
        left: says what an end at once leaves behind; called from the watching thread, ``True`` when it is the end.
        close: gives the terminal back.
    """

    def __init__(self, left: Callable[[bool], str], close: Callable[[], None]):
        self._left, self._close = left, close
        self.asked: Callable[[], bool] = lambda: False
        """Whether an earlier signal was taken as the wish to stop."""
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._before = -1
        self._thread = threading.Thread(target=self._watch, name="nnfuzz-signals", daemon=True)

    def start(self) -> None:
        self._before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._writes.close()  # the thread reads the end
        self._thread.join()
        self._reads.close()

    def taken(self) -> None:
        """To be called by every handler of the main thread."""
        with suppress(OSError):
            self._writes.send(bytes([_TAKEN]))

    def _watch(self) -> None:
        since, presses, told = 0.0, 0, False
        while True:
            due = max(0.0, since + GRACE - time.monotonic()) if presses and not told else None
            self._reads.settimeout(due if due != 0.0 else 0.01)
            try:
                data = self._reads.recv(64)
                if not data:
                    return
            except TimeoutError:
                data = b""
            for byte in data:
                if byte == _TAKEN:
                    presses, told = 0, False
                    continue
                if self._before >= 0:
                    with suppress(OSError):
                        os.write(self._before, bytes([byte]))
                if byte in _ASKING:
                    since, presses = since if presses else time.monotonic(), presses + 1
            waited = time.monotonic() - since
            if not presses or waited < GRACE:
                continue
            if presses > 1 or self.asked():
                self._end()
            elif not told:
                told = True
                say(
                    f"nnfuzz: the model has not returned in the {waited:.0f} s since Ctrl-C, and the run ends when it "
                    f"does; Ctrl-C once more ends it at once ({self._told(False)})"
                )

    def _told(self, over: bool) -> str:
        try:
            return self._left(over)
        except Exception as error:
            return f"what is saved cannot be read: {error}"

    def _end(self) -> None:
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(1.0)  # the main thread may hold what it needs
        say(f"nnfuzz: error: interrupted at once, while the model did not return: {self._told(True)}")
        os._exit(STATUS)


def say(line: str) -> None:
    """One line on what was stderr when the process began, past everything that is buffered or led away."""
    with suppress(OSError):
        os.write(_voices[-1] if _voices else 2, f"\n{' '.join(line.split())}\n".encode(errors="backslashreplace"))


@contextmanager
def voice(fd: int | None) -> Iterator[None]:
    """While stderr leads elsewhere, lines of the watcher go to ``fd``."""
    if fd is None:
        yield
        return
    _voices.append(fd)
    try:
        yield
    finally:
        _voices.remove(fd)


def taken() -> None:
    """A handler in the main thread has run."""
    if _current is not None:
        _current.taken()


@contextmanager
def asking(asked: Callable[[], bool]) -> Iterator[None]:
    """While signals are taken as a wish."""
    watcher = _current
    if watcher is None:
        yield
        return
    before, watcher.asked = watcher.asked, asked
    try:
        yield
    finally:
        watcher.asked = before


@contextmanager
def watching(left: Callable[[bool], str], close: Callable[[], None]) -> Iterator[None]:
    """While a run is in progress; nothing changes outside the main thread, where Ctrl-C is not Python's, or within
    another run. Afterwards the handler and the wakeup descriptor are what they were."""
    global _current
    handler: Any = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(handler) or _current is not None:
        yield
        return

    def heard(signum: int, frame: FrameType | None) -> None:
        taken()
        handler(signum, frame)

    watcher = Watcher(left, close)
    watcher.start()
    _current = watcher
    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is heard:
            signal.signal(signal.SIGINT, handler)
        _current = None
        watcher.stop()


def _in_child() -> None:
    """Ctrl-C at a terminal reaches forked workers too: their bytes are not to be read as its being pressed again."""
    global _current
    if _current is not None:
        _current = None
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
