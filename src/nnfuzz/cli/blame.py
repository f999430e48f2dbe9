"""``sensitivity``: which layer of a copy to blame for what a run has found."""

from __future__ import annotations

from typing import Annotated

from nnfuzz.cli.options import AgainOptions, RunArgument, max_time_option
from nnfuzz.loading.quantity import duration
from nnfuzz.report.harmless import say


def sensitivity(
    run: RunArgument,
    again: AgainOptions,
    max_time: Annotated[
        str | None,
        max_time_option("Time spent on it: 90s, 5m; 0 for no limit.", "2m"),
    ] = None,
) -> int:
    """Of a diff with --as: which layer, left as it was, makes most of the disagreeing inputs agree again."""
    import nnfuzz

    model = again.models().get("model")
    seconds = duration(max_time or "2m") or float("inf")
    for line in nnfuzz.sensitivity(run, model, seconds=seconds).lines():
        say(line)
    return 0
