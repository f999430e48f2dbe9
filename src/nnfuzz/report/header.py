"""What a run prints before it starts: the model, the unit and why, the legal inputs, seed and budget."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nnfuzz.report.base import InputRow, RunInfo
from nnfuzz.report.printing import labelled
from nnfuzz.report.words import lasting, near, plural, short


def header(info: RunInfo) -> list[RenderableType]:
    """The whole block."""
    rows: list[tuple[str, RenderableType]] = []
    if info.searched:
        rows.append(("looks for", Text(info.searched)))
    if info.unit:
        rows.append(("unit", Text(info.unit + (f": {info.why}" if info.why else ""))))
    if info.inputs:
        rows.append(("inputs", inputs_table(info.inputs)))
    rows.append(("run", Text(_facts(info))))
    if info.out:
        rows.append(("writes", Text(near(info.out))))
    rows += [("note", Text(note, style="yellow")) for note in info.notes]
    title = Text.assemble((info.title, "bold"), "  ", info.target)
    return [title, labelled(rows), Text()]


def inputs_table(inputs: Iterable[InputRow]) -> Table:
    """name, dtype[shape], kind, range and its source, eps."""
    table = Table.grid(padding=(0, 2))
    for row in inputs:
        shape = ", ".join(str(d) for d in row.shape)
        table.add_row(
            Text(row.name, style="bold"),
            Text(f"{row.dtype}[{shape}]"),
            Text("" if row.kind == "real" else row.kind),
            Text("fixed" if row.fixed else _legal(row)),
        )
    return table


def _legal(row: InputRow) -> str:
    source = {"given": "", "seeds": "what the seeds span", "dtype": "all of the dtype"}.get(row.source, row.source)
    known = f"{row.range} ({source})" if row.range and source else row.range
    ball = f"within {short(row.eps)} of the seed" if row.eps is not None else ""
    return ", ".join(p for p in (known, ball) if p)


def _facts(info: RunInfo) -> str:
    ends = []
    if info.max_inputs is not None:
        ends.append(plural(info.max_inputs, "input"))
    if info.max_seconds is not None:
        ends.append(lasting(info.max_seconds))
    stop = f"ends after {' or '.join(ends)}" if ends else "ends when you press Ctrl-C"
    return f"seed {info.seed}, {info.device}, {stop}"
