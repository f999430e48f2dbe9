"""Taking elements by index: Gather and its kin."""

from __future__ import annotations

import math

import torch

from nnfuzz.onnx.ops.narrow import moved
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import known_ints


def from_start(indices: torch.Tensor, size: int) -> torch.Tensor:
    """Indices in [-size, size) of any integer dtype → int64 in [0, size); what lies outside stays outside."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def flat_index(indices: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Index tuples along the last axis → positions in an array of ``shape`` laid out row by row.

    Args:
        indices: integers of shape (..., k), each in [-n, n) of its axis.
        shape: the k sizes.

    Raises:
        IndexError: an index is outside its axis. (As a flat position it might hit another row.)
    """
    position = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for axis, size in enumerate(shape):
        here = from_start(indices[..., axis], size)
        # The look-up is the range check: it raises as every look-up does, also on batches under vmap.
        checked = torch.arange(size, device=indices.device).index_select(0, here.reshape(-1))
        position = position * size + checked.reshape(here.shape)
    return position


@operator("Gather")
def gather(call: Call, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Slices of ``data`` along ``axis``: data (a.., n, b..), indices (q..) → (a.., q.., b..)."""
    axis = call.attr("axis", 0) % data.ndim
    if not indices.ndim and (one := known_ints(indices)) is not None:
        return data.select(axis, one[0])
    chosen = from_start(indices, data.shape[axis]).reshape(-1)
    taken = moved(lambda x: x.index_select(axis, chosen), data)
    return taken.reshape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


@operator("GatherElements")
def gather_elements(call: Call, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """One element along ``axis`` for each index; the other coordinates are the index's own."""
    axis = call.attr("axis", 0) % data.ndim
    chosen = from_start(indices, data.shape[axis])
    return moved(lambda x: x.gather(axis, chosen), data)


@operator("GatherND")
@operator("GatherND", domain="com.microsoft")
def gather_nd(call: Call, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Slices by index tuples: data (b.., n₁..n_k, r..), indices (b.., q.., k) → (b.., q.., r..)."""
    shared = call.attr("batch_dims", 0)
    depth = indices.shape[-1]
    batch, looked_up, rest = data.shape[:shared], data.shape[shared : shared + depth], data.shape[shared + depth :]
    batches = math.prod(batch)
    position = flat_index(indices.reshape(batches, -1, depth), tuple(looked_up))
    rows = torch.arange(batches, device=data.device)[:, None] * math.prod(looked_up) + position
    flat = data.reshape(batches * math.prod(looked_up), math.prod(rest))
    taken = moved(lambda x: x.index_select(0, rows.reshape(-1)), flat)
    return taken.reshape(*indices.shape[:-1], *rest)


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(call: Call, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Columns ``y`` of the last axis; a vector is a matrix of one row."""
    x = x if x.ndim > 1 else x[None]
    return moved(lambda data: data.index_select(-1, y.reshape(-1).to(torch.int64)), x)
