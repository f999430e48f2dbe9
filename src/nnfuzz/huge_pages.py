"""This process's own memory on huge pages: Python's objects, and the buffers that torch and ONNX Runtime reuse.

Where a host takes note of every page (see ``memory``), what lies on small ones costs most of what a run adds to its
model. Linux gives huge pages to whoever asks when asking for memory, which neither Python nor malloc does; since
Linux 6.1 it also moves what is there already (``MADV_COLLAPSE``, madvise(2)). Nothing but speed depends on it: where
it cannot be had (other systems, older kernels, huge pages switched off) nothing is done and nothing is said.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nnfuzz.memory import HUGE

SWITCH = "NNFUZZ_HUGE_PAGES"
"""Set this environment variable to 0 to leave memory where it is."""
FIRST, LATER = 2.0, 3.0
"""Memory is moved after so many seconds of a run (never in a short one), and again after so many times as many: it
takes up to a second, and what a run needs has grown by then."""
MOST_SECONDS = 1.0
AT_ONCE = 16 * HUGE
FULL = 0.75
"""A mapping of which less is in use is left alone: what is moved takes all of its memory."""
MADV_COLLAPSE = 25
MAPS, ALLOWED = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Mapping(NamedTuple):
    """Anonymous private memory of this process: addresses, and bytes in use and on huge pages."""

    start: int
    end: int
    used: int
    huge: int


class HugePages:
    """Call ``tend()`` between batches; it moves memory when it is time."""

    def __init__(self) -> None:
        self._began, self._next = time.perf_counter(), FIRST

    def tend(self) -> None:
        passed = time.perf_counter() - self._began
        if passed >= self._next:
            self._next = passed * LATER
            collapse()


def collapse(most_seconds: float = MOST_SECONDS) -> int:
    """Moves what is in use onto huge pages, the smallest mappings first, as far as the time goes: weights of many GiB,
    which a model reads from end to end anyway, come last. Returns the bytes that lie on huge pages because of it."""
    text = MAPS.read_text() if _allowed() else ""
    if not text:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    until, moved = time.perf_counter() + most_seconds, 0
    for start, size in _wanted(mappings(text)):
        if time.perf_counter() >= until:
            break
        moved += 0 if madvise(start, size, MADV_COLLAPSE) else size
    return moved


def _allowed() -> bool:
    try:
        return os.environ.get(SWITCH) != "0" and os.access(MAPS, os.R_OK) and "[never]" not in ALLOWED.read_text()
    except OSError:
        return False


def mappings(text: str) -> Iterator[Mapping]:
    """The writable anonymous ones of ``/proc/PID/smaps`` (proc(5))."""
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE):
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0[ ]*(\[heap\]|\[anon.*\])?$", part, re.MULTILINE)
        if head:
            kib = {name: int(n) for name, n in re.findall(r"^(Rss|AnonHugePages): +(\d+) kB", part, re.MULTILINE)}
            used, huge = kib.get("Rss", 0) << 10, kib.get("AnonHugePages", 0) << 10
            yield Mapping(int(head[1], 16), int(head[2], 16), used, huge)


def _wanted(found: Iterator[Mapping]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of whole huge pages to move, ``AT_ONCE`` bytes at most each."""
    for one in sorted(found, key=lambda m: m.end - m.start):
        start, end = -(-one.start // HUGE) * HUGE, one.end // HUGE * HUGE
        if one.used >= FULL * (one.end - one.start) and one.huge < end - start:
            for at in range(start, end, AT_ONCE):
                yield at, min(AT_ONCE, end - at)
