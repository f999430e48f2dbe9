"""Convolutions: Conv, ConvTranspose, and the columns of Col2Im."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.windows import extent, ints, pad, split, windows

CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


MOST_SHAPES = 64
"""Of operands whose windows a node remembers."""


def _rank(call: Call, x: Tensor) -> int:
    n = x.dim() - 2
    if n not in CONV:
        raise call.unsupported(f"{n} spatial axes, where 1 to 3 are written,")
    return n


@operator("Conv")
def conv(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x (N, C, *D), w (M, C/group, *k), b (M,) → (N, M, *D')."""
    key = (x.shape[2:], w.shape[2:])
    found = call.memo.get(key)
    if found is None:
        at = windows(call, x, w.shape[2:])
        # What both sides share is the convolution's own padding, so that only a lopsided rest costs a copy.
        both = [max(0, min(pair)) for pair in zip(at.begin, at.end, strict=True)]
        begin = [v - p for v, p in zip(at.begin, both, strict=True)]
        end = [v - p for v, p in zip(at.end, both, strict=True)]
        found = CONV[_rank(call, x)], (at.stride, both, at.dilation, call.attr("group", 1)), begin, end
        if len(call.memo) < MOST_SHAPES:
            call.memo[key] = found
    function, rest, begin, end = found
    return function(pad(x, begin, end), w, b, *rest)


@operator("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x (N, C, *D), w (C, M/group, *k), b (M,) → (N, M, *D')."""
    n = _rank(call, x)
    stride, dilation = ints(call, "strides", 1, n), ints(call, "dilations", 1, n)
    extra = ints(call, "output_padding", 0, n)
    whole = [(d - 1) * s + extent(k, t) for d, s, k, t in zip(x.shape[2:], stride, w.shape[2:], dilation, strict=True)]
    begin, end = _crop(call, list(x.shape[2:]), stride, [v + o for v, o in zip(whole, extra, strict=True)])
    end = [v - o for v, o in zip(end, extra, strict=True)]
    both = [max(0, min(pair)) for pair in zip(begin, end, strict=True)]
    begin, end = ([p - v for v, p in zip(side, both, strict=True)] for side in (begin, end))
    beyond = any(v > 0 for v in begin + end)  # places no input reaches: they hold the bias alone
    y = TRANSPOSED[n](x, w, None if beyond else b, stride, both, 0, call.attr("group", 1), dilation)
    y = pad(y, begin, end)
    return y + b.reshape(-1, *[1] * n) if beyond and b is not None else y


def _crop(call: Call, size: list[int], stride: list[int], whole: list[int]) -> tuple[list[int], list[int]]:
    """How much of the whole transposed convolution (output_padding included) is cut off before and after."""
    n, mode = len(size), call.attr("auto_pad", "NOTSET")
    shape = call.attr("output_shape")
    if shape is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = ints(call, "pads", 0, 2 * n) if mode == "NOTSET" else [0] * 2 * n
        return pads[:n], pads[n:]
    shape = [d * s for d, s in zip(size, stride, strict=True)] if shape is None else [int(v) for v in shape][-n:]
    totals = [have - want for have, want in zip(whole, shape, strict=True)]
    pairs = [split(max(0, t), mode != "SAME_UPPER") for t in totals]
    # More than the whole is added at the end.
    return [p[0] for p in pairs], [p[1] + min(0, t) for p, t in zip(pairs, totals, strict=True)]


@operator("Col2Im")
def col2im(call: Call, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Tensor:
    """Columns (N, C·∏block, L) added up into images (N, C, *image_shape)."""
    image, block = [int(v) for v in image_shape.tolist()], [int(v) for v in block_shape.tolist()]
    n = len(image)
    stride, dilation = ints(call, "strides", 1, n), ints(call, "dilations", 1, n)
    pads = ints(call, "pads", 0, 2 * n)
    if n == 2 and pads[:2] == pads[2:]:
        return F.fold(x, tuple(image), tuple(block), tuple(dilation), tuple(pads[:2]), tuple(stride))
    # Any other number of axes: where each element of each column lands in the padded image, as one index.
    full = [d + a + b for d, a, b in zip(image, pads[:n], pads[n:], strict=True)]
    index = torch.zeros(1, 1, dtype=torch.int64, device=x.device)
    for d, k, s, t in zip(full, block, stride, dilation, strict=True):
        count = (d - extent(k, t)) // s + 1
        at = torch.arange(k, device=x.device)[:, None] * t + torch.arange(count, device=x.device) * s
        index = (index[:, None, :, None] * d + at[None, :, None, :]).reshape(index.shape[0] * k, -1)
    columns = x.reshape(x.shape[0], -1, index.numel())
    flat = columns.new_zeros(*columns.shape[:2], torch.Size(full).numel()).index_add(2, index.flatten(), columns)
    return pad(flat.reshape(*columns.shape[:2], *full), [-v for v in pads[:n]], [-v for v in pads[n:]])
