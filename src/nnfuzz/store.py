"""The run directory: everything a run leaves behind, safe against kills, full disks and second writers.

    RUN/run.json       the manifest: command, versions, seed, ranges
    RUN/corpus.sqlite  entries and state (store_corpus.py)
    RUN/stats.json     the latest numbers, replaced whole
    RUN/plot_data.csv  their history, one row each
    RUN/findings/F0001 one directory per finding (findings/save.py)
    RUN/lock           held by the writing process (store_lock.py)

Reading any of it never executes code from it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nnfuzz.errors import StoreError
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import load_finding, save_finding
from nnfuzz.record import Record
from nnfuzz.stats import PLOT_COLUMNS, Stats
from nnfuzz.store_corpus import CorpusFile
from nnfuzz.store_files import disk, from_json, tidy, to_json, write_atomically
from nnfuzz.store_lock import RunLock
from nnfuzz.store_place import MANIFEST, no_run_at, run_at

CORPUS, LOCK = "corpus.sqlite", "lock"
_GITIGNORE = "# Written by nnfuzz: a run is data, not source.\n*\n"
_CORPUS_FILES = {CORPUS, f"{CORPUS}-wal", f"{CORPUS}-shm", f"{CORPUS}-journal"}
_BEFORE_MANIFEST = {LOCK, ".gitignore", "findings"} | _CORPUS_FILES


class RunStore:
    """One run directory, open. Made by ``create`` and ``open``; a context manager."""

    def __init__(self, path: Path, manifest: dict[str, Any], corpus: CorpusFile, lock: RunLock | None):
        self.path = path
        self.manifest = manifest
        self._corpus = corpus
        self._lock = lock
        self._plot: int | None = None

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any]) -> RunStore:
        """A new run in a directory that does not exist or is empty; raises ``StoreError`` otherwise."""
        path = no_run_at(Path(path))
        with disk(f"create {path}"):
            path.mkdir(parents=True, exist_ok=True)
        refuse_occupied(path)
        lock = RunLock(path / LOCK)
        try:
            refuse_occupied(path)
            with disk(f"create {path}"):
                for name in _CORPUS_FILES:
                    (path / name).unlink(missing_ok=True)
                (path / "findings").mkdir(exist_ok=True)
            if not (path / ".gitignore").exists():
                write_atomically(path / ".gitignore", _GITIGNORE)
            corpus = CorpusFile(path / CORPUS, create=True)
            store = cls(path, manifest, corpus, lock)
            store.write_manifest(manifest)  # last: with it the directory is a run
            return store
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | Path, writable: bool = True) -> RunStore:
        """An existing run. A writer locks it (``RunLocked`` if another process has it); readers need no lock."""
        path = Path(path)
        run_at(path)
        lock = RunLock(path / LOCK) if writable else None
        try:
            manifest = from_json(path / MANIFEST)
            if writable and (path / "findings").is_dir():
                with disk(f"tidy {path / 'findings'}"):
                    tidy(path / "findings")
            return cls(path, manifest, CorpusFile(path / CORPUS, writable=writable), lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replaces run.json; ``.manifest`` is then what a reader of the file sees."""
        self._writer()
        write_atomically(self.path / MANIFEST, to_json(manifest))
        self.manifest = from_json(self.path / MANIFEST)

    def commit(self, records: Sequence[Record], state: dict[str, Any], evicted: Sequence[int] = ()) -> None:
        """One batch: new entries, entries to drop, and the state to resume from. One transaction.

        A record whose id is already there replaces it, so a batch may be committed again after an error.
        """
        self._writer()
        self._corpus.commit(records, state, evicted)

    def records(self) -> Generator[Record, None, None]:
        """Corpus entries in id order."""
        return self._corpus.records()

    def state(self) -> dict[str, Any] | None:
        """The state of the last commit; None before the first."""
        return self._corpus.state()

    def ancestry(self) -> dict[int, tuple[int | None, str]]:
        """``{id: (parent, mutator)}`` of every entry there ever was, evicted or not."""
        return self._corpus.ancestry()

    def save_finding(self, finding: Finding) -> Path:
        """Writes ``findings/ID`` with its artifacts, replacing an earlier version in one step; returns the path."""
        self._writer()
        with disk(f"create {self.path / 'findings'}"):
            (self.path / "findings").mkdir(exist_ok=True)
        context = self.manifest.get("context")
        started_in = context.get("cwd") if isinstance(context, dict) else None
        place = save_finding(finding, self.path / "findings" / checked_id(finding.id), cwd=started_in)
        finding.place = place.resolve()
        return place

    def findings(self) -> list[Finding]:
        """All findings, loaded in full, in order of id."""
        with disk(f"read {self.path / 'findings'}"):
            found = sorted(d for d in (self.path / "findings").glob("[!.]*") if (d / "finding.json").is_file())
        return [load_finding(directory) for directory in found]

    def write_stats(self, stats: Stats) -> None:
        """Replaces stats.json."""
        self._writer()
        write_atomically(self.path / "stats.json", to_json(stats.to_json()))

    def stopped(self) -> str:
        """Why the last session ended, as stats.json has it; "" when it wrote no end, or cannot be read."""
        try:
            return str(from_json(self.path / "stats.json").get("stopped") or "")
        except StoreError:
            return ""

    def stats(self) -> Stats | None:
        """What stats.json holds; None where it cannot be read."""
        try:
            return Stats.from_json(from_json(self.path / "stats.json"))
        except (StoreError, TypeError, ValueError):
            return None

    def spent(self) -> tuple[int, float]:
        """``(inputs, seconds)`` of all sessions so far, as stats.json has it; zeros where it cannot be read."""
        try:
            document = from_json(self.path / "stats.json")
            return int(document.get("execs_done") or 0), float(document.get("run_time") or 0.0)
        except (StoreError, TypeError, ValueError):
            return 0, 0.0

    def append_plot(self, stats: Stats) -> None:
        """One more row of plot_data.csv, whole or not at all."""
        self._writer()
        path = self.path / "plot_data.csv"
        with disk(f"write {path}"):
            if self._plot is None:
                self._plot = _open_table(path)
            row = stats.plot_row()
            append_whole(self._plot, ",".join(str(row[c]) for c in PLOT_COLUMNS) + "\n")

    def discard(self) -> None:
        """Removes the directory of a run that never got to its first candidate; one that did is left as it is."""
        state = self.state()
        if self._lock is None or (state is not None and state.get("counters", {}).get("inputs")):
            return
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Safe to call twice."""
        if self._plot is not None:
            os.close(self._plot)
            self._plot = None
        self._corpus.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _writer(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path} was opened for reading only: open it with writable=True")


class NullStore:
    """The same without a directory (``out=None``): findings and the last state stay in memory, the rest is dropped."""

    path = None

    def __init__(self, manifest: dict[str, Any] | None = None):
        self.manifest = manifest or {}
        self._findings: dict[str, Finding] = {}
        self._state: dict[str, Any] | None = None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest

    def commit(self, records: Sequence[Record], state: dict[str, Any], evicted: Sequence[int] = ()) -> None:
        self._state = state

    def records(self) -> Iterator[Record]:
        return iter(())

    def state(self) -> dict[str, Any] | None:
        return self._state

    def ancestry(self) -> dict[int, tuple[int | None, str]]:
        return {}

    def save_finding(self, finding: Finding) -> None:
        self._findings[checked_id(finding.id)] = finding

    def findings(self) -> list[Finding]:
        return [self._findings[i] for i in sorted(self._findings)]

    def write_stats(self, stats: Stats) -> None:
        pass

    def append_plot(self, stats: Stats) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


Store = RunStore | NullStore


def checked_id(name: str) -> str:
    """A finding's id names a directory, so it may hold nothing that leads elsewhere."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise StoreError(f"{name!r} cannot name a finding: use letters, digits, - and _")
    return name


