"""Where a run or a finding lies, or may lie: questions that a few file names answer. No torch here."""

from __future__ import annotations

from pathlib import Path

from nnfuzz.errors import StoreError

MANIFEST, FACTS = "run.json", "finding.json"


def run_at(path: Path) -> Path:
    """The path itself. Raises ``StoreError`` unless a run lies there."""
    if not (path / MANIFEST).is_file():
        missing = _missing(path, f"holds no {MANIFEST}")
        raise StoreError(f"{path} {missing}, so it is no run: give the directory that --out named")
    return path


def finding_at(path: Path) -> Path:
    """The path itself. Raises ``StoreError`` unless a finding lies there."""
    if not (path / FACTS).is_file():
        missing = _missing(path, f"holds no {FACTS}")
        raise StoreError(f"{path} {missing}, so it is no finding: give a directory such as RUN/findings/F0001")
    return path


def either_at(path: Path) -> Path:
    """The path itself. Raises ``StoreError`` unless a run or a finding lies there."""
    if not (path / MANIFEST).is_file() and not (path / FACTS).is_file():
        missing = _missing(path, f"holds neither {MANIFEST} nor {FACTS}")
        raise StoreError(f"{path} {missing}: give a run directory or one of its findings")
    return path


def no_run_at(path: Path) -> Path:
    """The path itself. Raises ``StoreError`` when a run lies there already, which a new one must not replace, or a
    file."""
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file, but a run is a directory: choose another --out")
    if (path / MANIFEST).is_file():
        raise StoreError(
            f"{path} already holds a run: go on with it (nnfuzz resume {path}), choose another --out, or delete it"
        )
    return path


def _missing(path: Path, holds: str) -> str:
    return holds if path.is_dir() else "is a file" if path.exists() else "does not exist"
