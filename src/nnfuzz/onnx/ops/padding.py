"""Pad in all its modes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nnfuzz.onnx.ops.narrow import moved
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import ints


@operator("Pad")
def pad(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    """Elements added before and after each axis, or first taken away where a number is negative.

    ``pads`` (an attribute before opset 11) holds all the numbers of the beginnings, then all of the ends.
    """
    if call.version < 11:
        amounts, fill = call.attrs["pads"], call.attr("value", 0.0)
    else:
        amounts, fill = ints(pads), 0 if value is None else value.item()
    along = [a % x.dim() for a in ints(axes)] if axes is not None else list(range(x.dim()))
    before, after = [0] * x.dim(), [0] * x.dim()
    for i, axis in enumerate(along):
        before[axis], after[axis] = amounts[i], amounts[i + len(along)]
    mode = call.attr("mode", "constant")
    if mode == "constant":
        flat = [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair]
        return F.pad(x, flat, value=fill) if any(flat) else x
    for axis in along:
        left, right = before[axis], after[axis]
        first = max(-left, 0)
        x = x.narrow(axis, first, max(x.shape[axis] - first - max(-right, 0), 0))
        size = x.shape[axis]
        if left > 0 or right > 0:
            places = torch.arange(-max(left, 0), size + max(right, 0), device=x.device)
            x = _picked(x, axis, _folded(places, size, mode))
    return x


def _picked(x: Tensor, axis: int, places: Tensor) -> Tensor:
    return moved(lambda t: t.index_select(axis, places), x)


def _folded(places: Tensor, size: int, mode: str) -> Tensor:
    """Places outside an axis of ``size`` elements → the places of the elements that stand there."""
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap" or size == 1:
        return places % size
    turn = places % (2 * (size - 1))
    return torch.minimum(turn, 2 * (size - 1) - turn)
