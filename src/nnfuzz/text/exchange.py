"""How a prompt is changed while it is led toward a wish: exchanges that gradients name, or any; and now and then a cut,
an insertion or the beginning of another prompt."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.text.codec import Codec
from nnfuzz.text.wishes import in_word

BEST = 512
"""Exchanges that point best along the gradient: a mutant draws from these, the logarithm of the rank being uniform."""
MORE = 0.3
"""A mutant gets another exchange with this probability, again and again."""
LED = 0.8
"""This share of the mutants is led by gradients, where there are any; the rest is exchanged anywhere."""
STRUCTURAL = 0.2
"""This share of the mutants changes its length or its beginning instead."""
UNUSUAL = 0.125
"""This share of the ids that come in is any legal one, the rest what seeds hold."""
AGAIN = 4
"""Draws for each mutant that is wanted: some are known."""


class Exchanger:
    """Args:
    codec: of the prompts. longest: ids that a prompt may have. shortest: that it needs. apart: no prompt may end
        within a word, since what follows is to be one.
    """

    def __init__(self, codec: Codec, longest: int, shortest: int, *, apart: bool = False):
        self.codec, self.longest, self.shortest, self.apart = codec, longest, max(1, shortest), apart

    def mutants(
        self,
        ids: list[int],
        others: list[list[int]],
        count: int,
        rng: np.random.Generator,
        cosines: Tensor | None,
        known: Container[tuple[int, ...]] = (),
    ) -> list[list[int]]:
        """``count`` of one prompt. ``others``: prompts that lend their beginnings. ``cosines``: float ``(at least its
        length, vocabulary)``, of every exchange, see ``Wish``. ``known``: prompts that need no second look. There are
        fewer where no more are new."""
        named = None if cosines is None else self._named(ids, cosines)
        made: dict[tuple[int, ...], list[int]] = {}
        for _ in range(AGAIN * count):
            mutant = self._mutant(ids, others, rng, named)
            if tuple(mutant) not in known and self.fits(mutant):
                made.setdefault(tuple(mutant), mutant)
            if len(made) == count:
                break
        return list(made.values())

    def fits(self, ids: list[int]) -> bool:
        """Whether a wish may follow."""
        return not self.apart or not in_word(self.codec.pieces(ids[-1:])[0][-1:])

    def _mutant(
        self, ids: list[int], others: list[list[int]], rng: np.random.Generator, named: NDArray[np.int64] | None
    ) -> list[int]:
        if rng.random() < STRUCTURAL:
            return self._rebuilt(list(ids), others, rng)
        mutant = list(ids)
        led = named is not None and len(named) and rng.random() < LED
        for _ in range(int(rng.geometric(1 - MORE))):
            if named is None or not led:
                at, id_ = int(rng.integers(len(ids))), self._any(rng)
            else:
                rank = int(np.exp(rng.random() * np.log(len(named) + 1))) - 1
                at, id_ = divmod(int(named[rank]), self.codec.size)
            mutant[at] = id_
        return mutant

    def _named(self, ids: list[int], cosines: Tensor) -> NDArray[np.int64]:
        """The most promising exchanges, best first, each as place × vocabulary + id."""
        table = cosines[: len(ids), : self.codec.size].clone()
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
