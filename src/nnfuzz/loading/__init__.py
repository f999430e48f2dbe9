"""From words on the command line to models, seeds and settings.

``quantity``, ``options`` and ``made`` (its parser) are free of torch, so that the command line can check what it was
given before the seconds that importing torch takes. Everything that opens files or runs the user's code imports
torch when called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "load_object": "objects",
    "load_model": "models",
    "load_seeds": "seeds",
    "make_seeds": "made",
    "Rebuilt": "rebuilt",
    "rebuild": "rebuilt",
    "load_compare": "rebuilt",
    "started_in": "rebuilt",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
