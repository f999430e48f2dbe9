"""Which reporter: what the user asked for, else what stdout is."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Literal, TextIO

from nnfuzz.report.base import Reporter

Style = Literal["auto", "live", "plain", "json", "quiet"]


def make_reporter(style: Style = "auto", resumable: bool = True, stream: TextIO | None = None) -> Reporter:
    """Live on a terminal, plain lines elsewhere. ``NO_COLOR`` in the environment is honoured (by rich).

    Args:
        stream: where to write; whatever stdout is at each moment by default.
    """
    if style == "json":
        from nnfuzz.report.jsonl import JsonReporter

        return JsonReporter(stream or sys.stdout)
    from nnfuzz.report.terminal import Terminal

    if style == "auto":
        console = Terminal(file=stream)
        style = "live" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if style == "live":
        from nnfuzz.report.live import LiveReporter

        console = Terminal(file=stream, width=_width(stream))
        return LiveReporter(console, resumable=resumable, alone=stream is not None)
    from nnfuzz.report.plain import PlainReporter, QuietReporter, plain_console

    return (
        QuietReporter(plain_console(stream, None))
        if style == "quiet"
        else PlainReporter(plain_console(stream), resumable=resumable)
    )


def _width(stream: TextIO | None) -> int | None:
    """Of the terminal that a stream of its own leads to. Rich asks the standard descriptors, and follows a window that
    is resized; that will do while stdin is the terminal, since the other two may be led away."""
    if stream is None or sys.stdin is None or sys.stdin.isatty():
        return None
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None
