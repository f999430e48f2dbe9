"""The seeds of a run at rest, so that it can go on without the files they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnfuzz.callform import CallForm
from nnfuzz.errors import StoreError
from nnfuzz.seeds import SeedGroup, Seeds
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_tensors import read_tensors, write_tensors


def save_seed_groups(run: Path, groups: list[SeedGroup]) -> None:
    """``RUN/seeds/0.safetensors`` … one file for each shape, and which given seed each row is."""
    folder = run / "seeds"
    folder.mkdir(exist_ok=True)
    for i, group in enumerate(groups):
        write_tensors(folder / f"{i}.safetensors", {n: t.cpu() for n, t in group.batch.items()})
    write_atomically(folder / "index.json", to_json({"groups": [g.index for g in groups]}))


def load_seed_groups(run: Path, manifest: Mapping[str, Any]) -> Seeds:
    """The same seeds, under the names and in the form of the run."""
    if not (run / "seeds" / "index.json").is_file():
        raise StoreError(f"{run} holds no seeds, so the run cannot go on: delete it and start again")
    index = from_json(run / "seeds" / "index.json")["groups"]
    groups = [SeedGroup(read_tensors(run / "seeds" / f"{i}.safetensors"), ids) for i, ids in enumerate(index)]
    return Seeds(CallForm.from_json(manifest["form"]), groups, bool(manifest["stacked"]))
