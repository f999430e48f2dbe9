"""The command line: parses, calls the public face, prints. ``main`` is the entry point; it holds no logic of its own.

``app.py`` is the way in and out (errors, exit status), ``options.py`` the options as groups, ``glue.py`` the one path
from parsed options to a run; the other files hold the commands. Nothing here imports torch until a command needs it,
and this file imports next to nothing, so that Ctrl-C is heeded from the first moment on.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; prints errors, raises none."""
    try:
        from nnfuzz.cli import app, commands
    except BaseException as error:
        from nnfuzz.interrupt import EARLY, came_of_it

        if not came_of_it(error):
            raise
        print(f"nnfuzz: error: {EARLY}", file=sys.stderr)
        return 130
    assert commands is not None  # imported by now, when nothing has been written for sure
    return app.main(argv)
