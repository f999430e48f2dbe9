"""Normal noise drawn once and taken at random offsets.

Drawing a normal number costs about as much as a small network spends on a pixel; reading one from memory costs a
twentieth. Slices at random offsets of one pool are not independent, but a mutator needs variety, not independence.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

POOL_NUMBERS = 1 << 22
"""4 Mi numbers (16 MiB): larger than a core's cache, so that two slices rarely overlap within a batch."""


class NoisePool:
    """Standard normal noise in any shape, as a view where it fits.

    Args:
        seed: the pool's content depends on nothing else.
        device: where the batches live.
        numbers: the least size; grown to twice the largest request, so that offsets still vary.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", numbers: int = POOL_NUMBERS):
        self.seed, self.device = seed, torch.device(device)
        self._flat = self._draw(numbers)
        self._cast: dict[torch.dtype, Tensor] = {}

    def _draw(self, numbers: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(numbers, generator=generator).to(self.device)

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        """A **read-only** view of standard normal numbers of the given shape and floating dtype."""
        need = int(np.prod(shape, dtype=np.int64))
        if 2 * need > len(self._flat):
            self._flat, self._cast = self._draw(4 * need), {}
        if dtype not in self._cast:
            self._cast[dtype] = self._flat.to(dtype)
        start = int(rng.integers(0, len(self._flat) - need + 1))
        return self._cast[dtype][start : start + need].view(shape)
