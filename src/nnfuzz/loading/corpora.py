"""The corpus of a run, or of ``nnfuzz corpus merge`` and ``min``, as seeds of another run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm, Leaf, parameters
from nnfuzz.errors import StoreError, UsageError
from nnfuzz.record import Record
from nnfuzz.space import Batch
from nnfuzz.store import RunStore
from nnfuzz.store_files import from_json

MOST = 10_000
"""Entries taken of a larger corpus: all of its seeds, and of the others so many that lie evenly among them."""


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory (and not one of images)."""
    return (folder / "run.json").is_file()


def load_corpus(path: Path, model: Callable[..., Any] | None, notes: list[str]) -> Any:
    """The entries in the form in which the public face takes seeds, seeds of the old run first.

    Rows that were candidates come back stacked; whole candidates as a list.
    """
    if from_json(path / "run.json").get("kind") == "training":
        raise UsageError(f"{path} is a whole training, which keeps no corpus: give other seeds")
    with RunStore.open(path, writable=False) as store:
        form, unit = _form(store), store.manifest.get("unit")
        entries = _some(list(store.records()))
    if not entries:
        raise UsageError(f"the corpus of {path} is empty: give other seeds")
    if missing := set(form.names) ^ set(entries[0].inputs):
        raise StoreError(f"{path} is damaged: its run.json and its corpus differ in the input {min(missing)!r}")
    own = sum(r.parent is None for r in entries)
    notes.append(
        f"the seeds are {len(entries):,} entries of the corpus of {path} ({own:,} of them its own seeds): distances "
        "count from them"
    )
    names = parameters(model)[0] if model is not None else []
    inputs = [r.inputs for r in entries]
    if unit != "sample":
        return [_candidate(form, names, i) for i in inputs]
    if len({tuple(t.shape for t in i.values()) for i in inputs}) == 1:
        return _candidate(form, names, {n: torch.stack([i[n] for i in inputs]) for n in form.names})
    return [_candidate(form, names, {n: t[None] for n, t in i.items()}) for i in inputs]


def _some(entries: list[Record]) -> list[Record]:
    seeds = [r for r in entries if r.parent is None][:MOST]
    others = [r for r in entries if r.parent is not None]
    left = MOST - len(seeds)
    if len(others) > left:
        others = [others[i * len(others) // left] for i in range(left)]
    return [*seeds, *others]


def _form(store: RunStore) -> CallForm:
    try:
        return CallForm.from_json(store.manifest["form"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{store.path / 'run.json'} does not say how its inputs are passed ({type(error).__name__}: {error}): "
            "it cannot be used as seeds"
        ) from error


def _candidate(form: CallForm, names: Sequence[str], inputs: Batch) -> Any:
    """By position where the parameters have the old names anyway, else by name, so that the names stay."""
    args, kwargs = form.bind(inputs)
    if len(args) == 1 and isinstance(args[0], dict) and len(args[0]) > 1 and not kwargs:
        return args[0]
    labels = [_first_leaf(part).partition(".")[0] for part in form.positional]
    if not kwargs and all(label in names or label.isdigit() for label in labels):
        return args[0] if len(args) == 1 and isinstance(args[0], Tensor) else args
    return {**dict(zip(labels, args, strict=True)), **kwargs}


def _first_leaf(part: Any) -> str:
    if isinstance(part, Leaf):
        return part.name
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return next((name for p in inner if (name := _first_leaf(p))), "")
