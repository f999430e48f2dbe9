"""The reporter for logs: one line every few seconds, one for each finding, and the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from nnfuzz.report.base import RunInfo, SilentReporter
from nnfuzz.report.header import header
from nnfuzz.report.panel import since_novel
from nnfuzz.report.printing import put
from nnfuzz.report.summary import summary
from nnfuzz.report.telling import one_line
from nnfuzz.report.terminal import Terminal
from nnfuzz.report.words import clock, count, percent, plural, rate, short

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import Stats


def plain_console(stream: TextIO | None = None, width: int | None = 120) -> Console:
    """Without colours or control codes."""
    return Terminal(color_system=None, width=width, file=stream)


class PlainReporter(SilentReporter):
    """No control codes; lines are never wrapped, so that they can be searched."""

    def __init__(self, console: Console | None = None, every: float = 5.0, resumable: bool = True):
        self._console = console or plain_console()
        self._every = every
        self._resumable = resumable
        self._next = 0.0
        self._lines = 0

    def start(self, info: RunInfo) -> None:
        self.info = info
        put(self._console, header(info))
        self._next = monotonic() + self._every

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self._line(status_line(stats, findings))

    def note(self, text: str) -> None:
        self._line(f"note: {text}")

    def finding(self, finding: Finding) -> None:
        self._line(f"found {one_line(finding)}")

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        if self.info is not None:
            if self._lines:
                self._console.print()
            put(self._console, summary(self.info, stats, findings, path, self._resumable))

    def _line(self, text: str) -> None:
        self._lines += 1
        self._console.print(Text(text), soft_wrap=True)


class QuietReporter(SilentReporter):
    """Only the findings, one line each, when all is over."""

    def __init__(self, console: Console | None = None):
        self._console = console or plain_console(width=None)

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        for finding in findings:
            home = f"  {Path(path) / 'findings' / finding.id}" if path is not None else ""
            self._console.print(Text(one_line(finding) + home), soft_wrap=True)


def status_line(stats: Stats, findings: Sequence[Finding]) -> str:
    """``0:12  71,200 inputs  5,912/s (71 %)  corpus 231  radius 0.142  best -3.2  2 findings (nearest 0.31)``."""
    share = f" ({percent(stats.share)})" if stats.share is not None else ""
    parts = [clock(stats.seconds), plural(stats.inputs, "input"), rate(stats.rate) + share]
    parts.append(f"corpus {count(stats.corpus)}, {since_novel(stats)}")
    if not math.isnan(stats.radius):
        parts.append(f"radius {short(stats.radius)}")
    if math.isfinite(stats.best_score):
        parts.append(f"best {short(stats.best_score)}")
    if findings:
        nearest = min(f.distance.get("linf", math.inf) for f in findings)
        near = f" (nearest L∞ {short(nearest)})" if math.isfinite(nearest) else ""
        parts.append(plural(len(findings), "finding") + near)
    return "  ".join(parts)
