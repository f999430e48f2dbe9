"""What the user gave as seeds, brought to one form: batches of candidates of equal shapes, with their indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.callform import CallForm, flatten, parameters
from nnfuzz.errors import UsageError
from nnfuzz.space import Batch, rows, signature, size

MOST_SEEDS = 10_000
"""More seeds than this are thinned evenly: beyond it the first look at them takes longer than it teaches."""

MOST_ITEMS = 1024
"""Of a Dataset or DataLoader, which may be endless, about so many items are taken."""


@dataclass
class SeedGroup:
    """Candidates of one signature: ``batch`` has a leading axis, ``index[i]`` says which given seed row i is."""

    batch: Batch
    index: list[int]


@dataclass
class Seeds:
    """``stacked``: one group whose leading axis came from the user's own first axis (what it means is decided by
    running the model); otherwise whole candidates that are passed to the model as they are. ``uneven``: first axes that
    differ, where that made one candidate of them all, which may have been meant otherwise."""

    form: CallForm
    groups: list[SeedGroup]
    stacked: bool
    notes: list[str] = field(default_factory=list)
    uneven: str = ""

    def __len__(self) -> int:
        return sum(len(g.index) for g in self.groups)


def read_seeds(seeds: Any, model: Callable[..., Any]) -> Seeds:
    """Accepts a tensor, a tuple or dict of tensors (first axis: candidates), a list of whole candidates, a
    ``Dataset`` or a ``DataLoader``; NumPy arrays count as tensors.

    Raises:
        UsageError: nothing in it, mixed structures, NaN, or no place for an input in the model's parameters.
    """
    notes: list[str] = []
    seeds = from_data_source(seeds, model, notes)
    seeds = _without_strangers(tensors_of(seeds), model, notes)
    if isinstance(seeds, list):
        if not seeds:
            raise UsageError("the list of seeds is empty: give at least one candidate")
        return _from_list(seeds, model, notes)
    form = CallForm.of(model, seeds)
    flat = flatten(seeds, form)
    if isinstance(seeds, dict):
        other = [f"{key!r} = {name!r}" for name, key in form.aliases.items() if key in seeds and not name.isdigit()]
        if other:
            notes.append(
                "arrays of the seeds that have other names than the model's parameters are taken in order: "
                + ", ".join(other)
            )
    if not flat:
        raise UsageError("the seeds hold no tensor: give at least one")
    lengths = {t.shape[0] if t.dim() else None for t in flat.values()}
    if len(lengths) > 1 or None in lengths:
        notes.append("the inputs have no common first axis, so the seeds are taken as one whole candidate")
        group = SeedGroup({n: t[None] for n, t in flat.items()}, [0])
        return Seeds(form, [group], False, notes, uneven_lengths(flat))
    (count,) = lengths
    if not count:
        raise UsageError("the seeds are empty (first axis of length 0): give at least one candidate")
    flat, index = thinned(flat, list(range(count)), notes)
    return Seeds(form, [SeedGroup(flat, index)], True, notes)


def uneven_lengths(flat: Batch) -> str:
    """``x has 4, m has 3``: two whose first axes differ in length; "" where none do."""
    named = [(n, len(t)) for n, t in flat.items() if t.dim()]
    other = next(((n, k) for n, k in named if k != named[0][1]), None)
    return f"{named[0][0]!r} has {named[0][1]}, {other[0]!r} has {other[1]}" if other else ""


def thinned(batch: Batch, index: list[int], notes: list[str]) -> tuple[Batch, list[int]]:
    """At most ``MOST_SEEDS`` candidates, evenly spaced, with their indices; says so in ``notes``."""
    count = len(index)
    if count <= MOST_SEEDS:
        return batch, index
    kept = np.linspace(0, count - 1, MOST_SEEDS).astype(int).tolist()
    notes.append(f"{count:,} seeds were given; {MOST_SEEDS:,} of them, evenly spaced, are used")
    return rows(batch, torch.tensor(kept)), [index[i] for i in kept]


def _without_strangers(seeds: Any, model: Callable[..., Any], notes: list[str]) -> Any:
    """A file often holds more than one model takes (labels, say): when every parameter has its array, the others are
    left out, and the run says so."""
    names, any_keyword, any_position = parameters(model)
    if not isinstance(seeds, dict) or any_keyword or any_position or not names or not set(names) <= set(seeds):
        return seeds
    strangers = [k for k in seeds if k not in names]
    if strangers:
        notes.append(f"the model takes {', '.join(names)}: {', '.join(map(repr, strangers))} in the seeds is left out")
    return {k: v for k, v in seeds.items() if k in names}


def _from_list(seeds: list[Any], model: Callable[..., Any], notes: list[str]) -> Seeds:
    form = CallForm.of(model, seeds[0])
    if len(seeds) > MOST_SEEDS:
        notes.append(f"{len(seeds):,} seeds were given; the first {MOST_SEEDS:,} are used")
    return grouped([flatten(candidate, form) for candidate in seeds[:MOST_SEEDS]], form, notes)


def grouped(candidates: list[Batch], form: CallForm, notes: list[str]) -> Seeds:
    """Whole candidates, those of equal shapes together."""
    by_shape: dict[Any, tuple[list[Batch], list[int]]] = {}
    for i, flat in enumerate(candidates):
        key = (signature({n: t[None] for n, t in flat.items()}), tuple(t.dtype for t in flat.values()))
        members, index = by_shape.setdefault(key, ([], []))
        members.append(flat)
        index.append(i)
    dtypes = {tuple(str(t.dtype) for t in m[0].values()) for m, _ in by_shape.values()}
    if len(dtypes) > 1:
        raise UsageError(f"the seeds have different dtypes ({'; '.join(map(str, sorted(dtypes)))}): make them equal")
    groups = [SeedGroup({n: torch.stack([m[n] for m in ms]) for n in form.names}, ix) for ms, ix in by_shape.values()]
    return Seeds(form, groups, False, notes)


def from_data_source(seeds: Any, model: Callable[..., Any], notes: list[str]) -> Any:
    """A DataLoader's batches joined, a Dataset's items stacked; labels that the model does not take are dropped."""
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    if isinstance(seeds, DataLoader):
        taken, total = [], 0
        for batch in seeds:
            taken.append(tensors_of(batch))
            total += len(next(iter(_leaves(taken[-1]))))
            if total >= MOST_ITEMS:
                break
        joined = _combine(taken, torch.cat)
    elif isinstance(seeds, Dataset):
        items = seeds if isinstance(seeds, IterableDataset) else (seeds[i] for i in range(len(seeds)))  # type: ignore[arg-type]
        joined = _combine([tensors_of(item) for item in islice(items, MOST_ITEMS)], torch.stack)
    else:
        return seeds
    names, _, any_position = parameters(model)
    if isinstance(joined, tuple) and len(joined) > len(names) > 0 and not any_position:
        notes.append(f"the data give {len(joined)} parts, the model takes {len(names)}: the last ones are left out")
        joined = joined[: len(names)]
    return joined


def _combine(parts: list[Any], how: Callable[[list[Tensor]], Tensor]) -> Any:
    if not parts:
        raise UsageError("the data source is empty: give at least one item")
    first = parts[0]
    if isinstance(first, dict):
        return {k: _combine([p[k] for p in parts], how) for k in first}
    if isinstance(first, list | tuple):
        return tuple(_combine([p[i] for p in parts], how) for i in range(len(first)))
    try:
        return how([torch.as_tensor(p) for p in parts])
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"the items of the data source cannot be stacked ({error}): give them as a list") from error


def tensors_of(part: Any) -> Any:
    """NumPy arrays become tensors, nested structures are kept."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind in "OSU":
            raise UsageError(f"a seed is an array of {part.dtype}, but numbers are needed: convert it")
        return torch.from_numpy(np.ascontiguousarray(part) if part.ndim else part.copy())
    if isinstance(part, Tensor):
        return part.detach()
    if isinstance(part, dict):
        return {str(k): tensors_of(v) for k, v in part.items()}
    if isinstance(part, list | tuple):
        inner = [tensors_of(v) for v in part]
        return inner if isinstance(part, list) else tuple(inner)
    return part


def _leaves(part: Any) -> Iterable[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, dict | list | tuple):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _leaves(inner)


def as_whole(seeds: Seeds, chunk: int) -> Seeds:
    """Stacked seeds cut into whole candidates of ``chunk`` rows each; an incomplete last one is left out."""
    (group,) = seeds.groups
    total = size(group.batch)
    chunk = min(chunk, total)
    count = max(1, total // chunk)
    batch = {n: t[: count * chunk].reshape(count, chunk, *t.shape[1:]) for n, t in group.batch.items()}
    return Seeds(seeds.form, [SeedGroup(batch, [group.index[i * chunk] for i in range(count)])], False, seeds.notes)
