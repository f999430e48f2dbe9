"""A model that stops to ask somebody, in a search that shows nobody what it prints: it must not seem to hang."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from nnfuzz.errors import UsageError


@contextmanager
def unattended() -> Iterator[None]:
    """``breakpoint()`` and reading from stdin raise ``UsageError`` with the place. PYTHONBREAKPOINT=0 is honoured."""
    hook, stdin = sys.breakpointhook, sys.stdin
    sys.breakpointhook, sys.stdin = _stopped, io.TextIOWrapper(_Nobody())
    try:
        yield
    finally:
        sys.breakpointhook, sys.stdin = hook, stdin


def _stopped(*args: Any, **kwargs: Any) -> None:
    if os.environ.get("PYTHONBREAKPOINT") == "0":
        return
    raise UsageError(
        f"breakpoint() is called{_where(sys._getframe(1))}, and a search does not stop there: take it out, or set "
        "PYTHONBREAKPOINT=0; to step through one input, use the repro.py of a finding"
    )


class _Nobody(io.RawIOBase):
    """A stdin at which nobody sits."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise UsageError(
            f"input is read from the terminal{_where(sys._getframe(1))}, and in a search nobody answers: take input(), "
            "pdb.set_trace() and the like out of the model"
        )


def _where(frame: FrameType | None) -> str:
    """``, at net.py:12 in forward``: the innermost frame that is neither the standard library's nor this file's."""
    lib = str(Path(os.__file__).parent)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = file.startswith(lib) and "site-packages" not in file
        if file != __file__ and not inside and not file.startswith("<"):
            return f", at {Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
