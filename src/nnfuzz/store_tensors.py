"""Named tensors ↔ safetensors bytes: any dtype, any shape, order kept, never any code.

Complex tensors are stored as pairs of real numbers (not every version of safetensors has words for them) and named
under ``complex`` in the metadata; the order of the names is kept under ``names`` where it is not the file's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from nnfuzz.errors import StoreError
from nnfuzz.store_files import disk, write_atomically


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Safetensors bytes; equal tensors give equal bytes."""
    metadata = {}
    names = list(tensors)
    if len(names) > 1:
        metadata["names"] = json.dumps(names)
    if complexes := [n for n, t in tensors.items() if t.is_complex()]:
        metadata["complex"] = json.dumps(complexes)
    try:
        return save(_plain(tensors), metadata or None)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        shown = ", ".join(f"{n} ({t.dtype})" for n, t in tensors.items())
        raise StoreError(f"the tensors {shown} cannot be stored as safetensors ({error}): convert them") from error


def unpack(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors, on the CPU. ``where`` names the place in the ``StoreError`` that damaged data raise."""
    try:
        tensors = load(data)
        metadata = _metadata(data)
        for name in json.loads(metadata.get("complex", "[]")):
            tensors[name] = torch.view_as_complex(tensors[name])
        return {name: tensors[name] for name in json.loads(metadata.get("names", "null")) or tensors}
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, RecursionError, OverflowError) as error:
        hint = "; it is a pickle, which nnfuzz never opens" if _looks_pickled(data) else ""
        raise StoreError(f"{where} is damaged: it is no safetensors data ({error}){hint}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A ``.safetensors`` file, replaced atomically."""
    write_atomically(path, pack(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file, on the CPU."""
    with disk(f"read {path}"):
        data = path.read_bytes()
    return unpack(data, str(path))


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the safetensors bytes without metadata: equal for equal names, dtypes, shapes and bits."""
    return hashlib.sha256(save(_plain(tensors))).hexdigest()


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense, contiguous, real, on the CPU, no two sharing memory."""
    flat: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        x = tensor.detach()
        if x.is_quantized:
            x = x.dequantize()
        if x.layout != torch.strided:
            x = x.to_dense()
        if x.is_complex():
            x = torch.view_as_real(x.resolve_conj())
        x = x.resolve_neg().cpu().contiguous()
        pointer = x.untyped_storage().data_ptr()
        if x.numel() and pointer in seen:
            x = x.clone()
        seen.add(pointer)
        flat[name] = x
    return flat


def _metadata(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    return dict(found)


def _looks_pickled(data: bytes) -> bool:
    return data[:1] == b"\x80" or data[:4] == b"PK\x03\x04"
