"""``sensitivity``: which layer of a copy to blame for what a run has found."""

from __future__ import annotations

from typing import Annotated

import typer

from nnfuzz.cli.again import RunArgument
from nnfuzz.cli.groups import checked, option
from nnfuzz.cli.options import BUDGET, AgainOptions
from nnfuzz.loading.quantity import duration


def sensitivity(
    run: RunArgument,
    again: AgainOptions,
    max_time: Annotated[
        str | None,
        option(
            "--max-time",
            "-t",
            metavar="TIME",
            panel=BUDGET,
            callback=checked("--max-time", duration),
            help="Time spent on it: 90s, 5m; 0 for no limit.",
            default="2m",
        ),
    ] = None,
) -> int:
    """Of a diff with --as: which layer, left as it was, makes most of the disagreeing inputs agree again."""
    import nnfuzz

    model = again.models().get("model")
    seconds = duration(max_time or "2m") or float("inf")
    for line in nnfuzz.sensitivity(run, model, seconds=seconds).lines():
        typer.echo(line)
    return 0
