"""Fresh rows in a batch that is searched for long: GRIST's 5 % every 100 iterations (Yan et al., ESEC/FSE 2021)."""

from __future__ import annotations

import torch

from nnfuzz.training.program import Batch, Program
from nnfuzz.training.stream import Stream

SHARE, EVERY = 0.05, 100


class Renewal:
    """The rows that have been there longest make room for rows of a natural batch; noise is left alone."""

    def __init__(self, stream: Stream, program: Program) -> None:
        self._stream, self._program, self._oldest = stream, program, 0

    def __call__(self, batch: Batch, rounds: int) -> Batch | None:
        """`batch` with fresh rows if it is time for them, else None."""
        rows = self._stream.rows
        count = int(SHARE * rows)
        if rounds % EVERY or not count:
            return None
        fresh, out = self._stream[rounds // EVERY], dict(batch)
        where = torch.arange(self._oldest, self._oldest + count) % rows
        for name, value in batch.items():
            if self._stream.is_rowwise(value) and self._program.role(name) != "noise":
                out[name] = value.detach().index_copy(0, where, fresh[name][where])
        self._oldest = (self._oldest + count) % rows
        return out
