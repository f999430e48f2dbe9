"""Bad weather: full disks, damaged and hostile files. One sentence each, and what was saved stays."""

from __future__ import annotations

import errno
import os
import pickle
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nnfuzz import store_files
from nnfuzz.errors import StoreError
from nnfuzz.record import Record
from nnfuzz.stats import Stats
from nnfuzz.store import RunStore, checked_id
from nnfuzz.store_tensors import pack, read_tensors, unpack

Child = Callable[..., subprocess.Popen[str]]

FILLER = """
import math, resource, sys
import numpy as np, torch
from nnfuzz.errors import StoreError
from nnfuzz.record import Record
from nnfuzz.stats import Stats
from nnfuzz.store import RunStore

store = RunStore.create(sys.argv[1], {})
if sys.argv[2] == "quota":
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
done = 0
try:
    while done < 5000:
        x = {"x": torch.full((2000,), float(done))}
        store.commit([Record(done, None, 0, done, done, "seed", math.nan, x, np.zeros(2, np.float32))], {"batch": done})
        done += 1
except StoreError as error:
    print(done, error)
    try:
        for _ in range(100_000):
            store.append_plot(Stats())
    except StoreError as error:
        print(error)
"""


def check_filled(path: Path, output: str) -> None:
    first, *others = output.splitlines()
    done = int(first.split()[0])
    assert done > 3
    assert "full" in first
    assert "corpus.sqlite" in first
    assert all("full" in line and "plot_data.csv" in line for line in others)
    with RunStore.open(path) as store:
        assert [r.id for r in store.records()] == list(range(done))
        assert store.state() == {"batch": done - 1}
    assert (path / "plot_data.csv").read_bytes()[-1:] in (b"\n", b"")  # no half lines


def test_a_quota_reached_leaves_the_corpus_intact(tmp_path: Path, child: Child) -> None:
    out, err = child(FILLER, tmp_path / "run", "quota").communicate(timeout=60)
    assert not err
    assert len(out.splitlines()) == 2
    check_filled(tmp_path / "run", out)


def test_a_really_full_disk(tmp_path: Path, child: Child) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        out, err = child(FILLER, mount / "run", "disk").communicate(timeout=60)
        assert not err
        check_filled(mount / "run", out)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_small_files_are_old_or_new(run: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with RunStore.open(run) as store:
        store.write_stats(Stats(inputs=1))
        before = (run / "stats.json").read_bytes()

        def fail(self: Path, data: bytes) -> int:
            with self.open("wb") as file:
                file.write(data[:10])
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(Path, "write_bytes", fail)
        with pytest.raises(StoreError, match="disk is full" if code == errno.ENOSPC else "permission denied") as caught:
            store.write_stats(Stats(inputs=2))
        assert "stats.json" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert (run / "stats.json").read_bytes() == before
    assert not list(run.glob(".stats*"))


def test_an_error_of_sqlite_rolls_back(
    run: Path, record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore.open(run) as store:
        db = store._corpus._db

        class Full:
            in_transaction = True

            def execute(self, text: str, *rest: Any) -> Any:
                if text == "COMMIT":
                    error = sqlite3.OperationalError("database or disk is full")
                    error.sqlite_errorname = "SQLITE_FULL"  # type: ignore[misc]
                    raise error
                return db.execute(text, *rest)

            def executemany(self, *rest: Any) -> Any:
                return db.executemany(*rest)

        monkeypatch.setattr(store._corpus, "_db", Full())
        with pytest.raises(StoreError, match=r"cannot write .*corpus.sqlite: the disk is full .*resume"):
            store.commit([record(5, 4)], {"batch": 9})
        monkeypatch.setattr(store._corpus, "_db", db)
        assert store.state() == {"batch": 2, "radius": 0.5}
        store.commit([record(5, 4)], {"batch": 3})
        assert len(list(store.records())) == 6


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    garbage = {
        "truncated": data[: len(data) // 2],
        "empty": b"",
        "garbage": os.urandom(len(data)),
        "pickle": pickle.dumps({"x": 1}),
        "nested": b"[" * 100_000,
        "list": b"[1]",
    }
    path.write_bytes(garbage[how])


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "pickle"])
def test_a_damaged_database(run: Path, how: str) -> None:
    damage(run / "corpus.sqlite", how)
    with pytest.raises(StoreError) as caught, RunStore.open(run, writable=False) as store:
        list(store.records())
    assert "corpus.sqlite" in str(caught.value)


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "pickle", "nested", "list"])
def test_a_damaged_manifest(run: Path, how: str) -> None:
    damage(run / "run.json", how)
    with pytest.raises(StoreError, match=r"run.json is damaged"):
        RunStore.open(run)
    with RunStore.open(_mended(run)) as store:  # the failed opening holds no lock
        assert len(list(store.records())) == 5


