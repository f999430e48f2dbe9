"""The reporter for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nnfuzz.report.base import RunInfo, SilentReporter
from nnfuzz.report.header import header
from nnfuzz.report.panel import panel
from nnfuzz.report.printing import put
from nnfuzz.report.summary import summary
from nnfuzz.report.terminal import Terminal

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import Stats

CURVE = 24
"""Points of the growth curve that are kept; when full, every second one goes and the step doubles."""


class LiveReporter(SilentReporter):
    """A panel that is redrawn at most every ``every`` seconds and gives way to the summary at the end.

    Args:
        alone: nobody else writes to this terminal; otherwise what is printed meanwhile is shown above the panel.
    """

    def __init__(
        self, console: Console | None = None, every: float = 0.25, resumable: bool = True, alone: bool = False
    ):
        self._console = console or Terminal()
        self._every = every
        self._resumable = resumable
        self._alone = alone
        self._next = 0.0
        self._live: Live | None = None
        self._growth: list[float] = []
        self._step = every
        self._next_point = 0.0

    def start(self, info: RunInfo) -> None:
        self.info = info
        put(self._console, header(info))
        above = not self._alone
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=above, redirect_stderr=above
        )
        self._live.start()

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self._remember(stats)
        if self._live is not None and self.info is not None:
            width = self._console.width
            self._live.update(panel(self.info, stats, findings, self._growth, width), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(Text.assemble(("note  ", "yellow"), text))

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        self.close()
        if self.info is not None:
            put(self._console, summary(self.info, stats, findings, path, self._resumable))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _remember(self, stats: Stats) -> None:
        if stats.seconds < self._next_point:
            return
        self._growth.append(stats.corpus)
        if len(self._growth) > CURVE:
            self._growth = self._growth[1::2]
            self._step *= 2
        self._next_point = stats.seconds + self._step
