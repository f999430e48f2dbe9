"""Whatever a model returns, as named tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.loading.arrays import to_tensor


def named_outputs(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of a model's return value by name: a single one is ``output``; tuples give ``0``, ``1``; dicts, named
    tuples and dataclasses (as Hugging Face returns them) their keys, nested with dots. Plain numbers and NumPy arrays
    count where there is no tensor at all (beside tensors they are settings: a length, a flag), a list of numbers as one
    output; anything else is left out."""
    found: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    _walk(value, prefix, found, numbers)
    return found or numbers


def _walk(value: Any, name: str, found: dict[str, Tensor], numbers: dict[str, Tensor]) -> None:
    if isinstance(value, Tensor):
        odd = value.layout != torch.strided or value.is_quantized or value.is_nested
        found[name or "output"] = _plain(value) if odd else value
    elif isinstance(value, bool | int | float | complex) or _is_list_of_numbers(value):
        numbers[name or "output"] = torch.as_tensor(value)
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "biufc":
            numbers[name or "output"] = to_tensor(value, name)
    else:
        for key, part in _parts(value):
            _walk(part, f"{name}.{key}" if name else str(key), found, numbers)


def _plain(value: Tensor) -> Tensor:
    """Sparse, nested and quantized tensors as what they stand for; rows of a nested one are padded with zeros."""
    if value.is_quantized:
        return value.dequantize()
    return value.to_padded_tensor(0.0) if value.is_nested else value.to_dense()


def _is_list_of_numbers(value: Any) -> bool:
    """One result in many parts: taken apart, each set of parts that fail would look like a failure of its own."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    return bool(value) and all(isinstance(v, bool | int | float | complex) for v in value)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) or hasattr(value, "items"):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return [(str(i), v) for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []
