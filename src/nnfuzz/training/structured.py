"""Arm: batches with a structure that gradients step over: zeros, equal rows, one input equal to another.

A standard deviation of equal rows, the norm of nothing, a division by a target that is exactly 0: each is one batch
away, and no slope leads there. Every such batch costs one pass, at the initial weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, permutations

import torch
from torch import Tensor

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.program import Batch, Input
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk

SCATTERED = 32
"""Random batches at the initial weights."""


def forms(value: Tensor, about: Input, rowwise: bool) -> Iterator[Tensor]:
    """Legal values for one input, all unlike `value` and each other: constants, each row constant, all rows alike."""
    made = [value]

    def fresh(other: Tensor) -> bool:
        if not about.holds(other) or any(torch.equal(other, m) for m in made):  # 0.5 is no whole number
            return False
        made.append(other)
        return True

    candidates = [torch.full_like(value, c) for c in about.constants()]
    if about.ranged and rowwise:
        candidates.append(value[:1].expand_as(value).clone())
        if value.is_floating_point() and value[0].numel() > 1:
            flat = value.flatten(1)
            candidates.append(flat[:, :1].expand_as(flat).reshape(value.shape).clone())
    yield from filter(fresh, candidates)


def structured(batch: Batch, stream: Stream, inputs: dict[str, Input]) -> Iterator[Batch]:
    """Each input by itself, one made equal to another, then all of them zero."""
    for name, about in inputs.items():
        yield from (batch | {name: form} for form in forms(batch[name], about, stream.is_rowwise(batch[name])))
    for one, other in permutations(inputs, 2):
        x, y = batch[one], batch[other]
        if x.shape == y.shape and x.dtype == y.dtype and inputs[other].holds(x):
            yield batch | {other: x.clone()}
    if len(inputs) > 1:
        zeros = {k: torch.zeros_like(batch[k]) for k, about in inputs.items() if 0 in about.constants()}
        yield batch | zeros


def scattered(batch: Batch, inputs: dict[str, Input], seed: int) -> Iterator[Batch]:
    """Random batches of the whole range, and of its corners: initial weights meet them once, before training has made
    the network sure of what natural batches hold."""
    g = torch.Generator().manual_seed(seed)
    for i in range(SCATTERED):
        made = {k: about.drawn(batch[k], i % 2 == 1, g) for k, about in inputs.items() if about.ranged}
        yield batch | {k: v for k, v in made.items() if inputs[k].holds(v)}


class Structured(Arm):
    """One batch a round, until there is none left."""

    name = "structure"

    def __init__(self, walk: Walk, stream: Stream) -> None:
        super().__init__(walk, stream, None)
        program, first = walk.program, stream.first
        searched = {k: about for k, about in program.inputs.items() if k in first and program.role(k) == "data"}
        self._batches = chain(structured(first, stream, searched), scattered(first, searched, walk.seed))

    def round(self) -> Hit | None:
        self.rounds += 1
        batch = next(self._batches, None)
        if batch is None:
            self.finished = True
            return None
        self.moves += 1
        return self.check(self.stream.noisy(batch, self.rounds))
