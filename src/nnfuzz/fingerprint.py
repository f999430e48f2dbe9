"""What a run was begun with: its code as sha256 of files, its weights as one digest a model; and what differs now.

A run or a finding outlives the model it was made with. Both remember the fingerprint, so that going back to them can
say that the model is no longer the one they speak of.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from nnfuzz.loading import started_in
from nnfuzz.targets.taps import reachable_modules

Model = Callable[..., Any]
NAMED = ("model", "model_b", "objective", "compare", "constraint")
"""Keys of a run's context that may name code."""
WHOSE = {"model": "the model", "model_b": "model B"}


def fingerprint(context: Mapping[str, Any], models: Mapping[str, Model | None]) -> dict[str, Any]:
    """``{"files": {path: sha256}, "weights": {"model": sha256}}``, JSON-able.

    Args:
        context: of the run; the files that its words name, relative to its ``cwd``, and what those import from there.
        models: by role, ``model`` and ``model_b``. To be asked before the first call, since a model may count its calls
            in a buffer.
    """
    words = [word for key in NAMED if isinstance(word := context.get(key), str)]
    with started_in(context.get("cwd")):
        files = {_shown(path): file_digest(path) for word in words for path in files_of(word)}
    weights = {role: weights_digest(model) for role, model in models.items() if model is not None}
    return {"files": files, "weights": {role: d for role, d in weights.items() if d}}


def changes(recorded: Any, now: Mapping[str, Any], *, cwd: str | None = None, files: bool = True) -> list[str]:
    """What differs from the recorded fingerprint now, each in a few words; nothing where nothing was recorded.

    Args:
        cwd: the folder that recorded paths are relative to.
        files: whether the models were loaded from the recorded files (and not given in some other way).
    """
    if not isinstance(recorded, Mapping):
        return []
    found = []
    with started_in(cwd):
        for name, digest in _strings(recorded.get("files")) if files else ():
            if (there := file_digest(Path(name))) != digest:
                found.append(f"the file {name}" + ("" if there else ", which is gone"))
    known = dict(_strings(recorded.get("weights")))
    for role, digest in _strings(now.get("weights")):
        if known.get(role, digest) != digest:
            found.append(f"the weights of {WHOSE.get(role, role)}")
    return found


def said(found: list[str], since: str) -> str:
    """``the model has changed since the run began (the file net.py, the weights of the model): …``; "" for nothing."""
    if not found:
        return ""
    return f"the model has changed since {since} ({', '.join(found)}): what was true of it then may not be true now"


def files_of(word: str) -> Iterator[Path]:
    """The files behind ``file.py:name``, ``pkg.mod:name`` or a model file: its own, and the modules in its folder and
    below that were imported with it. Nothing for words that name no file (``argmax``)."""
    place = word.rpartition(":")[0]
    own = Path(place or word)
    if not own.is_file() and place in sys.modules:
        own = Path(getattr(sys.modules[place], "__file__", None) or os.devnull)
    if not own.is_file():
        return
    yield own
    if own.suffix == ".py":
        full = own.resolve()
        files = {f for m in list(sys.modules.values()) if isinstance(f := getattr(m, "__file__", None), str)}
        yield from (p for p in map(Path, sorted(files)) if p.is_relative_to(full.parent) and p != full and _is_own(p))


def _is_own(path: Path) -> bool:
    """Part of the user's project: neither installed nor nnfuzz itself."""
    lib = [Path(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)]
    foreign = any(path.is_relative_to(p) for p in [*lib, Path(__file__).parent])
    return not foreign and "site-packages" not in path.parts


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes; "" for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def weights_digest(model: Model) -> str:
    """sha256 over names, dtypes, shapes and bits of all parameters, buffers, and of the plain tensors that a function
    closes over or names; "" when there are none."""
    digest, any_seen = hashlib.sha256(), False
    for name, tensor in sorted(_tensors(model).items()):
        any_seen = True
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bits(tensor))
    return digest.hexdigest() if any_seen else ""


def _tensors(model: Model) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for root, module in reachable_modules(model).items():
        for kind in (module.named_parameters(), module.named_buffers()):
            found |= {f"{root}.{name}": t for name, t in kind if not is_lazy(t)}
    if not isinstance(model, torch.nn.Module):
        found |= {name: t for name, t in _named_outside(model) if isinstance(t, Tensor)}
    return found


def _named_outside(model: Model) -> list[tuple[str, Any]]:
    """Values of a function's closure and of the globals it names, one level into dicts and lists."""
    try:
        seen = inspect.getclosurevars(inspect.unwrap(getattr(model, "__func__", model)))
    except (TypeError, ValueError):
        return []
    pairs: list[tuple[str, Any]] = []
    for name, value in {**seen.globals, **seen.nonlocals}.items():
        inner = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        pairs += [(name, value), *((f"{name}.{key}", part) for key, part in inner)]
    return pairs


def _bits(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor; nothing for one that has none."""
    if tensor.is_meta or not tensor.numel():
        return b""
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.int_repr()
    try:
        plain = (plain if plain.layout == torch.strided else plain.to_dense()).cpu().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy().data
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
    ):  # a tensor of a kind of its own: its text is better than none
        return repr(plain).encode()


def _strings(part: Any) -> list[tuple[str, str]]:
    """The pairs of text of a document that may hold anything."""
    if not isinstance(part, Mapping):
        return []
    return [(k, v) for k, v in part.items() if isinstance(k, str) and isinstance(v, str)]


def _shown(path: Path) -> str:
    full, here = path.resolve(), Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(full)
