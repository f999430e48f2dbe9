"""Small files that are either old or new and never half of both; trouble with the disk said in one sentence; JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nnfuzz.errors import StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_WRITTEN = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHM")


@contextmanager
def disk(doing: str) -> Iterator[None]:
    """Turns errors of the operating system and of SQLite into ``StoreError``; ``doing`` reads "write RUN/x.json"."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot {doing}: {_reason(error)}") from error


def _reason(error: OSError | sqlite3.Error) -> str:
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return (
                "the disk is full or a quota is reached; what was saved before is intact, so free some space and resume"
            )
        if error.errno in _FORBIDDEN:
            return "permission denied; give the user write access to it or choose another --out"
        return error.strerror or str(error)
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(_NOT_WRITTEN):
        return f"the disk is full or failing ({error}); all that was saved is intact, so free some space and resume"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"permission denied ({error}); give the user write access to its directory or copy it elsewhere"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT")):
        return f"the file is damaged ({error}); restore it from a copy or start a new run"
    return str(error)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes beside ``path`` and renames; on any error the old file stays as it was."""
    new = path.with_name(f".{path.name}.new-{os.getpid()}")
    with disk(f"write {path}"):
        try:
            new.write_bytes(data.encode() if isinstance(data, str) else data)
            new.replace(path)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise


def replace_directory(new: Path, path: Path) -> None:
    """Puts the directory ``new`` in the place of ``path``, in one step where the system can exchange two names."""
    if not path.exists():
        new.rename(path)
        return
    if _exchange(new, path):
        shutil.rmtree(new, ignore_errors=True)
        return
    aside = path.with_name(f".{path.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    new.rename(path)
    shutil.rmtree(aside, ignore_errors=True)


def tidy(directory: Path) -> None:
    """Clears what a killed process left of ``replace_directory``; a finding that was set aside comes back."""
    for left in directory.glob(".*.old"):
        place = directory / left.name[1 : -len(".old")]
        if not place.exists():
            left.rename(place)
    for pattern in (".*.new-*", ".*.old"):
        for left in directory.glob(pattern):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def _exchange(one: Path, other: Path) -> bool:
    """renameat2(RENAME_EXCHANGE): Linux only, and not on every file system; False where it cannot be done."""
    if sys.platform != "linux":
        return False
    import ctypes

    at_cwd, exchange = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0)


# ---------------------------------------------------------------------------------------------- JSON

NONFINITE = "nonfinite"
"""Key under which a document lists the places of its numbers "nan", "inf" and "-inf", which JSON has no words for."""


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON for people and other programs; ``from_json`` gives the same numbers back."""
    marks: list[list[str | int]] = []
    plain = _plain(document, [], marks)
    if marks:
        plain[NONFINITE] = marks
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(path: Path) -> dict[str, Any]:
    """The document in a file, as ``to_json`` wrote it. Raises ``StoreError`` when it is none."""
    with disk(f"read {path}"):
        data = path.read_bytes()
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError(f"it holds a {type(document).__name__}, not an object")
        for *way, last in document.pop(NONFINITE, []):
            part: Any = document
            for step in way:
                part = part[step]
            part[last] = float(part[last])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a copy") from error
    return document


def _plain(value: Any, way: list[str | int], marks: list[list[str | int]]) -> Any:
    """Dicts, lists, strings, numbers, booleans, None. What is none of these is written as its text."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        marks.append(way)
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, [*way, str(k)], marks) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v, [*way, i], marks) for i, v in enumerate(value)]
    return str(value)
