"""Pooling: MaxPool, AveragePool, LpPool, their global forms, and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.windows import Windows, ints, windows

MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _native(at: Windows) -> bool:
    """torch's own pooling has this padding: the same on both sides and at most half a kernel."""
    sides = zip(at.begin, at.end, at.kernel, strict=True)
    return len(at.size) in MAX and all(b == e and 0 <= b <= k // 2 for b, e, k in sides)


def _up(call: Call) -> bool:
    return bool(call.attr("ceil_mode", 0)) and call.attr("auto_pad", "NOTSET") == "NOTSET"


@operator("MaxPool")
def max_pool(call: Call, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x (N, C, *D) → largest of each window (N, C, *D') and, if wanted, where: index into the flattened x, int64."""
    at = windows(call, x, call.attr("kernel_shape"))
    wanted = len(call.outputs) > 1 and bool(call.outputs[1])
    if len(at.size) not in MAX:
        raise call.unsupported(f"{len(at.size)} spatial axes, where 1 to 3 are written,")
    # torch pools no integers of 8 bits with all options, and float32 holds them exactly.
    work = x if x.is_floating_point() else x.to(torch.float32)
    own = _native(at)
    padding: list[int] = at.begin if own else [0] * len(at.size)
    operand = work if own else at.padded(work, -math.inf)
    args = (operand, at.kernel, at.stride, padding, at.dilation, own and _up(call))
    if not wanted:
        return MAX[len(at.size)](*args).to(x.dtype), None
    y, where = MAX[len(at.size)](*args, return_indices=True)
    return y.to(x.dtype), _flat_index(where, operand.shape[2:], at, own, x, bool(call.attr("storage_order", 0)))


def _flat_index(where: Tensor, plane: Any, at: Windows, own: bool, x: Tensor, column_major: bool) -> Tensor:
    """From an index into the (padded) plane to one into the whole flattened operand."""
    places, left = [], where
    for length in reversed(plane):
        places.append(left % length)
        left = left // length
    places.reverse()
    if not own:  # a window of −inf alone may name the padding
        places = [(p - b).clamp(0, d - 1) for p, b, d in zip(places, at.begin, at.size, strict=True)]
    index = torch.zeros_like(where)
    order = range(len(places))
    for i in reversed(order) if column_major else order:
        index = index * at.size[i] + places[i]
    n, c = x.shape[:2]
    channel = torch.arange(n * c, device=x.device).reshape(n, c, *[1] * len(places))
    return index + channel * math.prod(at.size)


@operator("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    """x (N, C, *D) → mean of each window (N, C, *D'); padding counts only with count_include_pad."""
    at = windows(call, x, call.attr("kernel_shape"))
    padding_counts = bool(call.attr("count_include_pad", 0))
    if _native(at) and max(at.dilation) == 1:
        return AVERAGE[len(at.size)](x, at.kernel, at.stride, at.begin, _up(call), padding_counts)
    padded = at.padded(x, 0.0)
    if len(at.size) in AVERAGE and max(at.dilation) == 1:
        mean = AVERAGE[len(at.size)](padded, at.kernel, at.stride)
    else:
        mean = at.view(padded).mean(list(range(-len(at.size), 0)))
    count = torch.ones((), dtype=torch.int64, device=x.device)
    for i, (b, e) in enumerate(zip(at.begin, at.end, strict=True)):
        count = count[..., None] * at.inside(i, b if padding_counts else 0, e if padding_counts else 0, x.device)
    return mean * (math.prod(at.kernel) / count).to(x.dtype)


@operator("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    """x (N, C, *D) → p-norm of each window (N, C, *D')."""
    at = windows(call, x, call.attr("kernel_shape"))
    kernel_axes = list(range(-len(at.size), 0))
    y: Tensor = torch.linalg.vector_norm(at.view(at.padded(x, 0.0)), call.attr("p", 2), kernel_axes)
    return y


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call, x: Tensor) -> Tensor:
    """x (N, C, *D) → (N, C, 1, …)."""
    axes = list(range(2, x.dim()))
    if call.op == "GlobalMaxPool":
        return x.amax(axes, keepdim=True)
    if call.op == "GlobalAveragePool":
        return x.mean(axes, keepdim=True)
    y: Tensor = torch.linalg.vector_norm(x, call.attr("p", 2), axes, keepdim=True)
    return y


@operator("MaxUnpool")
def max_unpool(call: Call, x: Tensor, where: Tensor, output_shape: Tensor | None = None) -> Tensor:
    """Puts each value of x back to the place that MaxPool's second output names, zeros elsewhere."""
    kernel = [int(k) for k in call.attr("kernel_shape")]
    n = len(kernel)
    stride, pads = ints(call, "strides", 1, n), ints(call, "pads", 0, 2 * n)
    axes = zip(x.shape[2:], stride, pads[:n], pads[n:], kernel, strict=True)
    size = [*x.shape[:2], *[(d - 1) * s - b - e + k for d, s, b, e, k in axes]]
    y = x.new_zeros(math.prod(size)).scatter(0, where.flatten(), x.flatten()).reshape(size)
    if output_shape is None:
        return y
    # The indices count in the smallest operand that pools to x; a larger one is wished for.
    wish = [int(v) for v in output_shape.tolist()]
    return F.pad(y, [v for a, b in zip(reversed(wish), reversed(size), strict=True) for v in (0, a - b)])
