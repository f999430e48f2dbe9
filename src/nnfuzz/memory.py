"""Memory that is not touched without need: room for large tensors that stay, and Python's own objects.

A virtual machine whose host takes note of every page pays for each one that has lain for a while: measured on one,
4 MiB that nobody had read for a quarter of a second took 0.2 to 25 ms to touch, by the minute, on pages of 4 KiB, and
0.02 ms on huge ones (``benchmarks/pages.py``). NumPy asks Linux for huge pages from 4 MiB on, torch does not.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

LARGE = 4 << 20
"""Bytes from which NumPy asks for huge pages."""
HUGE = 2 << 20
"""Bytes of a huge page. Room begins and ends where one does: its ends would lie on small pages else."""


def room(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised contiguous tensor of this shape, in the dtype and on the device of ``like``."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LARGE:
        return like.new_empty(tuple(shape))
    whole = np.empty(-size // HUGE * -HUGE + HUGE, np.uint8)
    start = -whole.ctypes.data % HUGE
    return torch.from_numpy(whole[start : start + size]).view(like.dtype).view(tuple(shape))


@contextmanager
def collector_spared() -> Iterator[None]:
    """Python's collector of cycles does not go through what was there before: all of torch, and the models."""
    theirs = gc.get_freeze_count() > 0  # a caller who has done the same may want it to last
    if not theirs:
        gc.freeze()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()
