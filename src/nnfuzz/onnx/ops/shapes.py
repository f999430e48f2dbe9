"""Operators that change the shape of a tensor, or tell it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator

_KNOWN, _NUMBER = "nnfuzz_ints", "nnfuzz_number"
_MOST_KNOWN = 64


def ints(values: Tensor | None) -> list[int]:
    """The numbers of a tensor that says where or how many; [] where it is left out. The list is the caller's."""
    if values is None:
        return []
    known = known_ints(values)
    return [int(v) for v in values.reshape(-1).tolist()] if known is None else list(known)


def known_ints(values: Tensor) -> tuple[int, ...] | None:
    """The numbers of a constant that were remembered, else None."""
    known: tuple[int, ...] | None = getattr(values, _KNOWN, None)
    return known


def remember(constant: Tensor) -> None:
    """So that ``ints`` and ``number`` need not ask a constant, which nobody changes, at every run. A constant that is
    converted or moved is another tensor, of which nothing is known."""
    if constant.dtype is torch.int64 and constant.numel() <= _MOST_KNOWN:
        setattr(constant, _KNOWN, tuple(constant.reshape(-1).tolist()))
    elif constant.dtype in (torch.float32, torch.float64) and not constant.dim():
        setattr(constant, _NUMBER, float(constant))


def number(value: Tensor | None) -> float | Tensor | None:
    """A constant number as Python has it, for which torch's functions are quicker; anything else as it is."""
    known: float | None = getattr(value, _NUMBER, None)
    return value if known is None else known


@operator("Reshape")
def reshape(call: Call, x: Any, shape: Tensor) -> Any:
    """A new shape; 0 keeps the axis (unless ``allowzero``), −1 takes what is left."""
    wanted = ints(shape)
    if not call.attr("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:  # torch calls −1 ambiguous where there is no element
        rest = math.prod(n for n in wanted if n != -1)
        wanted = [0 if n == -1 and rest == 0 else n for n in wanted]
    return x.reshape(wanted)


@operator("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    """The matrix of all axes before ``axis`` by all from it on."""
    axis = call.attr("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def transpose(call: Call, x: Tensor) -> Tensor:
    """Axes in the order ``perm``; reversed without it."""
    return x.permute(call.attr("perm", list(range(x.dim()))[::-1]))


@operator("Squeeze")
def squeeze(call: Call, x: Any, axes: Tensor | None = None) -> Any:
    """Without the given axes of size 1, or without all such."""
    given = ints(axes) if call.version >= 13 else call.attr("axes", [])
    if len(given) == 1 and isinstance(x, Tensor) and x.shape[given[0]] == 1:
        return x.squeeze(given[0])
    drop = {a % x.ndim for a in given} if given else {d for d, n in enumerate(x.shape) if n == 1}
    for d in drop:
        if x.shape[d] != 1:
            raise call.unsupported(f"squeezing axis {d} of size {x.shape[d]}")
    return x.reshape([n for d, n in enumerate(x.shape) if d not in drop])


@operator("Unsqueeze")
def unsqueeze(call: Call, x: Any, axes: Tensor | None = None) -> Any:
    """With axes of size 1 inserted, so that they stand at ``axes`` in the result."""
    given = ints(axes) if call.version >= 13 else call.attrs["axes"]
    if len(given) == 1 and isinstance(x, Tensor):
        return x.unsqueeze(given[0])
    rank = x.ndim + len(given)
    new, old = {a % rank for a in given}, iter(x.shape)
    return x.reshape([1 if d in new else next(old) for d in range(rank)])


@operator("Expand")
def expand(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    """Broadcast together with a shape."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(ints(shape))))


@operator("Tile")
def tile(call: Call, x: Tensor, repeats: Tensor) -> Tensor:
    """Repeated along each axis."""
    return x.repeat(ints(repeats))


@operator("Shape")
def shape(call: Call, x: Any) -> Tensor:
    """The sizes of the axes from ``start`` to ``end``, int64."""
    device = x.device if isinstance(x, Tensor) else None
    return torch.tensor(list(x.shape)[call.attr("start", 0) : call.attr("end")], dtype=torch.int64, device=device)


@operator("Size")
def size(call: Call, x: Any) -> Tensor:
    """The number of elements, int64."""
    return torch.tensor(math.prod(x.shape), dtype=torch.int64, device=x.device if isinstance(x, Tensor) else None)


@operator("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    """Channels into blocks of pixels: the block's place in the depth comes first ("DCR") or last ("CRD")."""
    b = call.attrs["blocksize"]
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    """Blocks of pixels into channels, the block's place in the depth first ("DCR") or, from opset 28, last ("CRD")."""
    b = call.attrs["blocksize"]
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, c * b**2, h // b, w // b)
