"""A file of the user's as text: one sentence for whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

from nnfuzz.errors import UsageError


def text_of(path: Path, what: str, advice: str, not_utf8: str = "save it as UTF-8") -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Args:
        what: such a file with its article ("a list of words"). advice: what to give instead.
        not_utf8: what to do where the bytes are no UTF-8.

    Raises:
        UsageError: there is none, it is a directory, it cannot be read, or it is not UTF-8.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory, but {what} is a file: {advice}")
    if not path.exists():
        raise UsageError(f"there is no file {path}: {advice}")
    try:
        return path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}): {not_utf8}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {advice}") from None
