"""Random numbers drawn once and taken at random offsets.

Drawing a normal number costs about as much as a small network spends on a pixel; reading one from memory costs a
twentieth. Slices at random offsets of one pool are not independent, but a mutator needs variety, not independence.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardshrink, softshrink

from nnfuzz.memory import room

POOL_NUMBERS = 1 << 21
"""2 Mi numbers (8 MiB): larger than a core's cache, so that two slices rarely overlap within a batch."""

GAUSS = NormalDist()


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
        numbers: the size, whatever is asked of it: memory and the time of drawing do not grow with the inputs. A
            request for more than half of it is put together from slices. What a request gets never depends on
            earlier ones: a resumed run sees the same numbers.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", numbers: int = POOL_NUMBERS):
        self.seed, self.device, self.numbers = seed, torch.device(device), numbers
        self._flat: dict[tuple[str, torch.dtype], Tensor] = {}

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        """A **read-only** view of standard normal numbers of the given shape and floating dtype."""
        return self._view("normal", shape, dtype, rng)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        """A **read-only** view of numbers uniform in [0, 1] of the given shape and floating dtype."""
        return self._view("uniform", shape, dtype, rng)

    def sparse(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float
    ) -> tuple[Tensor, float]:
        """Numbers of either sign at about this share of the elements, 0 elsewhere; a new tensor, and the root mean
        square of those that are not 0.

        They are the normal numbers of the same table beyond a threshold, less the threshold (soft thresholding: Donoho
        1995): most are small and a few large, at every density, from one pass over memory that is in use anyway.
        """
        threshold = _threshold(density)
        return softshrink(self.normal(shape, dtype, rng), threshold), _unit(threshold)

    def signs(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float) -> Tensor:
        """±1 at about this share of the elements, 0 elsewhere; a new tensor."""
        return hardshrink(self.normal(shape, dtype, rng), _threshold(density)).sign_()

    def _view(self, law: str, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
        flat, need, most = self._numbers(law, dtype), math.prod(shape), self.numbers // 2
        if need <= most:
            return self._slice(flat, need, rng).view(shape)
        whole = flat.new_empty(need)
        for start in range(0, need, most):
            part = whole[start : start + most]
            part.copy_(self._slice(flat, len(part), rng))
        return whole.view(shape)

    def _slice(self, flat: Tensor, need: int, rng: np.random.Generator) -> Tensor:
        start = int(rng.integers(0, self.numbers - need + 1))
        return flat[start : start + need]

    def _numbers(self, law: str, dtype: torch.dtype) -> Tensor:
        key = (law, dtype)
        if key not in self._flat:
            self._flat[key] = self._draw(law) if dtype == torch.float32 else self._numbers(law, torch.float32).to(dtype)
        return self._flat[key]

    def _draw(self, law: str) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        fill = torch.rand if law == "uniform" else torch.randn
        table = room((self.numbers,), torch.empty(0))
        return fill(self.numbers, generator=generator, out=table).to(self.device)


def _threshold(density: float) -> float:
    """The magnitude that this share of normal numbers is beyond."""
    return max(0.0, GAUSS.inv_cdf(1 - min(1.0, max(density, 1e-9)) / 2))


def _unit(threshold: float) -> float:
    """√E[(|n| − t)² | |n| > t] for a normal number n."""
    beyond = GAUSS.cdf(-threshold)
    return math.sqrt((1 + threshold**2) - threshold * GAUSS.pdf(threshold) / beyond)
