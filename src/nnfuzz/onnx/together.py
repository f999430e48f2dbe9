"""The results of many calls on parts of a batch, one behind the other, as one call would give them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.memory import Reused

WAITING = 1 << 20
"""Bytes of results that may wait: less is put in place after the last call, since whatever happens between two calls
slows the next; more would have left the caches by then."""
LARGE_PART = 256 << 10
"""Bytes of a part's results from which on ONNX Runtime had better write them where they belong."""


class Together:
    """Takes the parts in order. What is asked of each: arrays of numbers, of one form, with a row for each of the
    part's inputs.

    Args:
        count: rows in all. at_once: rows of each part, the last one what is left.
        blocks: memory of earlier batches by output; used again once nobody holds their results.
    """

    def __init__(self, count: int, at_once: int, blocks: defaultdict[str, Reused]):
        self.count, self.at_once, self.blocks = count, at_once, blocks
        self.whole: dict[str, np.ndarray] = {}
        self._waiting: list[Sequence[Any]] = []
        self._bytes = self._placed = 0

    def take(self, names: Sequence[str], part: Sequence[Any]) -> bool:
        """False where these results do not fit; nothing more is to be asked then."""
        rows = min(self.at_once, self.count - self._placed - len(self._waiting) * self.at_once)
        if not all(isinstance(a, np.ndarray) and a.dtype.kind in "biufc" and a.shape[:1] == (rows,) for a in part):
            return False
        if not self.whole:
            shapes = {n: ((self.count, *a.shape[1:]), a.dtype) for n, a in zip(names, part, strict=True)}
            self.whole = {n: self.blocks[n].get(*form) for n, form in shapes.items()}
        for whole, a in zip(self.whole.values(), part, strict=True):
            if (a.shape[1:], a.dtype) != (whole.shape[1:], whole.dtype):
                return False
            self._bytes += a.nbytes
        self._waiting.append(part)
        large = len(self._waiting) == 1 and self._bytes >= LARGE_PART
        if large or self._bytes >= WAITING:
            self._place()
        return True

    def place(self) -> dict[str, np.ndarray]:
        """Where the next part's results belong, by name; {} where they are to be taken: of the first part, whose
        shapes nobody knows, and of small ones."""
        end = min(self.count, self._placed + self.at_once)
        places = {name: whole[self._placed : end] for name, whole in self.whole.items()}
        large = sum(a.nbytes for a in places.values()) >= LARGE_PART
        return places if large and not self._waiting else {}

    def written(self) -> None:
        """The next part's results are where ``place`` said."""
        self._placed = min(self.count, self._placed + self.at_once)

    def results(self) -> dict[str, Tensor]:
        """All of them by name, (count, …)."""
        self._place()
        return {name: torch.from_numpy(whole) for name, whole in self.whole.items()}

    def _place(self) -> None:
        if not self._waiting:
            return
        end = min(self.count, self._placed + len(self._waiting) * self.at_once)
        for k, whole in enumerate(self.whole.values()):
            np.concatenate([part[k] for part in self._waiting], out=whole[self._placed : end])
        self._placed, self._waiting, self._bytes = end, [], 0
