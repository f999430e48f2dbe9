"""Several processes on one run: kills, two writers, readers beside the writer."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nnfuzz.errors import RunLocked
from nnfuzz.record import Record
from nnfuzz.store import RunStore

Child = Callable[..., subprocess.Popen[str]]

WRITER = """
import math, sys
import numpy as np, torch
from nnfuzz.record import Record
from nnfuzz.stats import Stats
from nnfuzz.store import RunStore

store = RunStore.open(sys.argv[1]) if sys.argv[2] == "open" else RunStore.create(sys.argv[1], {})
batch = 0
while True:
    records = [Record(3 * batch + k, None, 0, batch, batch, "seed", math.nan, {"x": torch.full((2000,), float(batch))},
                      np.full(4, batch, np.float32)) for k in range(3)]
    store.commit(records, {"batch": batch})
    store.append_plot(Stats(inputs=batch))
    print(batch, flush=True)
    batch += 1
"""


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    found = [process.stdout.readline().strip() for _ in range(count)]
    assert all(found), process.communicate()[1]
    return found


def end(process: subprocess.Popen[str], how: int = signal.SIGKILL) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    process.send_signal(how)
    with process.stdout, process.stderr:
        rest = process.stdout.read()  # what readline left in its buffer too
    process.wait(30)
    return rest


def test_kill_in_the_middle_of_committing_loses_at_most_the_last_batch(tmp_path: Path, child: Child) -> None:
    process = child(WRITER, tmp_path / "run", "create")
    last = lines(process, 40)[-1]
    rest = end(process).split()
    confirmed = int(rest[-1] if rest else last)
    assert process.returncode == -signal.SIGKILL
    with RunStore.open(tmp_path / "run") as store:  # the dead writer's lock is no obstacle
        records, state = list(store.records()), store.state()
        assert state is not None
        assert state["batch"] in (confirmed, confirmed + 1)
        assert [r.id for r in records] == list(range(3 * (state["batch"] + 1)))
        assert all(float(r.inputs["x"].min()) == float(r.inputs["x"].max()) == r.batch for r in records)
        store.commit([records[0]._replace(id=len(records))], {"batch": -1})
        assert store.state() == {"batch": -1}
    assert not (tmp_path / "run" / "corpus.sqlite-wal").exists()


def test_two_writers_and_a_reader(tmp_path: Path, child: Child) -> None:
    process = child(WRITER, tmp_path / "run", "create")
    try:
        lines(process, 5)
        with pytest.raises(RunLocked, match=rf"being written by process {process.pid}\b.*--out"):
            RunStore.open(tmp_path / "run")
        with RunStore.open(tmp_path / "run", writable=False) as reader:
            counts = []
            for _ in range(5):
                ids = [r.id for r in reader.records()]
                assert ids == list(range(len(ids)))
                assert len(ids) % 3 == 0  # whole batches only
                counts.append(len(ids))
                lines(process, 2)
            assert counts == sorted(counts)
            assert counts[-1] > counts[0]
    finally:
        end(process)


def test_two_stores_in_one_process(run: Path) -> None:
    with RunStore.open(run), pytest.raises(RunLocked, match=str(os.getpid())):
        RunStore.open(run)
    with RunStore.open(run):
        pass


def test_a_forked_child_does_not_keep_the_lock(run: Path) -> None:
    """Data loader workers may outlive a killed run."""
    store = RunStore.open(run)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    store.close()
    try:
        with RunStore.open(run) as again:
            assert (run / "lock").read_text() == f"{os.getpid()}\n"
            assert len(list(again.records())) == 5
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the child must outlive the opening"
    finally:
        os.write(go[1], b"x")
        os.waitpid(pid, 0)


def test_a_stale_lock_file_is_no_obstacle(run: Path, record: Callable[..., Record]) -> None:
    (run / "lock").write_text("999999\n")
    with RunStore.open(run) as store:
        store.commit([record(5, 4)], {})
        assert (run / "lock").read_text() == f"{os.getpid()}\n"


def test_a_reader_in_a_directory_that_cannot_be_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SQLite answers there: it cannot make the files that a WAL needs."""
    import sqlite3

    from nnfuzz import store_corpus

    real = store_corpus._configured

    def guarded(uri: str, writable: bool) -> sqlite3.Connection:
        if "immutable" not in uri:
            raise sqlite3.OperationalError("unable to open database file")
        return real(uri, writable)

    monkeypatch.setattr(store_corpus, "_configured", guarded)
    with RunStore.open(run, writable=False) as store:
        assert len(list(store.records())) == 5
