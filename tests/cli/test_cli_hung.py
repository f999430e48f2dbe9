"""A model call that does not return: Ctrl-C is heard all the same, and a second one ends the process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz import watcher
from nnfuzz.store import RunStore

MODELS = '''\
import ctypes, os, time
import torch

seeds = torch.rand(6, 4)
native = ctypes.CDLL(None)

def hangs():
    """A lock that is held already: a native call that has released the GIL, and that no signal cuts short."""
    lock, until = ctypes.create_string_buffer(64), (ctypes.c_long * 2)(int(time.time() + float(os.environ["HANG"])), 0)
    native.pthread_mutex_lock(lock)
    open("hung", "w").close()
    native.pthread_mutex_timedlock(lock, until)

def net(x):
    if os.path.exists(os.environ["AFTER"]):
        hangs()
    return x.tanh()

def writes(prompts):
    if os.path.exists(os.environ["AFTER"]):
        hangs()
    return [p.upper() for p in prompts]
'''
SCRIPT = "import sys; from nnfuzz.cli import main; sys.exit(main())"
NAN = "nan hung_nets.py:net --seeds hung_nets.py:seeds -t 600s --plain --phase forward --out RUN"
TEXT = "text hung_nets.py:writes --seeds seeds.txt --objective empty -t 600s --plain --max-new 8 --out RUN"
BATCH = "RUN/plot_data.csv"
"""There once a batch is saved."""
PATIENCE = 120.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the lock that hangs is one of Linux")


class Hung:
    """A run in a child process that is in its native call."""

    def __init__(self, line: str, seconds: float, after: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HANG": str(seconds), "AFTER": after}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self.limit = threading.Timer(PATIENCE, self.process.kill)
        """What it does not say by then it never will: reading ends with the process."""
        self.limit.start()
        until(Path("hung").exists, 60)
        assert self.process.stderr is not None
        self.err = self.process.stderr

    def press(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        return (self.err.readline() or self.err.readline()).decode().strip() or self.err.readline().decode().strip()


def until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hung_nets.py").write_text(MODELS)
    Path("seeds.txt").write_text("hello there\na cat.\n")


@pytest.mark.parametrize(("line", "unit"), [(NAN, "input"), pytest.param(TEXT, "prompt", marks=pytest.mark.slow)])
def test_the_second_ends_it(line: str, unit: str) -> None:
    hung = Hung(line, 600, BATCH)
    try:
        hung.press()
        told = hung.line()
        assert told.startswith("nnfuzz: the model has not returned in the 2 s since Ctrl-C")
        assert "Ctrl-C once more ends it at once (RUN holds " in told
        hung.press()
        out, err = hung.process.communicate(timeout=10)
    finally:
        hung.end()
    assert hung.process.returncode == 130
    last = err.decode().strip()
    assert last.startswith("nnfuzz: error: interrupted at once, while the model did not return: RUN holds ")
    assert f"{unit}s and " in last
    assert "; go on with nnfuzz resume RUN, which begins with the batch in hand" in last
    assert b"Traceback" not in out + err
    with RunStore.open("RUN") as store:  # nobody holds its lock
        assert (store.state() or {})["counters"]["batches"] > 0
        assert store.stopped() == "interrupted"


@pytest.mark.slow
def test_a_model_that_returns_after_all_is_saved_as_ever() -> None:
    hung = Hung(NAN, 5, BATCH)
    try:
        hung.press()
        assert "has not returned" in hung.line()
        out, err = hung.process.communicate(timeout=30)
    finally:
        hung.end()
    assert hung.process.returncode == 130
    assert b"Interrupted, saved. Nothing found" in out
    assert err.strip() == b""


def test_while_it_looks_at_the_seeds() -> None:
    hung = Hung(NAN, 600, "RUN/run.json")
    try:
        hung.press()
        assert "has not returned" in hung.line()
        hung.press()
        _, err = hung.process.communicate(timeout=10)
    finally:
        hung.end()
    assert hung.process.returncode == 130
    assert b"no batch is saved yet, so nothing is kept" in err
    assert not Path("RUN/run.json").exists()


def test_afterwards_all_is_as_it_was() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before, handler = signal.set_wakeup_fd(theirs.fileno()), signal.getsignal(signal.SIGINT)
    try:
        ran: list[Any] = []

        def net(x: Any) -> Any:
            ran.append(watcher._current)
            return x.tanh()

        nnfuzz.find_nans(net, torch.rand(4, 3), max_inputs=64)
        assert all(ran)
        assert watcher._current is None
        assert signal.getsignal(signal.SIGINT) is handler
        assert not [t for t in threading.enumerate() if t.name == "nnfuzz-signals"]
    finally:
        found = signal.set_wakeup_fd(before)
        mine = theirs.fileno()
        ours.close()
        theirs.close()
    assert found == mine