def _mended(run: Path) -> Path:
    (run / "run.json").write_text("{}")
    return run


def test_a_missing_database(run: Path) -> None:
    (run / "corpus.sqlite").unlink()
    with pytest.raises(StoreError, match="missing"):
        RunStore.open(run)


def change(run: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(run / "corpus.sqlite") as db:
        db.execute(sql, values)
    db.close()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("inputs", b"\x08", "entry 3 .* is damaged: it is no safetensors data"),
        ("inputs", pickle.dumps({"x": 1}), "a pickle, which nnfuzz never opens"),
        ("inputs", pack({"x": torch.zeros(9)})[:-4], "entry 3 .* is damaged"),
        ("inputs", "text", "its inputs is a str"),
        ("vector", b"12345", "no multiple of 4"),
        ("mutator", 5.5, None),  # SQLite makes text of it
        ("batch", "many", "its batch is a str"),
    ],
)
def test_a_damaged_entry(run: Path, column: str, value: object, says: str | None) -> None:
    change(run, f"UPDATE entries SET {column} = ? WHERE id = 3", value)
    with RunStore.open(run) as store:
        if says is None:
            assert len(list(store.records())) == 5
        else:
            with pytest.raises(StoreError, match=says):
                list(store.records())


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_damaged_state(run: Path, text: str) -> None:
    change(run, "UPDATE state SET json = ?", text)
    with RunStore.open(run) as store, pytest.raises(StoreError, match=r"state in .* is damaged"):
        store.state()


@pytest.mark.parametrize(("version", "says"), [(2, "upgrade nnfuzz"), (0, "the nnfuzz that wrote it")])
def test_another_schema(run: Path, version: int, says: str) -> None:
    change(run, f"PRAGMA user_version = {version}")
    with pytest.raises(StoreError, match=rf"schema {version} .*{says}"):
        RunStore.open(run)


def test_somebody_elses_database(run: Path) -> None:
    change(run, "PRAGMA application_id = 1")
    with pytest.raises(StoreError, match="not written by nnfuzz"):
        RunStore.open(run)


def test_metadata_that_lies(tmp_path: Path) -> None:
    from safetensors.torch import save

    for metadata in (
        {"complex": '["y"]'},
        {"complex": "5"},
        {"names": '["y"]'},
        {"names": "[[]]"},
        {"complex": '["x"]'},
    ):
        with pytest.raises(StoreError, match="is damaged"):
            unpack(save({"x": torch.zeros(3)}, metadata), "here")
    (tmp_path / "huge.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(StoreError, match=r"huge\.safetensors is damaged"):
        read_tensors(tmp_path / "huge.safetensors")


@pytest.mark.parametrize("name", ["../F0001", "/tmp/x", "..", "", "a/b", "F\n1", ".hidden", "x" * 100])
def test_a_finding_cannot_leave_its_directory(name: str) -> None:
    with pytest.raises(StoreError, match="cannot name a finding"):
        checked_id(name)


def test_directories_are_exchanged_or_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("exchange", "aside"):
        if way == "aside":
            monkeypatch.setattr(store_files, "_exchange", lambda *_: False)
        for name in ("new", "place"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "who").write_text(f"{name} {way}")
        store_files.replace_directory(tmp_path / "new", tmp_path / "place")
        assert (tmp_path / "place" / "who").read_text() == f"new {way}"
        assert [p.name for p in tmp_path.iterdir()] == ["place"]


def test_what_a_killed_save_leaves_is_tidied(run: Path) -> None:
    findings = run / "findings"
    (findings / ".F0001.old").mkdir()
    (findings / ".F0001.old" / "kept").write_text("x")
    (findings / ".F0002.new-77").mkdir()
    RunStore.open(run).close()
    assert [str(p.relative_to(findings)) for p in sorted(findings.rglob("*"))] == ["F0001", "F0001/kept"]
