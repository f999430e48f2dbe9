"""Arm: training on mutated batches, without a gradient of any operand.

Rows far from natural data make large steps, and large steps saturate small networks at once. A few watched rows are
mutated as well, and stay changed where that brings an unsafe operand nearer: TensorFuzz's way, with distance as guide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.lens import Lens
from nnfuzz.training.program import Batch, Program
from nnfuzz.training.scout import ROWS
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, seeded

CHANGED = 0.5  # share of the rows that a mutation changes
AROUND = 0.3  # of the range: how far a row moves that is changed around itself


def mutated(program: Program, batch: Batch, rows: int, g: torch.Generator) -> Batch:
    """Some rows of the searched tensors replaced by noise, by ends of the range per element or as a whole, or moved."""
    out = dict(batch)
    for name in program.movable(batch):
        x = batch[name].detach()
        low, high = program.bounds(name)
        kind = int(torch.randint(4, (1,), generator=g))
        noise = torch.rand(x.shape, generator=g).to(x)
        if kind == 0:
            new = low + (high - low) * noise
        elif kind == 1:
            new = torch.where(noise < 0.5, low, high).to(x.dtype)
        elif kind == 2:
            new = x + AROUND * (high - low) * (2 * noise - 1)
        else:
            new = torch.full_like(x, high if float(noise.flatten()[0]) < 0.5 else low)
        if x.dim() and x.shape[0] == rows:
            which = (torch.rand(rows, generator=g) < CHANGED).to(x.device)
            new = torch.where(which.reshape(-1, *[1] * (x.dim() - 1)), new, x)
        out[name] = new.clamp(low, high).to(x.dtype)
    return out


class Mutated(Arm):
    """guided: whether some rows are watched, and stay changed where they come nearer."""

    name = "mutated batches"

    def __init__(self, walk: Walk, stream: Stream, lens: Lens, guided: bool = True) -> None:
        super().__init__(walk, stream, None)
        self._lens = lens
        self._g = torch.Generator().manual_seed(walk.seed)
        self._rows = stream.few(ROWS)
        self._watched = stream.take(stream.first, torch.arange(self._rows))
        self._targets = list(lens.targets.values()) if guided else []
        self.share = float("inf")

    def round(self) -> Hit | None:
        seeded(self.walk.seed * 31 + self.rounds)
        batch = mutated(self.walk.program, self.stream[self.rounds], self.stream.rows, self._g)
        self.rounds += 1
        if self._targets:
            self._approach()
            batch = self._joined(batch)
        return self.check(batch) or self.train(batch)

    def _approach(self) -> None:
        """One mutation of the watched rows; each keeps whichever of the two is nearer to any edge."""
        other = mutated(self.walk.program, self._watched, self._rows, self._g)
        old, new = self._distances(self._watched), self._distances(other)
        take = new < old
        for name, value in self._watched.items():
            if value.dim() and value.shape[0] == self._rows:
                mask = take.reshape(-1, *[1] * (value.dim() - 1))
                self._watched[name] = torch.where(mask, other[name], value)
        self.share = min(self.share, float(torch.minimum(old, new).min()))

    def _distances(self, batch: Batch) -> Tensor:
        """Of every row to the nearest edge, as a share of where natural data lie; shape (rows,)."""
        self.charge(1, self._lens, self._rows)
        with torch.no_grad():
            read = self._lens.read(self.walk.model, batch, self._rows, self._targets)
        shares = [read[t.name].detach() / t.start for t in self._targets if t.name in read]
        return torch.nan_to_num(torch.stack(shares).amin(0), nan=0.0) if shares else torch.zeros(self._rows)

    def _joined(self, batch: Batch) -> Batch:
        """The watched rows in the place of the first rows of a batch."""
        return {
            k: torch.cat([self._watched[k], v[self._rows :]])
            if self.stream.is_rowwise(v) and self.stream.rows > self._rows
            else v
            for k, v in batch.items()
        }
