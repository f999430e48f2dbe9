"""Random numbers drawn once and taken at random offsets.

Drawing a normal number costs about as much as a small network spends on a pixel; reading one from memory costs a
twentieth. Slices at random offsets of one pool are not independent, but a mutator needs variety, not independence.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

POOL_NUMBERS = 1 << 21
"""2 Mi numbers (8 MiB): larger than a core's cache, so that two slices rarely overlap within a batch."""


SPARSEST = 6
"""Densities come as 1, 1/2, … 1/64: one pool each, so that a sparse step costs one pass over the batch."""


@lru_cache(maxsize=4)
def shared_pool(device: torch.device) -> NoisePool:
    """One pool for all runs of a process: filling it takes longer than a short run, and what a run reads of it follows
    from the run's own seed, which chooses the offsets."""
    return NoisePool(0, device)


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

    def sparse(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float) -> Tensor:
        """Standard normal at about this share of the elements, 0 elsewhere; **read-only**."""
        return self._view(f"sparse {_rung(density)}", shape, dtype, rng)

    def signs(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float) -> Tensor:
        """±1 at about this share of the elements, 0 elsewhere; **read-only**."""
        return self._view(f"signs {_rung(density)}", shape, dtype, rng)

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
            self._flat[key] = self._draw(length, law) if dtype == torch.float32 else self._flat_as(length, law, dtype)
        return self._flat[key]

    def _flat_as(self, length: int, law: str, dtype: torch.dtype) -> Tensor:
        return self._numbers(length, law, torch.float32).to(dtype)

    def _draw(self, length: int, law: str) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        if law == "uniform":
            return torch.rand(length, generator=generator).to(self.device)
        if law == "normal":
            return torch.randn(length, generator=generator).to(self.device)
        kind, _, rung = law.partition(" ")
        normal = self._numbers(length, "normal", torch.float32)
        chosen = torch.rand(length, generator=generator).to(self.device) < 2.0 ** -int(rung)
        return torch.where(chosen, normal.sign() if kind == "signs" else normal, 0)


def _rung(density: float) -> int:
    return min(SPARSEST, max(0, round(-math.log2(max(density, 1e-9)))))
