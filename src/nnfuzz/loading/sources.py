"""What a ``file.py:attr`` gives as seeds: tensors, arrays, a Dataset, a DataLoader, or a callable that makes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from nnfuzz.errors import UsageError
from nnfuzz.loading.arrays import tensors_in
from nnfuzz.loading.guard import user_code
from nnfuzz.loading.seeded import seeded

MAX_TAKEN = 1000
"""Candidates taken from a Dataset or DataLoader: enough to start from; all of a training set only costs time."""


def materialise(found: Any, spec: str, folder: Path | None, model: Callable[..., Any] | None, notes: list[str]) -> Any:
    """Seeds in the form of the public contract; random numbers drawn on the way are the same every time."""
    with seeded(1), user_code(f"making the seeds from {spec}", folder):
        if not _is_data(found) and callable(found):
            found = found()
        if isinstance(found, DataLoader):
            return _fitting(_joined(_batches(found, spec, notes), spec), model, notes)
        if isinstance(found, Dataset):
            return _fitting(_from_items(_items(found, spec, notes), spec), model, notes)
        if isinstance(found, list):
            return [tensors_in(c, f"{spec}[{i}]") for i, c in enumerate(found)]
        if isinstance(found, Iterator):
            return _from_items(list(itertools.islice(found, MAX_TAKEN)), spec)
        return tensors_in(found, spec)


def _is_data(found: Any) -> bool:
    return isinstance(found, Tensor | np.ndarray | dict | tuple | list | Dataset | DataLoader | Iterator)


def _batches(loader: DataLoader[Any], spec: str, notes: list[str]) -> list[Any]:
    batches, taken = [], 0
    for batch in loader:
        if loader.batch_size is None:
            raise UsageError(f"the loader {spec} has no batches: give its dataset instead")
        batches.append(tensors_in(batch, spec))
        taken += _length(batches[-1], spec)
        if taken >= MAX_TAKEN:
            notes.append(f"took the first {taken:,} candidates that {spec} gave")
            break
    return batches


def _items(dataset: Dataset[Any], spec: str, notes: list[str]) -> list[Any]:
    if isinstance(dataset, IterableDataset):
        return list(itertools.islice(dataset, MAX_TAKEN))
    total = len(dataset)  # type: ignore[arg-type]
    if total <= MAX_TAKEN:
        return [dataset[i] for i in range(total)]
    notes.append(f"took {MAX_TAKEN:,} of the {total:,} candidates in {spec}, evenly spaced")
    return [dataset[i * total // MAX_TAKEN] for i in range(MAX_TAKEN)]


def _from_items(items: Iterable[Any], spec: str) -> Any:
    """Single candidates, stacked when all have one structure and shape, else a list of whole candidates."""
    candidates = [tensors_in(item, f"{spec}[{i}]") for i, item in enumerate(items)]
    if not candidates:
        raise UsageError(f"{spec} holds no seeds")
    if len({_structure(c) for c in candidates}) > 1:
        return candidates
    return _merge(candidates, torch.stack)


def _joined(batches: list[Any], spec: str) -> Any:
    if not batches:
        raise UsageError(f"{spec} holds no seeds")
    shapes = {_structure(b, skip=1) for b in batches}
    if len(shapes) > 1:
        raise UsageError(f"the batches of {spec} differ in shape: give a list of single candidates instead")
    return _merge(batches, torch.cat)


def _merge(parts: list[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return join(parts)
    if isinstance(first, dict):
        return {k: _merge([p[k] for p in parts], join) for k in first}
    return tuple(_merge([p[i] for p in parts], join) for i in range(len(first)))


def _structure(part: Any, skip: int = 0) -> Any:
    if isinstance(part, Tensor):
        return (part.dtype, tuple(part.shape[skip:]))
    if isinstance(part, dict):
        return ("dict", tuple((k, _structure(v, skip)) for k, v in part.items()))
    return tuple(_structure(v, skip) for v in part)


def _length(batch: Any, spec: str) -> int:
    part = batch
    while not isinstance(part, Tensor):
        if not part:
            raise UsageError(f"{spec} gives empty batches")
        part = next(iter(part.values())) if isinstance(part, dict) else part[0]
    return len(part) if part.dim() else 1


def _fitting(seeds: Any, model: Callable[..., Any] | None, notes: list[str]) -> Any:
    """Datasets yield (inputs…, label); what the model does not take is left out, and said."""
    if model is None or not isinstance(seeds, tuple):
        return seeds
    from nnfuzz.callform import parameters

    names, _, any_position = parameters(model)
    if any_position or not names or len(seeds) <= len(names):
        return seeds
    left = len(seeds) - len(names)
    what = "label" if left == 1 else f"last {left} parts"
    notes.append(f"the model takes {', '.join(names)}: the {what} of each candidate in the dataset is left out")
    kept = seeds[: len(names)]
    return kept[0] if len(kept) == 1 else kept
