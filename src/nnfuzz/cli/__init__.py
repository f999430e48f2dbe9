"""The command line: parses, calls the public face, prints. ``main`` is the entry point; it holds no logic of its own.

``app.py`` is the way in and out (errors, exit status), ``options.py`` the options as groups, ``glue.py`` the one path
from parsed options to a run; the other files hold the commands. Nothing here imports torch until a command needs it.
"""

from __future__ import annotations

from nnfuzz.cli.app import main

__all__ = ["main"]
