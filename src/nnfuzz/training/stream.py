"""Natural batches from the program's own stream, kept while memory allows; labels and rows come from here only."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.training.program import Batch, Program
from nnfuzz.training.walk import seeded

KEPT_BYTES = 256e6  # natural batches kept; beyond that they are drawn again in a circle


def size(batch: Batch) -> int:
    return sum(t.numel() * t.element_size() for t in batch.values())


class Stream:
    """Numbered natural batches: `stream[i]` is the same tensors every time (never change them in place).

    rows: of a batch. whole: whether the loss takes all of them only, so that nobody may look at a few.
    """

    def __init__(self, program: Program, seed: int) -> None:
        self._program, self._seed = program, seed
        seeded(seed)
        self._source: Iterator[Batch] = iter(program.batches(seed))
        self._kept: list[Batch] = []
        self._full = False
        self._ended: int | None = None
        self._uneven: str = ""
        self.first = self[0]
        self.rows = program.rows(self.first)
        self.whole = False

    def __getitem__(self, i: int) -> Batch:
        while len(self._kept) <= i and not self._full:
            seeded(self._seed + len(self._kept) + 1)
            batch = next(self._source, None)
            if batch is None:
                if not self._kept:
                    raise UsageError(
                        "batches(seed) yields nothing, but one batch at least is needed: yield a dict of tensors"
                    )
                self._full, self._ended = True, len(self._kept)
                break
            self._kept.append(self._like_first(batch) if self._kept else self._valid(batch))
            self._full = size(batch) * len(self._kept) > KEPT_BYTES
        return self._kept[i % len(self._kept)]

    def _valid(self, batch: Batch) -> Batch:
        if not isinstance(batch, dict) or not all(isinstance(v, Tensor) for v in batch.values()):
            raise UsageError(
                f"batches(seed) yields a {type(batch).__name__}, but must yield dicts of tensors: name them, as "
                "dict(x=x, y=y)"
            )
        program = self._program
        word = "inputs" if program.path is None else "INPUTS"
        for name in program.inputs:
            if name not in batch:
                raise UsageError(
                    f"a batch has {', '.join(map(repr, batch))}, but {word} names {name!r}: add it to the batch or "
                    f"take it out of {word}"
                )
        if unknown := [k for k in batch if k not in program.inputs]:
            raise UsageError(
                f"a batch has {unknown[0]!r}, but {word} does not say what it is: add {unknown[0]!r} with a range or "
                "fixed=True"
            )
        if not program.rows(batch):
            raise UsageError("a batch of batches(seed) has no rows, but one at least is needed: yield some")
        for name, about in program.inputs.items():
            value = batch[name]
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UsageError(f"{name!r} of the first batch is not finite, but natural data must be: clean it first")
            if about.choices and not about.holds(value):
                odd = value[~torch.isin(value, torch.tensor(about.choices, dtype=value.dtype))][0]
                raise UsageError(
                    f"{name!r} holds {odd.item():g} in the first batch, but its choices are "
                    f"{', '.join(f'{c:g}' for c in about.choices[:8])}{', …' if len(about.choices) > 8 else ''}: "
                    "name all values that the data has"
                )
            if about.low is None or about.high is None:
                continue
            low, high = float(value.min()), float(value.max())
            allowed = torch.tensor([about.low, about.high]).to(value.dtype)  # 0.35 in float32 is more than 0.35
            if low < float(allowed[0]) or high > float(allowed[1]):
                raise UsageError(
                    f"{name!r} lies in [{low:g}, {high:g}] in the first batch, but its range is "
                    f"[{about.low:g}, {about.high:g}]: widen the range so that it holds the data"
                )
        return batch

    def _like_first(self, batch: Batch) -> Batch:
        """A later batch, with as many rows as the first one: what walks and scouts keep must fit all of them."""
        if not isinstance(batch, dict) or batch.keys() != self.first.keys():
            given = ", ".join(map(repr, batch)) if isinstance(batch, dict) else f"a {type(batch).__name__}"
            raise UsageError(
                f"batch {len(self._kept)} of batches(seed) is {given}, but the first one has "
                f"{', '.join(map(repr, self.first))}: yield the same names every time"
            )
        own = self._program.rows(batch)
        if own == self.rows:
            return batch
        if not own:
            raise UsageError(
                f"batch {len(self._kept)} of batches(seed) has no rows, but one at least is needed: leave it out"
            )
        self._uneven = self._uneven or (
            f"batches(seed) gives {own} rows in batch {len(self._kept)} and {self.rows} in the first: it is cut, or "
            "its rows repeated, to as many"
        )
        index = torch.arange(self.rows) % own
        return {k: v[index] if v.dim() and v.shape[0] == own else v for k, v in batch.items()}

    def notes(self) -> list[str]:
        """What should be known of the batches."""
        ended = f"batches(seed) ended after {self._ended}: they are used again in a circle"
        return [text for text in (ended if self._ended is not None else "", self._uneven) if text]

    def few(self, rows: int) -> int:
        """So many rows at most, where a few will do."""
        return self.rows if self.whole else min(rows, self.rows)

    def is_rowwise(self, value: Tensor) -> bool:
        """Whether a tensor's first axis is the batch."""
        return value.dim() > 0 and value.shape[0] == self.rows

    def take(self, batch: Batch, index: Tensor) -> Batch:
        """Rows `index` of a batch; tensors without the batch axis are handed on."""
        if bool(torch.equal(index, torch.arange(self.rows))):
            return dict(batch)
        return {k: v[index] if self.is_rowwise(v) else v for k, v in batch.items()}

    def whole_of(self, batch: Batch) -> Batch:
        """A batch of as many rows as natural ones have, from one of fewer: its rows in turn."""
        own = self._program.rows(batch)
        index = torch.arange(self.rows) % max(1, own)
        return {k: v.detach()[index] if self.is_rowwise(self.first[k]) else v.detach() for k, v in batch.items()}

    def noisy(self, batch: Batch, i: int) -> Batch:
        """`batch` with the noise of natural batch `i`, cut to its own number of rows."""
        names = [k for k in batch if self._program.role(k) == "noise"]
        return batch | {k: self[i][k][: batch[k].shape[0]] if batch[k].dim() else self[i][k] for k in names}

    def groups(self) -> list[Tensor]:
        """Row numbers of the first batch by label, the largest group first; one group if there are no discrete labels.

        Rows are distinct by label where few labels are shared by many rows; at most 16 groups.
        """
        labels = [
            v.reshape(self.rows, -1).double()
            for k, v in self.first.items()
            if self._program.role(k) == "label" and self.is_rowwise(v)
        ]
        everything = [torch.arange(self.rows)]
        if not labels:
            return everything
        _, which = torch.cat(labels, 1).unique(dim=0, return_inverse=True)
        count = int(which.max()) + 1
        if count < 2 or count > min(16, max(2, self.rows // 2)):
            return everything
        groups = [(which == g).nonzero()[:, 0] for g in range(count)]
        return sorted(groups, key=lambda g: -len(g))

    def filled(self, index: Tensor) -> Batch:
        """A full batch made of the rows `index` of the first one, repeated in turn."""
        return self.take(self.first, index.repeat(-(-self.rows // len(index)))[: self.rows])
