"""Running the user's code on the user's behalf: their folder on the path, their errors shown as theirs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnfuzz.errors import NnfuzzError, UsageError

_LONGEST = 300


@contextmanager
def user_code(doing: str, folder: Path | None = None) -> Iterator[None]:
    """Turns whatever the user's code raises into one sentence with their file and line.

    While inside, ``folder`` comes first on ``sys.path``; afterwards last, so that imports inside functions still
    find their neighbours but shadow nothing.
    """
    entry = str(folder) if folder is not None else None
    if entry is not None:
        sys.path[:] = [entry, *(p for p in sys.path if p != entry)]
    try:
        yield
    except NnfuzzError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{doing} failed: {told(error)}") from error
    finally:
        if entry is not None:
            sys.path[:] = [*(p for p in sys.path if p != entry), entry]


def told(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero (model.py:3: x = 1 / 0)``, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        text = error.msg
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    kind = type(error).__name__
    return (f"{kind}: {text}" if text else kind) + where(error)


def where(error: BaseException) -> str:
    """`` (model.py:3: x = 1 / 0)``: the user's last line that an error came by, "" if it met none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}:{error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f" ({Path(last.filename).name}:{last.lineno}{': ' + last.line if last.line else ''})"


def _is_users(filename: str) -> bool:
    ours = str(Path(__file__).parent.parent)
    lib = (f"{sys.prefix}/lib", f"{sys.prefix}/bin", f"{sys.base_prefix}/lib", "<frozen", "<string>")
    return not filename.startswith((ours, *lib)) and "site-packages" not in filename
