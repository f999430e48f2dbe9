"""Disagreeing inputs of a run, more than its findings hold: the nearest of every seed, and some of any distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnfuzz.breed import Brood, copy_rows
from nnfuzz.examine import hit_distances
from nnfuzz.space import Batch, cat, signature, size
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_tensors import read_tensors, write_tensors

NEAREST, ANY = 2, 6
"""Kept of each seed: the nearest, and others drawn evenly from all that were seen."""
MOST_BYTES = 64 << 20
A_BATCH = 64
"""Hits of one batch that are looked at: a common failure has thousands."""


@dataclass
class Kept:
    """What is kept of one seed: ``(distance, candidate)``, candidates with a leading axis of 1."""

    nearest: list[tuple[float, Batch]] = field(default_factory=list)
    others: list[Batch] = field(default_factory=list)
    seen: int = 0


class Pool:
    """Filled while a run goes on. ``seed`` is of the draw that decides which of many hits stay."""

    def __init__(self, seed: int = 0):
        self.kept: dict[int, Kept] = {}
        self.unchanged: set[int] = set()
        """Seeds that disagree as they are: no search starts from these, so none of their hits would come by itself."""
        self.bytes = 0
        self._rng = np.random.default_rng([seed, 1])

    def __len__(self) -> int:
        return sum(len(k.nearest) + len(k.others) for k in self.kept.values())

    def offer(self, brood: Brood, at: NDArray[np.int64]) -> None:
        """Some hits of a batch, by their rows."""
        some = at if len(at) <= A_BATCH else np.sort(self._rng.choice(at, A_BATCH, replace=False))
        far = hit_distances(brood.batch, brood.anchors, [int(i) for i in some])
        seeds = brood.bucket.seed_index[brood.rows[some]]
        for row, distance, index in zip(some, far, seeds, strict=True):
            self.add(int(index), distance, {n: t.cpu() for n, t in copy_rows(brood.batch, np.array([row])).items()})

    def add(self, index: int, distance: float, candidate: Batch) -> None:
        """One hit of the seed ``index``."""
        kept = self.kept.setdefault(index, Kept())
        kept.seen += 1
        if len(kept.nearest) < NEAREST or distance < kept.nearest[-1][0]:
            kept.nearest.append((distance, candidate))
            kept.nearest.sort(key=lambda pair: pair[0])
            self.bytes += _weight(candidate)
            if len(kept.nearest) <= NEAREST:
                return
            candidate = kept.nearest.pop()[1]
            self.bytes -= _weight(candidate)
        if len(kept.others) < ANY and self.bytes + _weight(candidate) <= MOST_BYTES:
            kept.others.append(candidate)
            self.bytes += _weight(candidate)
        elif (place := int(self._rng.integers(kept.seen))) < len(kept.others):
            kept.others[place] = candidate

    def add_unchanged(self, index: int, seed: Batch) -> None:
        """A seed that disagrees as it is; kept, too, as long as there is room."""
        if index not in self.unchanged and self.bytes + _weight(seed) <= MOST_BYTES:
            self.add(index, 0.0, {n: t.cpu().clone() for n, t in seed.items()})
        self.unchanged.add(index)

    def nearest(self) -> Iterator[tuple[int, float, Batch]]:
        """The nearest hit of each seed: its index, distance, and the candidate."""
        for index, kept in sorted(self.kept.items()):
            if kept.nearest:
                yield index, *kept.nearest[0]

    def batches(self, most: int) -> list[tuple[Batch, list[int]]]:
        """At most so many hits, seeds in turn, as batches of equal shapes with the seed of each row."""
        rounds: list[tuple[int, Batch]] = []
        depth = 0
        queues = {i: [c for _, c in k.nearest] + k.others for i, k in sorted(self.kept.items())}
        # others first: the nearest lie at the edge of the disagreement, where any change of the copy moves them
        queues = {i: q[NEAREST:] + q[:NEAREST] for i, q in queues.items()}
        while len(rounds) < most and any(len(q) > depth for q in queues.values()):
            rounds += [(i, q[depth]) for i, q in queues.items() if len(q) > depth]
            depth += 1
        groups: dict[object, list[tuple[int, Batch]]] = {}
        for index, candidate in rounds[:most]:
            groups.setdefault(signature(candidate), []).append((index, candidate))
        return [(cat([c for _, c in g]), [i for i, _ in g]) for g in groups.values()]

    # ------------------------------------------------------------------ at rest

    def save(self, run: Path) -> None:
        """``RUN/hits/``: tensors of every shape, the seed of each row and, for the nearest, its distance."""
        folder = run / "hits"
        if not len(self) and not self.unchanged:
            return
        folder.mkdir(exist_ok=True)
        entries = [(i, d, c) for i, k in sorted(self.kept.items())
                   for d, c in [*k.nearest, *((None, c) for c in k.others)]]  # fmt: skip
        groups: dict[object, list[tuple[int, float | None, Batch]]] = {}
        for entry in entries:
            groups.setdefault(signature(entry[2]), []).append(entry)
        for n, group in enumerate(groups.values()):
            write_tensors(folder / f"{n}.safetensors", cat([c for _, _, c in group]))
        told = [[[i, d if d is None or np.isfinite(d) else None] for i, d, _ in group] for group in groups.values()]
        seen = {str(i): k.seen for i, k in self.kept.items()}
        write_atomically(
            folder / "index.json", to_json({"groups": told, "seen": seen, "unchanged": sorted(self.unchanged)})
        )

    def load(self, run: Path) -> None:
        """What an earlier sitting of the run kept."""
        place = run / "hits" / "index.json"
        if not place.is_file():
            return
        index = from_json(place)
        self.unchanged |= {int(i) for i in index.get("unchanged", [])}
        for n, group in enumerate(index["groups"]):
            batch = read_tensors(run / "hits" / f"{n}.safetensors")
            for row, (seed, distance) in enumerate(group[: size(batch)]):
                candidate = {name: t[row : row + 1].clone() for name, t in batch.items()}
                kept = self.kept.setdefault(int(seed), Kept())
                self.bytes += _weight(candidate)
                if distance is None:
                    kept.others.append(candidate)
                else:
                    kept.nearest.append((float(distance), candidate))
        for seed, count in index.get("seen", {}).items():
            if int(seed) in self.kept:
                self.kept[int(seed)].seen = int(count)


def _weight(candidate: Batch) -> int:
    return sum(t.numel() * t.element_size() for t in candidate.values())
