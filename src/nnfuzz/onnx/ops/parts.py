"""Operators that take parts of tensors, put tensors together, or move elements along an axis."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.onnx.ops.narrow import moved
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import ints


@operator("Identity")
def identity(call: Call, x: Any) -> Any:
    """The value itself."""
    return x


@operator("Concat")
def concat(call: Call, *values: Any) -> Any:
    """Tensors one after the other along ``axis``."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values, call.attrs["axis"])
    return torch.cat(values, call.attrs["axis"])


@operator("Split")
def split(call: Call, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Parts along ``axis``, of given sizes or of equal ones; what does not divide evenly makes the last one smaller."""
    axis = call.attr("axis", 0)
    given = ints(sizes) if call.version >= 13 else call.attr("split")
    if given:
        return torch.split(x, given, axis)
    total, count = x.shape[axis], call.attr("num_outputs", len(call.outputs))
    part = -(-total // count)
    starts = [min(i * part, total) for i in range(count + 1)]
    return torch.split(x, [b - a for a, b in itertools.pairwise(starts)], axis)


@operator("Slice")
def slice_(
    call: Call,
    x: Any,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Any:
    """``x[start:end:step]`` along axes; attributes before opset 10.

    As Python means it, but for a backward slice that starts before the first element: here it holds that element.
    ONNX Runtime takes the largest int32 or int64 as the end of a backward slice for "down to the first element".
    """
    if call.version < 10:
        first, last = call.attrs["starts"], call.attrs["ends"]
        along, by = call.attr("axes", list(range(len(first)))), [1] * len(first)
    else:
        first, last = ints(starts), ints(ends)
        along = ints(axes) if axes is not None else list(range(len(first)))
        by = ints(steps) if steps is not None else [1] * len(first)
    if isinstance(x, Tensor) and all(step == 1 for step in by):
        for start, end, axis in zip(first, last, along, strict=True):
            run = _run(start, end, 1, x.shape[axis])
            x = x.narrow(axis, run.start, len(run))
        return x
    picks, backward = [slice(None)] * x.ndim, []
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        run = _run(start, end, step, x.shape[axis])
        if step < 0:
            backward.append(axis % x.ndim)
            run = run[::-1]
        picks[axis] = slice(run.start, max(run.start, run.stop), run.step)
    part = x[tuple(picks)] if picks else x
    if isinstance(part, np.ndarray):
        return np.flip(part, tuple(backward))
    return moved(lambda t: t.flip(backward), part) if backward else part


def _run(start: int, end: int, step: int, size: int) -> range:
    start, end = (n + size if n < 0 else n for n in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


@operator("Where")
def where(call: Call, condition: Tensor, x: Any, y: Any) -> Any:
    """x where the condition holds, else y; all three broadcast."""
    if isinstance(x, np.ndarray):
        return np.where(condition.numpy(), x, y)
    return torch.where(condition, x, y)


@operator("NonZero")
def nonzero(call: Call, x: Tensor) -> Tensor:
    """Indices of the elements that are not 0, a row for each axis."""
    return torch.nonzero(x != 0).T


@operator("Compress")
def compress(call: Call, x: Tensor, condition: Tensor) -> Tensor:
    """The slices along ``axis`` (the elements without one) for which the condition holds."""
    axis = call.attr("axis")
    along, dim = (x.reshape(-1), 0) if axis is None else (x, axis)
    return moved(lambda t: t.index_select(dim, torch.nonzero(condition)[:, 0]), along)


@operator("ReverseSequence")
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """The first ``lengths[i]`` steps of sequence i in reverse, the others as they are."""
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    steps = torch.arange(x.shape[time], device=x.device)[:, None]
    source = torch.where(steps < lengths, lengths - 1 - steps, steps)  # time by batch
    source = source if time < batch else source.T
    index = source.reshape(*source.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    return moved(lambda t: t.gather(time, index), x)


@operator("OneHot")
def one_hot(call: Call, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """A new axis of size ``depth`` with the second value at each index and the first elsewhere; negative indices count
    from the end, others outside the axis are nowhere."""
    count = int(depth)
    axis = call.attr("axis", -1)
    places = indices.to(torch.int64)
    places = torch.where(places < 0, places + count, places)
    hot = places.unsqueeze(-1) == torch.arange(count, device=indices.device)
    return torch.where(hot.movedim(-1, axis), values[1], values[0])
