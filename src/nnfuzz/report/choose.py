"""Which reporter: what the user asked for, else what stdout is."""

from __future__ import annotations

import sys
from typing import Literal

from nnfuzz.report.base import Reporter

Style = Literal["auto", "live", "plain", "json", "quiet"]


def make_reporter(style: Style = "auto", resumable: bool = True) -> Reporter:
    """Live on a terminal, plain lines elsewhere. ``NO_COLOR`` in the environment is honoured (by rich)."""
    if style == "json":
        from nnfuzz.report.jsonl import JsonReporter

        return JsonReporter(sys.stdout)
    from rich.console import Console

    if style == "auto":
        console = Console(highlight=False)
        style = "live" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if style == "live":
        from nnfuzz.report.live import LiveReporter

        return LiveReporter(Console(highlight=False), resumable=resumable)
    from nnfuzz.report.plain import PlainReporter, QuietReporter

    return QuietReporter() if style == "quiet" else PlainReporter(resumable=resumable)
