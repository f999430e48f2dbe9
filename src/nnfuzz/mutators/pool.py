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

from nnfuzz.memory import room

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

    def sparse(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float) -> Tensor:
        """Standard normal at about this share of the elements, 0 elsewhere; **read-only**."""
        return self._view(f"sparse {_rung(density)}", shape, dtype, rng)

    def signs(self, shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator, density: float) -> Tensor:
        """±1 at about this share of the elements, 0 elsewhere; **read-only**."""
        return self._view(f"signs {_rung(density)}", shape, dtype, rng)

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
        if law in ("uniform", "normal"):
            fill = torch.rand if law == "uniform" else torch.randn
            table = room((self.numbers,), torch.empty(0))
            return fill(self.numbers, generator=generator, out=table).to(self.device)
        normal = self._numbers("normal", torch.float32)
        if law in ("sparse 0", "signs 0"):
            return normal if law == "sparse 0" else normal.sign()
        kind, _, rung = law.partition(" ")
        all_of_them = normal if kind == "sparse" else self._numbers("signs 0", torch.float32)
        chosen = self._numbers("uniform", torch.float32) < 2.0 ** -int(rung)
        return torch.mul(all_of_them, chosen, out=room((self.numbers,), normal))


def _rung(density: float) -> int:
    return min(SPARSEST, max(0, round(-math.log2(max(density, 1e-9)))))