def refuse_occupied(path: Path) -> None:
    """Raises ``StoreError`` unless a new run may be put there."""
    with disk(f"read {path}"):
        names = {p.name for p in path.iterdir()}
    no_run_at(path)
    # A process killed while creating a run leaves some of these, and an empty corpus: that is free to take.
    foreign = {n for n in names - _BEFORE_MANIFEST if not n.startswith(f".{MANIFEST}.new-")}
    if foreign or (CORPUS in names and _holds_entries(path / CORPUS)):
        shown = ", ".join(sorted(foreign or {CORPUS})[:3])
        raise StoreError(f"{path} is not empty ({shown}) and is no run: choose another --out or empty it first")


def _holds_entries(path: Path) -> bool:
    try:
        corpus = CorpusFile(path, writable=False)
    except StoreError:
        return path.stat().st_size > 0
    try:
        return bool(corpus.ancestry()) or corpus.state() is not None
    finally:
        corpus.close()


def _open_table(path: Path) -> int:
    """plot_data.csv at its end; a last line that a kill left unfinished is cut off."""
    table = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        data = path.read_bytes()
        os.ftruncate(table, data.rfind(b"\n") + 1)
        if b"\n" not in data:
            append_whole(table, ",".join(PLOT_COLUMNS) + "\n")
    except BaseException:
        os.close(table)
        raise
    return table


def append_whole(fd: int, line: str) -> None:
    """Appends the line, or (disk full) leaves the file as it was and raises ``OSError``."""
    data = line.encode()
    before = os.fstat(fd).st_size
    try:
        written = os.write(fd, data)
        if written < len(data):
            os.write(fd, data[written:])  # raises the reason why the first was short
    except OSError:
        os.ftruncate(fd, before)
        raise
