"""A model that raises: what, and on which line of whose file."""

from __future__ import annotations

import traceback
from pathlib import Path

from nnfuzz.errors import NnfuzzError
from nnfuzz.probe.sites import owner
from nnfuzz.report.words import near
from nnfuzz.space import Batch
from nnfuzz.targets.base import Want
from nnfuzz.text.models.blackbox import WrongAnswer
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
    first, *rest = _message(error, 500) or [""]
    lines = [
        f"raises {type(error).__name__}: {first}" if first else f"raises {type(error).__name__}, without a message"
    ]
    lines += [f"    {line}" for line in rest]
    if error.__cause__ is not None:
        lines.append(f"caused by {type(error.__cause__).__name__}: {' '.join(_message(error.__cause__, 200))}")
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if owner(f.filename) == "user"]
    if users:
        lines.append(f"in your code at {_place(users[-1])}")
        lines += [f"    {users[-1].line}"] if users[-1].line else []
    elif isinstance(error, WrongAnswer):
        return [f"{lines[0].removeprefix('raises WrongAnswer: ')}, without raising anything"]
    else:
        lines.append("in none of your files: the model's code is a library's")
    if frames and frames[-1] is not (users[-1] if users else None):
        lines.append(f"raised in {_place(frames[-1])}")
    return lines


def _message(error: BaseException, most: int) -> list[str]:
    """Its lines as they are, since spaces may be what it quotes; what cannot be printed is escaped."""
    shown = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in str(error)[:most].splitlines())
    return [line for line in shown if line.strip()]


def _place(frame: traceback.FrameSummary) -> str:
    name = near(frame.filename) if owner(frame.filename) == "user" else "/".join(Path(frame.filename).parts[-3:])
    return f"{name}:{frame.lineno}, in {frame.name}"
