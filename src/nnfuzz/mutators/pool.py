"""Random numbers drawn once and taken at random offsets.

Drawing a normal number costs about as much as a small network spends on a pixel; reading one from memory costs a
twentieth. Slices at random offsets of one pool are not independent, but a mutator needs variety, not independence.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

POOL_NUMBERS = 1 << 22
"""4 Mi numbers (16 MiB): larger than a core's cache, so that two slices rarely overlap within a batch."""


class NoisePool:
    """Standard normal and uniform noise in any shape, as views.

    Args:
        seed: the pool's content depends on nothing else.
        device: where the batches live.
        numbers: the least size. A request for more than half of it is served from a pool of at least twice the
            request, so that offsets still vary; which pool serves a request depends on its size alone, never on
            earlier requests: a resumed run sees the same numbers.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", numbers: int = POOL_NUMBERS):
        self.seed, self.device, self.numbers = seed, torch.device(device), numbers
        self._flat: dict[tuple[int, str, torch.dtype], Tensor] = {}

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        """A **read-only** view of standard normal numbers of the given shape and floating dtype."""
        return self._view("normal", shape, dtype, rng)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        """A **read-only** view of numbers uniform in [0, 1] of the given shape and floating dtype."""
        return self._view("uniform", shape, dtype, rng)

    def _view(self, law: str, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        need = math.prod(shape)
        length = self.numbers
        while 2 * need > length:
            length *= 2
        flat = self._numbers(length, law, dtype)
        start = int(rng.integers(0, length - need + 1))
        return flat[start : start + need].view(shape)

    def _numbers(self, length: int, law: str, dtype: torch.dtype) -> Tensor:
        key = (length, law, dtype)
        if key not in self._flat:
            if law == "normal" and dtype == torch.float32:
                generator = torch.Generator().manual_seed(self.seed)
                self._flat[key] = torch.randn(length, generator=generator).to(self.device)
            elif law == "uniform" and dtype == torch.float32:
                self._flat[key] = torch.special.ndtr(self._numbers(length, "normal", dtype))
            else:
                self._flat[key] = self._numbers(length, law, torch.float32).to(dtype)
        return self._flat[key]
