"""SEEDS on the command line → Python objects as the public face takes them.

A tensor, or a tuple or dict of tensors (first axis: candidates), or a list of single whole candidates. Opening a seeds
*file* never runs code from it; ``file.py:attr`` does, and says so by its form. Values keep the dtype they have.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.loading.arrays import to_tensor
from nnfuzz.loading.corpora import is_run, load_corpus
from nnfuzz.loading.formats import sniff
from nnfuzz.loading.guard import told
from nnfuzz.loading.images import load_images
from nnfuzz.loading.objects import folder_of, load_object
from nnfuzz.loading.places import check_seeds_word
from nnfuzz.loading.sources import materialise
from nnfuzz.targets.foreign import ForeignModel

MAX_BYTES = 4 * 2**30
"""Seeds are held in memory together with the corpus; a few gigabytes are a mistake more often than a wish."""


def load_seeds(spec: str, model: Callable[..., Any] | None = None, notes: list[str] | None = None) -> Any:
    """The seeds that ``spec`` names.

    Args:
        spec: ``.npz``, ``.npy``, ``.safetensors``, ``.pt``, a folder of PNG/JPEG images, a run directory (its corpus),
            or ``file.py:attr``.
        model: when given, labels that a dataset yields and the model does not take are left out.
        notes: sentences for the user are appended here.
    """
    notes = [] if notes is None else notes
    path = Path(spec)
    if path.is_dir():
        return _folder(path, model, notes)
    if path.suffix.lower() in _READERS and (path.exists() or ":" not in spec):
        return _checked(_read(path), spec, model)
    if path.exists() and path.suffix != ".py":
        raise UsageError(
            f"{spec} is no seeds file that nnfuzz knows: give .npz, .npy, .safetensors, .pt, a folder of PNG or JPEG "
            "images, a run directory, or file.py:name"
        )
    check_seeds_word(spec)
    found = load_object(spec, "the seeds")
    return _checked(materialise(found, spec, folder_of(spec), model, notes), spec, model)


def _folder(path: Path, model: Callable[..., Any] | None, notes: list[str]) -> Any:
    if (path / "finding.json").is_file():  # the pictures in it are for people
        raise UsageError(f"{path} is a finding: give its input as seeds, {path / 'input.safetensors'}")
    return load_corpus(path, model, notes) if is_run(path) else load_images(path)


def _read(path: Path) -> Any:
    check_seeds_word(str(path))
    size = _unpacked_size(path)
    if size > MAX_BYTES:
        raise UsageError(
            f"{path} holds {size / 2**30:.1f} GiB, more than the {MAX_BYTES >> 30} GiB that seeds may take: "
            "a few dozen candidates are enough"
        )
    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty")
    try:
        return _READERS[path.suffix.lower()](path)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path} cannot be read as {path.suffix.lower()}: {told(error)}") from error


def _unpacked_size(path: Path) -> int:
    if path.suffix.lower() == ".npz" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    return path.stat().st_size


def _npy(path: Path) -> Tensor:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise UsageError(f"{path} is no .npy file, or it was cut short: write one with numpy.save")
    return to_tensor(_no_pickle(path, lambda: np.load(path, allow_pickle=False)), str(path))


def _npz(path: Path) -> dict[str, Tensor]:
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is no .npz file, or it was cut short: write one with numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        arrays = {n: _no_pickle(path, partial(archive.__getitem__, n)) for n in names}
    return {n: to_tensor(a, f"{path}:{n}") for n, a in arrays.items()}


def _no_pickle(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError as error:
        if "pickle" in str(error):
            raise UsageError(
                f"{path} holds Python objects, which only unpickling could read: save plain numbers"
            ) from None
        raise


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(str(path))


def _pt(path: Path) -> Any:
    if sniff(path) in ("torchscript", "export", "custom-export", "aotinductor"):
        raise UsageError(f"{path} holds a model, not seeds: save tensors with torch.save, or give file.py:name")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise UsageError(
                f"{path} holds more than tensors, and nnfuzz never runs code from a seeds file: save a tensor, "
                "or a tuple or dict of tensors"
            ) from error
        raise
    return content


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pt": _pt,
    ".pth": _pt,
}


def _checked(seeds: Any, spec: str, model: Callable[..., Any] | None) -> Any:
    """Not empty, and (where candidates are stacked) with a first axis of one length."""
    tensors = _stacked(seeds)
    if not isinstance(seeds, Tensor) and len(seeds) == 0:
        raise UsageError(f"{spec} holds no seeds")
    if isinstance(model, ForeignModel):  # it knows the shapes of its inputs, and looks itself
        return seeds
    for name, tensor in tensors.items():
        if tensor.dim() == 0:
            raise UsageError(f"{spec}{name} is a single number, but the first axis of seeds counts the candidates")
        if tensor.numel() == 0:
            raise UsageError(f"{spec}{name} is empty: its shape is {list(tensor.shape)}")
    lengths = {name: len(t) for name, t in tensors.items()}
    if len(set(lengths.values())) > 1:
        told_lengths = ", ".join(f"{name.lstrip(':')} has {n}" for name, n in lengths.items())
        raise UsageError(
            f"{spec} holds inputs with different numbers of candidates ({told_lengths}): the first axis counts them"
        )
    return seeds


def _stacked(part: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of stacked seeds by name; nothing for a list of whole candidates."""
    if isinstance(part, Tensor):
        return {name: part}
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, tuple) else ()
    separator = "." if name else ":"
    return {n: t for key, value in items for n, t in _stacked(value, f"{name}{separator}{key}").items()}
