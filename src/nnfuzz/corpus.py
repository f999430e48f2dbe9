"""The corpus: every candidate worth mutating again, with where it came from.

Entries of one signature (equal shapes) lie stacked in a *bucket*, so that parents are gathered in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.memory import room
from nnfuzz.record import Record
from nnfuzz.space import Anchors, Batch, InputSpace, Signature, signature, size

SEED_MUTATOR = "seed"


class _Growing:
    """A tensor with spare room at its end, so that adding a row is not a copy of all."""

    def __init__(self, like: Tensor):
        self._room = torch.empty(16, *like.shape[1:], dtype=like.dtype, device=like.device)
        self.length = 0

    @property
    def view(self) -> Tensor:
        return self._room[: self.length]

    def append(self, new: Tensor) -> None:
        need = self.length + len(new)
        if need > len(self._room):
            larger = room((max(need, 2 * len(self._room)), *self._room.shape[1:]), self._room)
            larger[: self.length] = self.view
            self._room = larger
        self._room[self.length : need] = new
        self.length = need

    def keep(self, index: Tensor) -> None:
        self._room, self.length = self.view[index].clone(), len(index)


class _GrowingInts:
    """The same for whole numbers, in NumPy: parents are looked up by the thousand in every batch."""

    def __init__(self) -> None:
        self._room = np.empty(16, np.int64)
        self.length = 0

    @property
    def view(self) -> NDArray[np.int64]:
        return self._room[: self.length]

    def append(self, value: int) -> None:
        if self.length == len(self._room):
            self._room = np.concatenate([self._room, np.empty_like(self._room)])
        self._room[self.length] = value
        self.length += 1

    def keep(self, index: NDArray[np.int64]) -> None:
        self._room, self.length = self.view[index].copy(), len(index)
        if not self.length:
            self._room = np.empty(16, np.int64)


class Bucket:
    """Entries of equal shapes. Row r of every tensor belongs to the entry ``ids[r]``."""

    def __init__(self, first: Batch, vectors: Tensor):
        self.inputs = {n: _Growing(t) for n, t in first.items()}
        self.vectors = _Growing(vectors)
        self.anchor_inputs = {n: _Growing(t) for n, t in first.items()}
        self._ids, self._anchor_rows, self._seeds = _GrowingInts(), _GrowingInts(), _GrowingInts()
        self.input_bytes = sum(t[0].numel() * t.element_size() for t in first.values())
        self.row_bytes = self.input_bytes + vectors[0].numel() * 4
        self._anchors: Anchors | None = None
        self._anchor_of: dict[int, int] = {}

    def __len__(self) -> int:
        return self._ids.length

    @property
    def ids(self) -> NDArray[np.int64]:
        """Corpus id of every row."""
        return self._ids.view

    @property
    def anchor_rows(self) -> NDArray[np.int64]:
        """Row of ``anchors`` that every row descends from."""
        return self._anchor_rows.view

    @property
    def seed_index(self) -> NDArray[np.int64]:
        """Index of the seed that every row descends from."""
        return self._seeds.view

    def enter(self, id_: int, seed_index: int, inputs: Batch, row: int) -> None:
        """Notes who the next row is; its tensors are appended by the corpus."""
        self._anchor_rows.append(self.anchor_row(seed_index, inputs, row))
        self._ids.append(id_)
        self._seeds.append(seed_index)

    def stay(self, rows_: NDArray[np.int64]) -> None:
        """Keeps these rows only."""
        index = torch.from_numpy(rows_).to(self.vectors.view.device)
        for g in (*self.inputs.values(), self.vectors):
            g.keep(index)
        for ints in (self._ids, self._anchor_rows, self._seeds):
            ints.keep(rows_)

    def gather(self, index: Tensor, out: Batch | None = None) -> Batch:
        """Copies of the entries at these rows (into ``out`` when its shapes fit)."""
        if out is None:
            return {n: g.view.index_select(0, index) for n, g in self.inputs.items()}
        return {n: torch.index_select(g.view, 0, index, out=out[n]) for n, g in self.inputs.items()}

    def anchors(self, space: InputSpace) -> Anchors:
        """The seeds (and, for reshaped entries, their first of this shape) that entries descend from."""
        if self._anchors is None:
            self._anchors = space.anchors({n: g.view for n, g in self.anchor_inputs.items()})
        return self._anchors

    def anchor_row(self, seed_index: int, inputs: Batch, row: int) -> int:
        """The anchor of a seed's descendants in this bucket: the first of them to arrive, which is the seed itself
        unless a free dimension changed on the way."""
        if seed_index not in self._anchor_of:
            self._anchor_of[seed_index] = len(self._anchor_of)
            for n, g in self.anchor_inputs.items():
                g.append(inputs[n][row : row + 1])
            self._anchors = None
        return self._anchor_of[seed_index]


@dataclass
class Admission:
    """Candidates to be admitted: ``inputs`` of one signature, everything else one element a row."""

    inputs: Batch
    vectors: Tensor
    parents: Sequence[int | None]
    seed_index: Sequence[int]
    mutators: Sequence[str]
    scores: Sequence[float]


class Corpus:
    """All entries. Ids count up and are never used twice; meta data of evicted entries stays, for lineage.

    Args:
        space: for the anchors' eps-bounds.
        most: entries; most_bytes: of inputs and vectors. Beyond either, ``evict`` makes room.
    """

    def __init__(self, space: InputSpace, *, most: int = 100_000, most_bytes: int = 2 << 30):
        self.space, self.most, self.most_bytes = space, most, most_bytes
        self.buckets: dict[Signature, Bucket] = {}
        self.parent: list[int] = []
        self.seed_index: list[int] = []
        self.mutator: list[str] = []
        self.score: list[float] = []
        self.depth: list[int] = []
        self.place: dict[int, tuple[Signature, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.place)

    def __iter__(self) -> Iterator[int]:
        """Ids of the entries that are present, oldest first."""
        return iter(sorted(self.place))

    def add(self, new: Admission, ids: Sequence[int] | None = None) -> list[int]:
        """Admits candidates and returns their ids (``ids`` gives them when a run is resumed)."""
        key = signature(new.inputs)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(new.inputs, new.vectors)
        given = list(range(len(self.parent), len(self.parent) + size(new.inputs))) if ids is None else list(ids)
        for row, id_ in enumerate(given):
            self._fill_gap(id_)
            parent = new.parents[row]
            self.place[id_] = (key, len(bucket))
            bucket.enter(id_, new.seed_index[row], new.inputs, row)
            self.parent.append(-1 if parent is None else parent)
            self.seed_index.append(new.seed_index[row])
            self.mutator.append(new.mutators[row])
            self.score.append(float(new.scores[row]))
            self.depth.append(0 if parent is None else self.depth[parent] + 1 if parent < len(self.depth) else 1)
        for n, g in bucket.inputs.items():
            g.append(new.inputs[n])
        bucket.vectors.append(new.vectors)
        self.bytes += bucket.row_bytes * len(given)
        return given

    def candidate(self, id_: int) -> Batch:
        """One entry, with a leading axis of 1."""
        key, row = self.place[id_]
        return {n: g.view[row : row + 1].clone() for n, g in self.buckets[key].inputs.items()}

    def lineage(self, id_: int | None) -> list[dict[str, Any]]:
        """From the seed to this entry: ``{"id", "op"}`` each."""
        chain: list[dict[str, Any]] = []
        while id_ is not None and id_ >= 0:
            chain.append({"id": id_, "op": self.mutator[id_]})
            id_ = self.parent[id_]
        return chain[::-1]

    def records(self, ids: Sequence[int], batch: int, inputs_tried: int) -> list[Record]:
        """The entries as the store keeps them."""
        found = []
        for id_ in ids:
            key, row = self.place[id_]
            bucket = self.buckets[key]
            found.append(
                Record(
                    id=id_,
                    parent=self.parent[id_] if self.parent[id_] >= 0 else None,
                    seed_index=self.seed_index[id_],
                    batch=batch,
                    inputs_tried=inputs_tried,
                    mutator=self.mutator[id_],
                    score=self.score[id_],
                    inputs={n: g.view[row].cpu().clone() for n, g in bucket.inputs.items()},
                    vector=bucket.vectors.view[row].cpu().numpy().astype(np.float32),
                )
            )
        return found

    def vectors(self) -> NDArray[np.float32]:
        """All present vectors in id order, float32 ``(n, d)``."""
        buckets = list(self.buckets.values())
        order = np.argsort(np.concatenate([b.ids for b in buckets]))
        return torch.cat([b.vectors.view for b in buckets]).cpu().numpy()[order]

    @property
    def full(self) -> bool:
        return len(self) > self.most or self.bytes > self.most_bytes

    def evict(self, keep: set[int]) -> list[int]:
        """Drops a quarter of the entries, the least useful: neither seeds, nor anchors (a resumed run
        must find them again), nor in ``keep`` (the frontier), nor among the newest half; of the older ones
        every second, then more, oldest first. Returns the ids that went."""
        ids = list(self)
        keep = keep | {
            int(i) for b in self.buckets.values() for i in b.ids[np.unique(b.anchor_rows, return_index=True)[1]]
        }
        old = [i for i in ids[: len(ids) // 2] if self.parent[i] >= 0 and i not in keep]
        wanted = len(ids) // 4
        doomed = set((old[::2] + old[1::2])[:wanted])
        for key, bucket in list(self.buckets.items()):
            stay = np.flatnonzero(~np.isin(bucket.ids, sorted(doomed)))
            if len(stay) == len(bucket):
                continue
            bucket.stay(stay)
            for r, i in enumerate(bucket.ids.tolist()):
                self.place[i] = (key, r)
            if not len(bucket):
                del self.buckets[key]
        for i in doomed:
            key, _ = self.place.pop(i)
        self.bytes = sum(b.row_bytes * len(b) for b in self.buckets.values())
        return sorted(doomed)

    def remember(self, ancestry: Mapping[int, tuple[int | None, str]]) -> None:
        """Fills in where evicted entries of an earlier session came from."""
        for id_, (parent, mutator) in sorted(ancestry.items()):
            if id_ < len(self.parent):
                self.parent[id_], self.mutator[id_] = -1 if parent is None else parent, mutator
                self.depth[id_] = 0 if parent is None else self.depth[parent] + 1

    def _fill_gap(self, id_: int) -> None:
        """Ids that were evicted before a resume leave blank meta data, so that lists stay indexed by id."""
        while len(self.parent) < id_:
            self.parent.append(-1)
            self.seed_index.append(-1)
            self.mutator.append("evicted")
            self.score.append(float("nan"))
            self.depth.append(0)
