"""Memory that is not touched without need: room for large tensors that stay, and Python's own objects.

A virtual machine whose host takes note of every page pays for each one that has lain for a while: measured on one,
4 MiB that nobody had read for a quarter of a second took 0.2 to 25 ms to touch, by the minute, on pages of 4 KiB, and
0.02 ms on huge ones (``benchmarks/pages.py``). NumPy asks Linux for huge pages from 4 MiB on, torch does not.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 4 << 20
"""Bytes from which NumPy asks for huge pages."""
HUGE = 2 << 20
"""Bytes of a huge page. Room begins and ends where one does: its ends would lie on small pages else."""
PIECE_BYTES = 2 << 20
"""What is passed over many times (rows that are mutated, results that are judged) comes in pieces of about this size:
what stays in a core's own cache costs a fraction of what comes from memory."""


def room(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised contiguous tensor of this shape, in the dtype and on the device of ``like``."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LARGE:
        return like.new_empty(tuple(shape))
    return torch.from_numpy(_aligned(size)).view(like.dtype).view(tuple(shape))


def _aligned(size: int) -> NDArray[np.uint8]:
    """So many bytes from the beginning of a huge page on."""
    whole = np.empty(-size // HUGE * -HUGE + HUGE, np.uint8)
    start = -whole.ctypes.data % HUGE
    return whole[start : start + size]


class Reused:
    """Memory for one array after the other: a large array gets that of the one before if nobody holds it any more,
    whole or in part, as an array or as a tensor."""

    def __init__(self) -> None:
        self._owner = np.empty(0, np.uint8)

    def get(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised array."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE:
            return np.empty(shape, dtype)
        if len(self._owner) < size + HUGE or sys.getrefcount(self._owner) > _OURS:
            base = _aligned(size).base
            assert isinstance(base, np.ndarray), "a slice keeps what it is of"
            self._owner = base
        start = -self._owner.ctypes.data % HUGE
        return self._owner[start : start + size].view(dtype).reshape(shape)


_OURS = 2
"""References to a block that only ``Reused`` holds: its own, and the one that counting takes."""


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
