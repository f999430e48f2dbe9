"""Putting elements by index: Scatter and its kin."""

from __future__ import annotations

import math

import torch

from nnfuzz.onnx.ops.indexing import flat_index, from_start
from nnfuzz.onnx.ops.narrow import moved, wide
from nnfuzz.onnx.ops.registry import Call, operator

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(call: Call, data: torch.Tensor, axis: int, index: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """``data`` with ``updates`` put at ``index`` along ``axis``, by the node's attribute ``reduction``.

    Without a reduction the last of several updates of one element stays (ONNX leaves that open).
    """
    reduction = call.attr("reduction", "none")
    updates = updates.to(data.dtype)
    if reduction == "none":
        return moved(lambda into, values: into.scatter(axis, index, values), data, updates)
    if reduction not in _REDUCTIONS:
        raise call.unsupported(f"the reduction {reduction!r}")
    if data.dtype == torch.bool:
        # Of truth values the sum is "or" and the product is "and".
        counted = data.to(torch.uint8).scatter_reduce(axis, index, updates.to(torch.uint8), _REDUCTIONS[reduction])
        return counted.to(torch.bool)
    return wide(data).scatter_reduce(axis, index, wide(updates), _REDUCTIONS[reduction]).to(data.dtype)


@operator("Scatter", "ScatterElements")
def scatter_elements(call: Call, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """One element along ``axis`` for each index; the other coordinates are the index's own."""
    axis = call.attr("axis", 0) % data.ndim
    return _scatter(call, data, axis, from_start(indices, data.shape[axis]), updates)


@operator("ScatterND")
def scatter_nd(call: Call, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Slices by index tuples: data (n₁..n_k, r..), indices (q.., k), updates (q.., r..)."""
    depth = indices.shape[-1]
    addressed, width = tuple(data.shape[:depth]), math.prod(data.shape[depth:])
    rows = flat_index(indices, addressed).reshape(-1, 1).expand(-1, width)
    flat = data.reshape(math.prod(addressed), width)
    return _scatter(call, flat, 0, rows, updates.reshape(-1, width)).reshape(data.shape)


@operator("TensorScatter")
def tensor_scatter(
    call: Call, cache: torch.Tensor, update: torch.Tensor, write_indices: torch.Tensor | None = None
) -> torch.Tensor:
    """A cache with new entries written from a position of its own in each row of the batch.

    Args:
        cache: (batch, ..., max_length, ...), the length at ``axis``.
        update: the same but for its length along ``axis``.
        write_indices: (batch,) first position to write; 0 if left out. In mode "circular" it goes on at the start.
    """
    axis = call.attr("axis", -2) % cache.ndim
    length, size = update.shape[axis], cache.shape[axis]
    first = torch.zeros(cache.shape[0], dtype=torch.int64) if write_indices is None else write_indices.to(torch.int64)
    position = first.to(cache.device)[:, None] + torch.arange(length, device=cache.device)
    if call.attr("mode", "linear") == "circular":
        position = position % size
    shape = [1] * cache.ndim
    shape[0], shape[axis] = position.shape[0], length
    index = position.reshape(shape).expand(update.shape)
    return moved(lambda into, values: into.scatter(axis, index, values), cache, update)
