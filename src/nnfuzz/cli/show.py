"""``show``: what a run or a finding holds, also while it is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnfuzz.cli.app import USAGE
from nnfuzz.cli.options import JsonOption
from nnfuzz.store_place import either_at


def show(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|FINDING", help="A run directory, or one of its findings.", show_default=False)
    ],
    json: JsonOption = False,
) -> int:
    """Show a run (its settings, numbers and findings) or one finding in full.

    Exit status 2 when a file is damaged; what can be read is shown all the same.
    """
    either_at(path)
    from nnfuzz.report.show import show_path

    return 0 if show_path(path, json) else USAGE
