"""From parents to mutants. A brood is a batch of mutants of equal shapes, in a few groups of one mutator each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.corpus import Bucket, Corpus
from nnfuzz.memory import PIECE_BYTES, room
from nnfuzz.mutators import Bandit, Context, Mutator
from nnfuzz.mutators.pool import shared_pool
from nnfuzz.schedule import Schedule
from nnfuzz.space import Anchors, Batch, InputSpace, rows, size

LEAST_GROUP = 32
SHAPES = 4
"""A group that changes shapes comes as so many broods, each with a shape of its own."""
COSTLY_FROM = 512
COSTLY_SHARE = 32
"""In batches of at least ``COSTLY_FROM`` rows a costly mutator's group is this part of the batch."""


@dataclass
class Group:
    """Mutants ``part`` of a brood came from this mutator."""

    mutator: str
    part: slice


@dataclass
class Brood:
    """Mutants and where they came from. ``parents`` are corpus ids, ``rows`` their places in ``bucket``.

    Attributes:
        keep: rows that are to enter the corpus whatever coverage says. admitted: row → corpus id of those that did.
        cost: of one mutant, in plain runs of the model.
    """

    batch: Batch
    bucket: Bucket
    rows: NDArray[np.int64]
    groups: list[Group]
    anchors: Anchors
    keep: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    admitted: dict[int, int] = field(default_factory=dict)
    cost: int = 1

    @property
    def parents(self) -> NDArray[np.int64]:
        return self.bucket.ids[self.rows]

    def mutator_of(self, row: int) -> str:
        return next(g.mutator for g in self.groups if g.part.start <= row < g.part.stop)


