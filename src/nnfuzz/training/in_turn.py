"""Arm: inputs and weights in turn, as GRIST does it (Yan et al., ESEC/FSE 2021).

The batch that is trained on is the batch that is searched: its row nearest to the edge goes a long step toward it, and
one training step follows. The network grows ever surer of a batch that ever more extreme rows make up. That costs next
to nothing and, on small and fast learning programs, arrives long before cleverer ways have warmed up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.moves import FIRST, along
from nnfuzz.training.program import Batch
from nnfuzz.training.renewal import Renewal
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, seeded


class InTurn(Arm):
    """One look, one move and one training step a round."""

    name = "in turn"

    def __init__(
        self, walk: Walk, stream: Stream, lens: Lens, target: Target, others: Sequence[Target] = (), start: int = 0
    ) -> None:
        super().__init__(walk, stream, target)
        self._targets, self._lens, self._renewal = [target, *others], lens, Renewal(stream, walk.program)
        self.batch: Batch = dict(stream[start])
        self._moved = walk.program.movable(self.batch, noise=False)

    def round(self) -> Hit | None:
        step = self.walk.fresh_step(self.batch)
        self.rounds += 1
        self.batch = self.stream.noisy(self.batch, self.rounds)
        leaves = {k: self.batch[k].detach().requires_grad_() for k in self._moved}
        seeded(step.seed)  # the random numbers of the training step that follows
        nearest = self._nearest(self.batch | leaves)
        if nearest and leaves:
            gradients = torch.autograd.grad(nearest, list(leaves.values()), allow_unused=True)
            for (name, x), g in zip(leaves.items(), gradients, strict=True):
                self.batch[name] = along(x, g, *self.walk.program.bounds(name), -FIRST)
        if hit := self.train(self.batch):
            return hit
        if self.walk.program.eval_loss and (hit := self.check(self.batch)):
            return hit
        self.batch = self._renewal(self.batch, self.rounds) or self.batch
        return None

    def evade(self) -> None:
        self.batch = dict(self.stream[self.rounds])

    def _nearest(self, batch: Batch) -> list[Tensor]:
        """Per target the distance of its nearest row, live in the batch."""
        rows = self.stream.rows
        read = self._lens.read(self.walk.model, batch, rows, self._targets)
        self.charge(1, self._lens, rows)
        least = {name: torch.nan_to_num(distance, nan=torch.inf).min() for name, distance in read.items()}
        if self.target is not None and self.target.name in least:
            self.near = min(self.near, float(least[self.target.name].detach()))
        return [d for d in least.values() if d.requires_grad]
