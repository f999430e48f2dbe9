"""What memory costs to touch that has lain for a while, on small pages and on huge ones.

    python benchmarks/pages.py

A virtual machine whose host takes note of which pages are used pays for each page that is touched again. Where the
first figure is milliseconds, whatever works on much memory between long calls of a model is slow there: all of
Python, and every pass of a mutator.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from nnfuzz.memory import LARGE, room

IDLE = 0.25
"""Seconds of nothing before each touch."""


def touched(block: Tensor, idle: float = IDLE, times: int = 9) -> float:
    """Milliseconds to read one byte of every 4 KiB, the median."""
    took = []
    pages = block[::4096]
    for _ in range(times):
        block.add_(1)
        until = time.perf_counter() + idle
        while time.perf_counter() < until:
            pass
        began = time.perf_counter()
        pages.sum()
        took.append(1e3 * (time.perf_counter() - began))
    return float(np.median(took))


def main() -> None:
    small, huge = torch.zeros(LARGE, dtype=torch.uint8), room((LARGE,), torch.zeros(1, dtype=torch.uint8)).zero_()
    code = touched(small[:4096])  # one page: what remains are the pages of Python and torch themselves
    print(
        f"{LARGE >> 20} MiB that have lain for {IDLE} s take {touched(small) - code:.2f} ms to touch on small pages, "
        f"{touched(huge) - code:.2f} ms on huge ones; calling torch at all takes {code:.2f} ms then"
    )


if __name__ == "__main__":
    main()
