"""Corpora of finished runs: what they hold, their union, their smallest part that covers as much.

``merge`` and ``minimise`` make a new run directory; it appears whole or not at all, and the old ones stay as they are.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnfuzz.errors import UsageError
from nnfuzz.record import Record
from nnfuzz.report.words import near, typed
from nnfuzz.store import RunStore, refuse_occupied
from nnfuzz.store_files import disk
from nnfuzz.store_tensors import content_hash

Ancestry = dict[int, tuple[int | None, str]]
CHUNK = 1000
"""Records written per transaction."""


def info(directory: str | Path) -> dict[str, Any]:
    """What a run's corpus holds: counts, bytes, depth of lineage, shapes, best scores. All JSON-able."""
    per_seed: Counter[int] = Counter()
    mutators: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    best: list[tuple[float, int]] = []
    size = count = inputs_tried = 0
    with RunStore.open(directory, writable=False) as store:
        state = store.state() or {}
        for r in store.records():
            count += 1
            size += sum(t.numel() * t.element_size() for t in r.inputs.values()) + r.vector.nbytes
            per_seed[r.seed_index] += 1
            mutators[r.mutator] += 1
            shapes[_shapes(r)] += 1
            inputs_tried = max(inputs_tried, r.inputs_tried)
            if not math.isnan(r.score):
                best = sorted([*best, (r.score, r.id)], reverse=True)[:5]
        depths = _depths(store.ancestry())
    return {
        "path": str(directory),
        "entries": count,
        "bytes": size,
        "evicted": len(depths) - count,
        "per_seed": dict(sorted(per_seed.items())),
        "max_depth": max(depths.values(), default=0),
        "mutators": dict(mutators.most_common()),
        "signatures": dict(shapes.most_common()),
        "best_scores": [{"id": i, "score": score} for score, i in best],
        "inputs_tried": inputs_tried,
        "radius": state.get("radius"),
    }


def merge(dest: str | Path, sources: Sequence[str | Path]) -> dict[str, Any]:
    """The union of the corpora of runs with the same inputs, as a new run directory ``dest``.

    Equal inputs are kept once. Seeds come first and get new numbers; lineage goes on through the nearest ancestor
    that is still there. Coverage vectors of different projections cannot be compared, so they are kept only where
    the runs gave a seed that they share the same vector.

    Returns:
        ``{"entries", "duplicates", "sources", "vectors"}``; ``vectors``: whether they were kept.
    """
    if not sources:
        raise UsageError("there is nothing to merge: name at least one run directory")
    with _all_open(sources) as stores:
        _check_same_inputs(stores)
        radii = [r for r in (_radius(store) for store in stores) if r is not None]
        union = _Union(stores)
        with _built_aside(dest, _manifest(stores[0], "merge", stores)) as new:
            state = {"radius": min(radii)} if radii and union.vectors else {}
            for chunk in batched(union.records(), CHUNK):
                new.commit(chunk, state)
    return {
        "entries": union.count,
        "duplicates": union.duplicates,
        "sources": len(stores),
        "vectors": union.vectors,
    }


def minimise(src: str | Path, dest: str | Path, radius: float | None = None) -> dict[str, Any]:
    """A small part of a corpus with equal coverage, as a new run directory ``dest``.

    Greedy, in order of admission: an entry is kept when no kept entry's coverage vector lies within ``radius`` (L2).
    Seeds are always kept. Every dropped entry is within ``radius`` of a kept one.

    Args:
        radius: in the vectors' unit; the run's own radius by default.

    Returns:
        ``{"entries", "before", "radius"}``.
    """
    with RunStore.open(src, writable=False) as store:
        radius = _radius(store) if radius is None else radius
        if radius is None:
            raise UsageError(f"{src} has no coverage radius of its own: give one with --radius")
        if not radius >= 0:
            raise UsageError(f"the radius is {radius}, but a distance is at least 0")
        cover, kept, before = Cover(radius), dict[int, int](), 0
        for chunk in batched(store.records(), CHUNK):
            before += len(chunk)
            for r, needed in zip(chunk, cover.extend(chunk), strict=True):
                if needed:
                    kept[r.id] = len(kept)
        ancestry = store.ancestry()
        entries = (
            r._replace(id=kept[r.id], parent=_nearest(r.parent, ancestry, kept))
            for r in store.records()
            if r.id in kept
        )
        with _built_aside(dest, _manifest(store, "min", [store])) as new:
            for chunk in batched(entries, CHUNK):
                new.commit(chunk, {"radius": radius})
    return {"entries": len(kept), "before": before, "radius": radius}


