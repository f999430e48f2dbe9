"""The console of all reports: the terminal obeys nnfuzz alone, never the names that a model brings."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nnfuzz.report.harmless import harmless


class Terminal(Console):
    """A rich console whose texts are harmless, wherever they come from; its own codes are not in the texts."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, **options)
        self._within = threading.local()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escapes come last, outside of all tables, which would cut off what they did not measure."""
        outermost = not getattr(self._within, "render", False)
        self._within.render = True
        try:
            for text, style, control in super().render(renderable, options):
                yield Segment(harmless(text) if outermost and not control else text, style, control)
        finally:
            if outermost:
                self._within.render = False
