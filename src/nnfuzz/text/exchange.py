"""How a prompt is changed while it is led toward a wish: exchanges that gradients name, or any; and now and then a cut,
an insertion or the beginning of another prompt."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.text.codec import Codec

BEST = 32
"""Exchanges of largest first-order gain for their length that a mutant draws from."""
MORE = 0.3
"""A mutant gets another exchange with this probability, again and again."""
LED = 0.5
"""This share of the mutants is led by gradients, where there are any. The rest is exchanged anywhere: a first-order
gain says little of a jump from one id to another."""
STRUCTURAL = 0.2
"""This share of the mutants changes its length or its beginning instead."""
UNUSUAL = 0.125
"""This share of the ids that come in is any legal one, the rest what seeds hold."""


class Exchanger:
    """Args:
    codec: of the prompts. longest: ids that a prompt may have. shortest: that it needs.
    """

    def __init__(self, codec: Codec, longest: int, shortest: int):
        self.codec, self.longest, self.shortest = codec, longest, max(1, shortest)

    def mutants(
        self, ids: list[int], others: list[list[int]], count: int, rng: np.random.Generator, gains: Tensor | None
    ) -> list[list[int]]:
        """``count`` of one prompt. ``others``: prompts that lend their beginnings. ``gains``: float ``(at least its
        length, vocabulary)``, of every exchange, see ``Wish``."""
        named = None if gains is None else self._named(ids, gains)
        made = []
        for _ in range(count):
            if rng.random() < STRUCTURAL:
                made.append(self._rebuilt(list(ids), others, rng))
                continue
            mutant = list(ids)
            led = named is not None and len(named) and rng.random() < LED
            for _ in range(int(rng.geometric(1 - MORE))):
                if named is None or not led:
                    at, id_ = int(rng.integers(len(ids))), self._any(rng)
                else:
                    at, id_ = divmod(int(rng.choice(named)), self.codec.size)
                mutant[at] = id_
            made.append(mutant)
        return made

    def _named(self, ids: list[int], gains: Tensor) -> NDArray[np.int64]:
        """The most promising exchanges, each as place × vocabulary + id."""
        table = gains[: len(ids), : self.codec.size].clone()
        if self.codec.legal is not None:
            illegal = torch.ones(table.shape[1], dtype=torch.bool, device=table.device)
            illegal[torch.tensor(self.codec.legal, device=table.device)] = False
            table[:, illegal] = -torch.inf
        table[torch.arange(len(ids)), torch.tensor(ids)] = -torch.inf
        best = table.flatten().topk(min(BEST, table.numel()))
        named: NDArray[np.int64] = best.indices[best.values > -torch.inf].cpu().numpy()
        return named

    def _rebuilt(self, ids: list[int], others: list[list[int]], rng: np.random.Generator) -> list[int]:
        how = int(rng.integers(3))
        if how == 0 and len(ids) > self.shortest:
            del ids[int(rng.integers(len(ids)))]
        elif how == 1 and others:
            other = others[int(rng.integers(len(others)))]
            keep = int(rng.integers(1, len(ids) + 1))
            ids = other[: max(0, len(other) - keep)] + ids[-keep:]
        else:
            ids.insert(int(rng.integers(len(ids) + 1)), self._any(rng))
        return ids[-self.longest :]

    def _any(self, rng: np.random.Generator) -> int:
        pool = self.codec.everyday
        if rng.random() < UNUSUAL or not pool:
            legal = self.codec.legal
            return int(legal[int(rng.integers(len(legal)))]) if legal else int(rng.integers(self.codec.size))
        return int(pool[int(rng.integers(len(pool)))])
