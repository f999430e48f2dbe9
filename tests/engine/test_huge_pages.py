"""Memory is moved onto huge pages where Linux can, when it is time, and nothing in it changes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nnfuzz
from nnfuzz import huge_pages
from nnfuzz.huge_pages import HUGE, HugePages, collapse, mappings
from nnfuzz.memory import LARGE, Reused

SMAPS = """\
55d6c0000000-55d6c0800000 rw-p 00000000 00:00 0                          [heap]
Size:               8192 kB
Rss:                8000 kB
AnonHugePages:      2048 kB
7f0000000000-7f0001000000 r-xp 00000000 fe:00 42                         /usr/lib/libtorch_cpu.so
Rss:               16384 kB
7f0002000000-7f0002400000 rw-p 00000000 00:00 0 
Rss:                4096 kB
7f0003000000-7f0003800000 rw-p 00000000 00:00 0                          [stack]
Rss:                8192 kB
7f0004000000-7f0004400000 rw-p 00400000 fe:00 42                         /usr/lib/libtorch_cpu.so
Rss:                4096 kB
7f0005000000-7f0005400000 rw-p 00000000 00:00 0                          [anon:python]
Rss:                   4 kB
"""


def test_only_writable_memory_of_no_file_is_read_from_the_list() -> None:
    heap, arena, empty = mappings(SMAPS)
    assert (heap.start, heap.end) == (0x55D6C0000000, 0x55D6C0800000)
    assert (heap.used, heap.huge) == (8000 << 10, 2 << 20)
    assert (arena.start, arena.used, arena.huge) == (0x7F0002000000, 4 << 20, 0)
    assert empty.used == 4096


def test_what_is_hardly_in_use_is_left_and_the_rest_goes_in_whole_huge_pages() -> None:
    wanted = list(huge_pages._wanted(mappings(SMAPS)))
    assert wanted == [(0x7F0002000000, 4 << 20), (0x55D6C0000000, 8 << 20)]
    odd = SMAPS.replace("7f0002000000-7f0002400000", "7f0002001000-7f0002401000")
    assert next(huge_pages._wanted(mappings(odd))) == (0x7F0002200000, 2 << 20)


def linux_moves() -> bool:
    """Linux 6.1 and later, huge pages not switched off."""
    version = tuple(int(n) for n in __import__("platform").release().split(".")[:2] if n.isdigit())
    return sys.platform == "linux" and version >= (6, 1) and huge_pages._allowed()


@pytest.mark.skipif(not linux_moves(), reason="this system does not move memory onto huge pages")
def test_memory_is_moved_and_holds_what_it_held() -> None:
    small = [np.full(HUGE // 4, i, np.uint8) for i in range(64)]  # too small for NumPy to ask for huge pages
    assert collapse() > 0
    assert sum(m.huge for m in mappings(huge_pages.MAPS.read_text())) > 0
    assert all((a == i).all() for i, a in enumerate(small))


def test_it_is_left_alone_where_somebody_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNFUZZ_HUGE_PAGES", "0")
    assert collapse() == 0
    monkeypatch.delenv("NNFUZZ_HUGE_PAGES")
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "ALLOWED", tmp_path / "enabled")
    assert collapse() == 0
    monkeypatch.setattr(huge_pages, "ALLOWED", tmp_path / "no such file")  # any system but Linux
    assert collapse() == 0


def test_short_runs_are_left_alone_and_long_ones_pay_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, moved = [0.0], []
    monkeypatch.setattr(huge_pages.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(huge_pages, "collapse", lambda: moved.append(now[0]))
    pages = HugePages()
    for second in range(1000):
        now[0] = float(second)
        pages.tend()
    assert moved[0] >= 2
    assert len(moved) <= 7
    assert moved[-1] > 100


def test_memory_is_given_again_only_when_nobody_holds_it() -> None:
    reused = Reused()
    shape = (LARGE // 4, 2)
    first = reused.get(shape, np.dtype(np.float32))
    first[:] = 1
    part = first[10:20].view()
    at = first.ctypes.data
    del first
    other = reused.get(shape, np.dtype(np.float32))
    other[:] = 2
    assert (part == 1).all(), "a part that somebody holds was written over"
    del part
    place = other.ctypes.data
    assert place != at
    del other
    again = reused.get((LARGE // 8,), np.dtype(np.float64))
    assert again.ctypes.data == place
    assert again.dtype == np.float64
    assert reused.get((3, 2), np.dtype(np.int32)).shape == (3, 2)


def test_a_run_moves_its_memory_when_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(huge_pages, "collapse", lambda: moved.append(1))
    nnfuzz.find_nans(torch.nn.Linear(4, 2), torch.rand(3, 4), max_inputs=300)
    assert not moved, "this run is too short"
    monkeypatch.setattr(huge_pages, "FIRST", 0.0)
    nnfuzz.find_nans(torch.nn.Linear(4, 2), torch.rand(3, 4), max_inputs=300)
    assert moved
