"""Choosing by value: TopK and Unique."""

from __future__ import annotations

import torch

from nnfuzz.onnx.ops.narrow import moved, wide
from nnfuzz.onnx.ops.registry import Call, operator


@operator("TopK")
def top_k(call: Call, x: torch.Tensor, k: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` largest (or smallest) along ``axis``, in order, and where they stood; of equals the first comes first.

    ``sorted=0`` leaves the order open; it is the sorted one here.
    """
    count = int(call.attrs["k"]) if k is None else int(k)
    axis = call.attr("axis", -1) % x.ndim
    # torch.topk says nothing about ties, a stable sort does.
    keys = wide(x) if x.dtype != torch.uint64 else x
    _, order = torch.sort(keys, dim=axis, descending=bool(call.attr("largest", 1)), stable=True)
    chosen = order.narrow(axis, 0, count)
    return moved(lambda data: data.gather(axis, chosen), x), chosen


@operator("Unique")
def unique(call: Call, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The different elements (or slices along ``axis``), where each stands first, which one stands where, how many."""
    axis = call.attr("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return _unique(x, axis % x.ndim, bool(call.attr("sorted", 1)))


@operator("Unique", domain="com.microsoft")
def unique_in_order(call: Call, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The different elements of a vector as they come, which one stands where, how many of each."""
    values, _, inverse, counts = _unique(x, 0, False)
    return values, inverse, counts


def _unique(
    x: torch.Tensor, axis: int, by_value: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    keys = wide(x.detach())
    _, inverse, counts = (
        torch.unique(keys, return_inverse=True, return_counts=True)
        if x.ndim == 1
        else torch.unique(keys, dim=axis, return_inverse=True, return_counts=True)
    )
    places = torch.arange(len(inverse), device=x.device)
    first = torch.full_like(counts, len(inverse)).scatter_reduce(0, inverse, places, "amin")
    if not by_value:
        order = torch.argsort(first)
        first, counts = first[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    return moved(lambda data: data.index_select(axis, first), x), first, inverse, counts
