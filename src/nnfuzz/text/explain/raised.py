"""A model that raises: what, and on which line of whose file."""

from __future__ import annotations

import traceback
from pathlib import Path

from nnfuzz.errors import NnfuzzError
from nnfuzz.probe.sites import owner
from nnfuzz.report.words import near
from nnfuzz.space import Batch
from nnfuzz.targets.base import Want
from nnfuzz.text.target import TextTarget


def told(target: TextTarget, batch: Batch) -> list[str]:
    """Type, message, the user's last line and the innermost one; empty where it does not raise."""
    try:
        target.run(batch, Want(layers=False))
    except NnfuzzError:
        raise
    except Exception as error:
        return lines_of(error)
    return []


def lines_of(error: BaseException) -> list[str]:
    """The same of an exception in hand."""
    text = " ".join(str(error).split())[:500]
    lines = [f"raises {type(error).__name__}: {text}" if text else f"raises {type(error).__name__}, without a message"]
    if error.__cause__ is not None:
        lines.append(f"caused by {type(error.__cause__).__name__}: {' '.join(str(error.__cause__).split())[:200]}")
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if owner(f.filename) == "user"]
    if users:
        lines.append(f"in your code at {_place(users[-1])}")
        lines += [f"    {users[-1].line}"] if users[-1].line else []
    else:
        lines.append("in none of your files: the model's code is a library's")
    if frames and frames[-1] is not (users[-1] if users else None):
        lines.append(f"raised in {_place(frames[-1])}")
    return lines


def _place(frame: traceback.FrameSummary) -> str:
    name = near(frame.filename) if owner(frame.filename) == "user" else "/".join(Path(frame.filename).parts[-3:])
    return f"{name}:{frame.lineno}, in {frame.name}"
