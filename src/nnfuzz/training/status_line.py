"""The line that says how a search in training goes: in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from typing import TextIO

from nnfuzz.report.words import percent
from nnfuzz.training.outcome import TrainingRun

EVERY = 10.0  # seconds between two lines where no terminal shows them


class StatusLine:
    """Shown by ``show``; ``clear`` takes it away before other lines come. A finding is told once, when it is made."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._next, self._told, self._shown = time.monotonic() + EVERY, 0, False

    def show(self, run: TrainingRun) -> None:
        for finding in run.findings[self._told :]:
            self.clear()
            print(f"found {finding.headline()}", file=self._stream, flush=True)
        self._told = len(run.findings)
        if self._live:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{status(run)[: width - 1]}")
            self._stream.flush()
            self._shown = True
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            print(status(run), file=self._stream, flush=True)

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def status(run: TrainingRun) -> str:
    """``1,234 steps in 12 s, 1 finding, nearest log@loss.py:11:27 (82% of the way)``."""
    words = [f"{run.steps:,} steps in {run.seconds:.0f} s"]
    if run.findings:
        words.append(f"{len(run.findings)} finding{'s' * (len(run.findings) != 1)}")
    open_ = [t for t in run.targets if t["best"] > 0]
    if open_:
        nearest = open_[0]
        share = 1 - nearest["best"] / max(nearest["start"], 1e-9)
        words.append(f"nearest {nearest['name']} ({percent(max(share, 0.0))} of the way)")
    return ", ".join(words)
