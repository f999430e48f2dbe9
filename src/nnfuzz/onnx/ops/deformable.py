"""DeformConv: a convolution whose kernel elements are moved, each by an offset of its own at each place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.sampling import sample
from nnfuzz.onnx.ops.windows import windows


@operator("DeformConv")
def deform_conv(
    call: Call, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """x (N, C, *D), w (M, C/group, *k), offset (N, G·∏k·n, *O), b (M,), mask (N, G·∏k, *O) → (N, M, *O)."""
    at = windows(call, x, w.shape[2:])
    n, taps = len(at.size), math.prod(at.kernel)
    groups, batch, channels = call.attr("offset_group", 1), x.shape[0], x.shape[1]
    # (N·G, taps, n, *O) → (N·G, taps, *O, n): where each element of the kernel looks, at each place.
    moved = offset.reshape(batch * groups, taps, n, *at.count).movedim(2, -1)
    places = moved + _places(at.kernel, at.dilation, at.count, at.stride, at.begin, x)
    values = sample(x.reshape(batch * groups, channels // groups, *at.size), places)  # (N·G, C/G, taps, *O)
    if mask is not None:
        values = values * mask.reshape(batch * groups, 1, taps, *at.count)
    share = call.attr("group", 1)
    columns = values.reshape(batch, share, channels // share * taps, -1)
    y = w.reshape(share, w.shape[0] // share, -1) @ columns
    y = y.reshape(batch, w.shape[0], *at.count)
    return y if b is None else y + b.reshape(-1, *[1] * n)


def _places(
    kernel: list[int], dilation: list[int], count: list[int], stride: list[int], begin: list[int], x: Tensor
) -> Tensor:
    """Where the kernel's elements look before they are moved: (taps, *O, n)."""
    n = len(kernel)
    axes = []
    for i in range(n):
        start = torch.arange(count[i], dtype=x.dtype, device=x.device) * stride[i] - begin[i]
        tap = torch.arange(kernel[i], dtype=x.dtype, device=x.device) * dilation[i]
        line = tap[:, None] + start
        shape = [1] * (2 * n)
        shape[i], shape[n + i] = kernel[i], count[i]
        axes.append(line.reshape(shape).expand(*kernel, *count))
    return torch.stack(axes, -1).flatten(0, n - 1)