def as_seeds(manifest: Mapping[str, Any], path: str | Path) -> str:
    """The line that starts a run from a corpus: the command of its first source with other seeds; in Python, the call
    that takes them."""
    words = manifest.get("command")
    if not isinstance(words, list) or len(words) < 3 or not all(isinstance(w, str) for w in words):
        return f"nnfuzz.find_nans(model, nnfuzz.loading.load_seeds({near(path)!r}))"
    kept, rest = [Path(words[0]).name], words[1:]
    while rest:
        word = rest.pop(0)
        name, has_value, _ = word.partition("=")
        if name in _REPLACED:
            rest = rest if has_value else rest[1:]
        elif word[:2] in _REPLACED:  # -sFILE
            continue
        else:
            kept.append(word)
    return f"{shlex.join(kept)} --seeds {typed(path)}"


_REPLACED = ("--seeds", "-s", "--input", "--out", "-o")
"""Options of the old run that a run from its corpus has of its own."""


class Cover:
    """Coverage vectors kept so far; ``extend`` says which of some more are needed."""

    def __init__(self, radius: float):
        self._square = radius**2
        self._width = 0
        self._kept: list[NDArray[np.float64]] = []

    def extend(self, chunk: Sequence[Record]) -> list[bool]:
        """One answer a record, in order: seeds always; others unless something kept is within the radius."""
        for r in chunk:
            self._width = self._width or len(r.vector)
            if len(r.vector) != self._width or not self._width:
                raise UsageError(
                    f"entry {r.id} has no coverage vector like the others, so there is no telling what it covers: "
                    "this corpus cannot be minimised"
                )
        vectors = np.stack([r.vector.astype(np.float64) for r in chunk])
        near = np.zeros(len(chunk), bool)
        for block in self._kept:
            still = np.flatnonzero(~near)
            near[still] = self._within(vectors[still], block).any(1)
        inside = self._within(vectors, vectors)
        chosen: list[int] = []
        for i, r in enumerate(chunk):
            if r.parent is None or not (near[i] or inside[i, chosen].any()):
                chosen.append(i)
        self._kept.append(vectors[chosen])
        needed = set(chosen)
        return [i in needed for i in range(len(chunk))]

    def _within(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
        """``(len(a), len(b))``: ``|a − b|² ≤ radius²``, as products, which float64 holds exactly enough."""
        bound = ((a**2).sum(1)[:, None] - self._square) / 2 + ((b**2).sum(1) / 2)[None]
        return np.asarray(a @ b.T >= bound)


class _Union:
    """The entries of several runs, renumbered, one after the other; keeps hashes and numbers, no tensors."""

    def __init__(self, stores: Sequence[RunStore]):
        self._stores = stores
        self.vectors = _measured_alike(stores)
        self.count = self.duplicates = 0
        self._by_hash: dict[str, int] = {}
        self._ids: list[dict[int, int]] = [{} for _ in stores]
        self._seeds: dict[tuple[int, int], int] = {}
        self._index_of_seed: dict[int, int] = {}

    def records(self) -> Iterator[Record]:
        """Seeds of all runs first, then the others, run by run."""
        for seeds in (True, False):
            for run, store in enumerate(self._stores):
                ancestry = store.ancestry()
                for r in store.records():
                    if (r.parent is None) == seeds:
                        yield from self._new(run, r, ancestry)

    def _new(self, run: int, r: Record, ancestry: Ancestry) -> Iterator[Record]:
        key = content_hash(r.inputs)
        known = self._by_hash.get(key)
        if r.parent is None:
            number = len(self._index_of_seed) if known is None else self._index_of_seed[known]
            self._seeds[run, r.seed_index] = number
            self._index_of_seed.setdefault(self.count if known is None else known, number)
        if known is not None:
            self._ids[run][r.id] = known
            self.duplicates += 1
            return
        parent = _nearest(r.parent, ancestry, self._ids[run])
        self._ids[run][r.id] = self._by_hash[key] = self.count
        vector = r.vector if self.vectors else r.vector[:0]
        seed_index = self._seeds.get((run, r.seed_index), r.seed_index)
        yield r._replace(id=self.count, parent=parent, seed_index=seed_index, vector=vector)
        self.count += 1


def _nearest(parent: int | None, ancestry: Ancestry, ids: dict[int, int]) -> int | None:
    """The new id of the nearest ancestor that has one."""
    while parent is not None and parent not in ids:
        parent = ancestry.get(parent, (None, ""))[0]
    return None if parent is None else ids[parent]


def _measured_alike(stores: Sequence[RunStore]) -> bool:
    """Whether every run shares a seed with the first and gave it the same vector."""
    first: dict[str, NDArray[np.float32]] = {}
    for number, store in enumerate(stores):
        seeds = {content_hash(r.inputs): r.vector for r in store.records() if r.parent is None}
        first = first or seeds
        shared = [(seeds[h], first[h]) for h in seeds if h in first]
        if number and not shared:
            return False
        if any(a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in shared):
            return False
    return True


def _check_same_inputs(stores: Sequence[RunStore]) -> None:
    found = []
    for store in stores:
        with closing(store.records()) as records:
            first = next(records, None)
        if first is not None:
            found.append((store.path, ", ".join(f"{n} {t.dtype}" for n, t in sorted(first.inputs.items()))))
    for path, inputs in found[1:]:
        if inputs != found[0][1]:
            raise UsageError(
                f"{path} has the inputs {inputs} but {found[0][0]} has {found[0][1]}: only runs whose inputs have "
                "the same names and dtypes can be merged".replace("torch.", "")
            )


def _radius(store: RunStore) -> float | None:
    found = (store.state() or {}).get("radius")
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _shapes(r: Record) -> str:
    return ", ".join(f"{name}{list(t.shape)}" for name, t in sorted(r.inputs.items()))


def _depths(ancestry: Ancestry) -> dict[int, int]:
    """Generations since the seed, by id. Parents have smaller ids than their children."""
    depths: dict[int, int] = {}
    for i, (parent, _) in sorted(ancestry.items()):
        depths[i] = 0 if parent is None else depths.get(parent, 0) + 1
    return depths


def _manifest(store: RunStore, how: str, sources: Sequence[RunStore]) -> dict[str, Any]:
    return {**store.manifest, "made_by": f"nnfuzz corpus {how}", "made_from": [str(s.path) for s in sources]}


@contextmanager
def _all_open(paths: Iterable[str | Path]) -> Iterator[list[RunStore]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RunStore.open(path, writable=False)) for path in paths]


@contextmanager
def _built_aside(dest: str | Path, manifest: dict[str, Any]) -> Iterator[RunStore]:
    """A new run beside ``dest`` that takes its place when all went well."""
    dest = Path(dest)
    if dest.exists():
        refuse_occupied(dest)
    aside = dest.with_name(f".{dest.name}.new-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with RunStore.create(aside, manifest) as store:
            yield store
        with disk(f"create {dest}"):
            if dest.exists():
                shutil.rmtree(dest)
            aside.rename(dest)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def batched(records: Iterable[Record], count: int) -> Iterator[list[Record]]:
    """Lists of at most ``count``."""
    remaining = iter(records)
    while chunk := list(islice(remaining, count)):
        yield chunk
