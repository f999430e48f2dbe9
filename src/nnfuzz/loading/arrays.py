"""numpy and plain Python numbers → tensors that torch can compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.errors import UsageError

_WIDER: dict[str, type[np.generic]] = {"uint16": np.int32, "uint32": np.int64}
"""Types for which torch has hardly any operations, and the next that holds all their values."""


def to_tensor(array: Any, name: str) -> Tensor:
    """A tensor of its own memory; raises ``UsageError`` for text, objects, dates and records."""
    array = np.asarray(array)
    if array.dtype.name in _WIDER:
        array = array.astype(_WIDER[array.dtype.name])
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16 or array.dtype.name in ("uint64", "float128"):
        raise UsageError(f"{name} holds {array.dtype} values, which torch has no tensors for: convert to numbers")
    native = array.astype(array.dtype.newbyteorder("="), copy=True, order="C")
    return torch.from_numpy(native)


def tensors_in(part: Any, name: str) -> Any:
    """The same structure with every array and number as a tensor; tensors are detached and left as they are."""
    if isinstance(part, Tensor):
        return part.detach()
    if isinstance(part, dict):
        return {str(k): tensors_in(v, f"{name}.{k}") for k, v in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return {k: tensors_in(v, f"{name}.{k}") for k, v in zip(part._fields, part, strict=True)}
    if isinstance(part, list | tuple):
        return tuple(tensors_in(v, f"{name}.{i}") for i, v in enumerate(part))
    if isinstance(part, np.ndarray | np.generic | bool | int | float):
        return to_tensor(part, name) if isinstance(part, np.ndarray | np.generic) else torch.tensor(part)
    kind = type(part).__name__
    image = ": turn it into a tensor first (a ToTensor transform)" if hasattr(part, "getpixel") else ""
    raise UsageError(f"{name} holds a {kind}, but seeds are tensors, arrays, or tuples and dicts of them{image}")
