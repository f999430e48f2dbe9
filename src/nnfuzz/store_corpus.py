"""corpus.sqlite: the corpus entries and the state of the run, one transaction per batch.

SQLite in WAL mode: a process killed at any moment leaves the last complete transaction, and readers do not disturb
the writer. ``evicted`` keeps the bare lineage of entries whose tensors were dropped.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnfuzz.errors import StoreError
from nnfuzz.record import Record
from nnfuzz.store_files import disk
from nnfuzz.store_tensors import pack, unpack

APPLICATION_ID = 0x6E6E667A  # "nnfz"
SCHEMA_VERSION = 1
CHECKPOINT_PAGES = 2000
"""The WAL is written back every 8 MB: often enough to stay small, seldom enough to cost nothing per batch."""

_TABLES = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, parent INTEGER, seed_index INTEGER NOT NULL, batch INTEGER NOT NULL,
    inputs_tried INTEGER NOT NULL, mutator TEXT NOT NULL, score REAL, inputs BLOB NOT NULL, vector BLOB NOT NULL
);
CREATE TABLE evicted (id INTEGER PRIMARY KEY, parent INTEGER, mutator TEXT NOT NULL);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT NOT NULL);
"""
_INSERT = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REMEMBER = "INSERT OR REPLACE INTO evicted SELECT id, parent, mutator FROM entries WHERE id = ?"
_COLUMNS = (int, int | None, int, int, int, str, int | float | None, bytes, bytes)


class CorpusFile:
    """The open database. Only the writer may call ``commit``."""

    def __init__(self, path: Path, *, create: bool = False, writable: bool = True):
        self.path = path
        with disk(f"open {path}"):
            if create:
                path.touch(exist_ok=False)
            elif not path.exists():
                raise StoreError(f"{path} is missing, so the run cannot be read: restore it from a copy")
            self._db = _connect(path, writable)
            try:
                if create:
                    self._make_tables()
                self._check_version()
            except BaseException:
                self._db.close()
                raise

    def _make_tables(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        self._db.executescript(f"BEGIN; {marks} {_TABLES} COMMIT;")

    def _check_version(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(f"{self.path} was not written by nnfuzz: give the directory of a run")
        if version != SCHEMA_VERSION:
            what = (
                "newer: upgrade nnfuzz" if version > SCHEMA_VERSION else "older: read it with the nnfuzz that wrote it"
            )
            raise StoreError(
                f"{self.path} has schema {version} and this nnfuzz reads schema {SCHEMA_VERSION}; it is {what}"
            )

    def commit(self, records: Sequence[Record], state: dict[str, Any], evicted: Sequence[int] = ()) -> None:
        """All of it or, after a kill or an error, none of it."""
        rows = [_row(record) for record in records]
        text = json.dumps(state)
        gone = [(int(i),) for i in evicted]
        with disk(f"write {self.path}"):
            db = self._db
            try:
                db.execute("BEGIN IMMEDIATE")
                if rows:
                    db.executemany(_INSERT, rows)
                if gone:
                    db.executemany(
                        "INSERT OR REPLACE INTO evicted SELECT id, parent, mutator FROM entries WHERE id = ?", gone
                    )
                    db.executemany("DELETE FROM entries WHERE id = ?", gone)
                db.execute("INSERT OR REPLACE INTO state VALUES (0, ?)", (text,))
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def records(self) -> Generator[Record, None, None]:
        """In id order, as they were when the first one was asked for."""
        rows = self._db.cursor()
        try:
            with disk(f"read {self.path}"):
                for row in rows.execute("SELECT * FROM entries ORDER BY id"):
                    yield self._record(row)
        finally:
            rows.close()

    def _record(self, row: tuple[Any, ...]) -> Record:
        where = f"entry {row[0]} of {self.path}"
        for value, kind, name in zip(row, _COLUMNS, Record._fields, strict=True):
            if not isinstance(value, kind):
                raise StoreError(f"{where} is damaged: its {name} is a {type(value).__name__}")
        i, parent, seed_index, batch, tried, mutator, score, inputs, vector = row
        if len(vector) % 4:
            raise StoreError(f"{where} is damaged: its vector has {len(vector)} bytes, no multiple of 4")
        numbers = np.frombuffer(vector, dtype="<f4").astype(np.float32)
        score = math.nan if score is None else float(score)
        return Record(i, parent, seed_index, batch, tried, mutator, score, unpack(inputs, where), numbers)

    def state(self) -> dict[str, Any] | None:
        """What the last commit was given; None before the first."""
        with disk(f"read {self.path}"):
            row = self._db.execute("SELECT json FROM state").fetchone()
        try:
            state = None if row is None else json.loads(row[0])
            if row is not None and not isinstance(state, dict):
                raise ValueError(f"it is a {type(state).__name__}")
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(f"the state in {self.path} is damaged ({error}): restore it from a copy") from error
        return state

    def ancestry(self) -> dict[int, tuple[int | None, str]]:
        """``{id: (parent, mutator)}`` of every entry there ever was, the evicted ones too."""
        with disk(f"read {self.path}"):
            rows = self._db.execute(
                "SELECT id, parent, mutator FROM entries UNION SELECT id, parent, mutator FROM evicted ORDER BY id"
            ).fetchall()
        return {i: (parent, mutator) for i, parent, mutator in rows}

    def close(self) -> None:
        """Safe to call twice."""
        with disk(f"close {self.path}"):
            self._db.close()


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    """A reader opens for writing too, as SQLite wants it for a WAL, but is kept from writing; in a directory that
    nobody may write to, a database that was closed cleanly is read as it lies."""
    try:
        return _configured(f"{path.absolute().as_uri()}?mode=rw", writable)
    except sqlite3.OperationalError:
        wal = path.with_name(path.name + "-wal")
        if writable or (wal.exists() and wal.stat().st_size):
            raise
        return _configured(f"{path.absolute().as_uri()}?immutable=1", writable)


def _configured(uri: str, writable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    try:
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        db.execute(f"PRAGMA query_only = {0 if writable else 1}")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _row(r: Record) -> tuple[Any, ...]:
    parent = None if r.parent is None else int(r.parent)
    facts = (int(r.id), parent, int(r.seed_index), int(r.batch), int(r.inputs_tried), str(r.mutator), float(r.score))
    return (*facts, pack(r.inputs), np.ascontiguousarray(r.vector, dtype="<f4").tobytes())
