"""Putting blocks on a console: prose wraps, lines to copy never do, and logs have no blanks at the ends of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

LABEL = 11
"""Width of the column of labels."""


def labelled(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Two columns: dim labels, and what they are about, which wraps under itself."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, content in rows:
        table.add_row(f"  {label}", content)
    return table


def command(label: str, line: str) -> Text:
    """A labelled line to copy, in step with ``labelled``: kept whole, however narrow the terminal."""
    return Text.assemble((f"  {label}".ljust(LABEL + 1), "dim"), (line, "cyan"))


def put(console: Console, parts: Sequence[RenderableType]) -> None:
    """Prints the parts one under the other; a bare ``Text`` is not wrapped."""
    for part in parts:
        if console.is_terminal:
            console.print(part, soft_wrap=isinstance(part, Text))
            continue
        with console.capture() as captured:
            console.print(part, soft_wrap=isinstance(part, Text))
        text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
        console.out(text, end="", highlight=False)