class Breeder:
    """Makes broods. All randomness of batch n follows from the run's seed and n alone, so that a run can resume."""

    def __init__(
        self,
        space: InputSpace,
        corpus: Corpus,
        schedule: Schedule,
        mutators: dict[str, Mutator],
        bandit: Bandit,
        seed: int,
        device: torch.device,
        costly_from: int = COSTLY_FROM,
    ):
        """``costly_from``: rows of a batch in which costly mutators are rationed."""
        self.costly_from = costly_from
        self.space, self.corpus, self.schedule = space, corpus, schedule
        self.mutators, self.bandit, self.seed = mutators, bandit, seed
        self.pool = shared_pool(device)
        self.generator = torch.Generator(device)
        self._room: Batch = {}

    def broods(self, count: int, names: Sequence[str], rng: np.random.Generator) -> Iterator[Brood]:
        """About ``count`` mutants, by the named mutators in equal groups. Use each brood before asking for the next:
        they share memory."""
        self.generator.manual_seed(int(rng.integers(1 << 62)))
        shares = self._shares(count, names)
        together: dict[int, list[tuple[str, Bucket, NDArray[np.int64]]]] = {}
        for i, name in enumerate(names):
            reshapes = self.mutators[name].reshapes
            for turn in range(min(SHAPES, shares[i]) if reshapes else 1):
                bucket, picked = self.schedule.draw(shares[i] // SHAPES or 1 if reshapes else shares[i], rng)
                place = -1 - i * SHAPES - turn if reshapes else id(bucket)
                together.setdefault(place, []).append((name, bucket, picked))
        for groups in together.values():
            brood = self._brood(groups, rng)
            if size(brood.batch):
                yield brood

    def balanced(self, names: list[str], count: int, rng: np.random.Generator) -> list[str]:
        """The names (a random one if there is none), and in a large batch a one-pass mutator among them."""
        cheap = [n for n in self.mutators if self.mutators[n].cheap]
        if count >= self.costly_from and cheap and not any(n in cheap for n in names):
            return [*names, cheap[int(rng.integers(len(cheap)))]]
        if not names and self.mutators:
            return [list(self.mutators)[int(rng.integers(len(self.mutators)))]]
        return names

    def _shares(self, count: int, names: Sequence[str]) -> list[int]:
        """Equal groups in small batches. In large ones whatever takes many passes over memory gets a small group, and
        the one-pass mutators share the rest: else mutating would cost more than the model."""
        equal = max(1, count // len(names))
        cheap = [self.mutators[n].cheap for n in names]
        if count < self.costly_from or not any(cheap):
            return [equal] * len(names)
        small = min(equal, max(LEAST_GROUP, count // COSTLY_SHARE))
        large = (count - small * cheap.count(False)) // cheap.count(True)
        return [large if c else small for c in cheap]

    def _brood(self, drawn: list[tuple[str, Bucket, NDArray[np.int64]]], rng: np.random.Generator) -> Brood:
        bucket = drawn[0][1]
        picked = np.concatenate([p for _, _, p in drawn])
        device = bucket.vectors.view.device
        index = torch.from_numpy(picked).to(device)
        anchor_index = torch.from_numpy(bucket.anchor_rows[picked]).to(device)
        all_anchors = bucket.anchors(self.space)
        batch = self._room_for(bucket, len(picked))
        groups, start = [], 0
        for name, _, p in drawn:
            group = Group(name, slice(start, start + len(p)))
            start = group.part.stop
            groups.append(group)
            reshapes = self.mutators[name].reshapes
            for part in [group.part] if reshapes else self._pieces(group.part, bucket):
                parents = bucket.gather(index[part], rows(batch, part))
                result = self._mutate(name, parents, bucket, all_anchors.take(anchor_index[part]), rng)
                if reshapes:
                    batch = result
                    continue
                for n, t in result.items():
                    if t.data_ptr() != batch[n][part].data_ptr():
                        batch[n][part] = t
        brood = Brood(batch, bucket, picked, groups, all_anchors.take(anchor_index))
        lone = self.space.constraint is not None and self.mutators[drawn[0][0]].reshapes
        return self._legal_only(brood, all_anchors, anchor_index) if lone else brood

    def _legal_only(self, brood: Brood, all_anchors: Anchors, anchor_index: torch.Tensor) -> Brood:
        """A mutant of another shape that the user's constraint throws out has no anchor to fall back to: it goes."""
        ok = self.space.legal_boxes(brood.batch, brood.anchors).nonzero()[:, 0]
        if len(ok) == size(brood.batch):
            return brood
        group = Group(brood.groups[0].mutator, slice(0, len(ok)))
        kept = {n: t[ok] for n, t in brood.batch.items()}
        return Brood(kept, brood.bucket, brood.rows[ok.cpu().numpy()], [group], all_anchors.take(anchor_index[ok]))

    def _mutate(self, name: str, batch: Batch, bucket: Bucket, anchors: Anchors, rng: np.random.Generator) -> Batch:
        count = size(batch)
        device = bucket.vectors.view.device

        def partners() -> Batch:
            return bucket.gather(torch.from_numpy(rng.integers(0, len(bucket), count)).to(device))

        context = Context(self.space, rng, self.generator, self.pool, anchors, partners)
        return self.mutators[name](batch, context)

    def _pieces(self, part: slice, bucket: Bucket) -> Iterator[slice]:
        """The rows of a group, as many at a time as stay in a cache. A GPU wants them all at once."""
        most = max(1, PIECE_BYTES // max(1, bucket.input_bytes))
        step = most if bucket.vectors.view.device.type == "cpu" else part.stop - part.start
        for start in range(part.start, part.stop, max(1, step)):
            yield slice(start, min(start + step, part.stop))

    def _room_for(self, bucket: Bucket, count: int) -> Batch:
        """Memory for the mutants, used again by the next batch: fresh pages would cost more than the gather."""
        shapes = {n: tuple(g.view.shape[1:]) for n, g in bucket.inputs.items()}
        if {n: tuple(t.shape[1:]) for n, t in self._room.items()} != shapes or size(self._room) < count:
            self._room = {n: room((count, *shapes[n]), g.view) for n, g in bucket.inputs.items()}
        return rows(self._room, slice(0, count))


def copy_rows(batch: Batch, index: NDArray[np.int64]) -> Batch:
    """Candidates that outlive the batch's buffer."""
    at = torch.from_numpy(index).to(next(iter(batch.values())).device)
    return {n: t.index_select(0, at) for n, t in batch.items()}
