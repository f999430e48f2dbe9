"""Sliding windows: where the kernel of a convolution or a pooling stands, by the attributes that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call


@dataclass(frozen=True)
class Windows:
    """Kernel, stride and padding along each of the n spatial axes (axes 2, 3, … of the operand).

    Attributes:
        size: lengths of the operand's spatial axes.
        kernel, stride, dilation: of the kernel.
        begin, end: elements of padding before and after; negative ones crop.
        count: how many windows there are, which is the output's spatial shape.
    """

    size: list[int]
    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    begin: list[int]
    end: list[int]
    count: list[int]

    @property
    def extent(self) -> list[int]:
        """Elements from the first to the last that a window touches."""
        return [extent(k, d) for k, d in zip(self.kernel, self.dilation, strict=True)]

    @property
    def reach(self) -> list[int]:
        """Padding after the operand so that the last window fits exactly; negative where elements are left over."""
        axes = zip(self.count, self.stride, self.extent, self.size, self.begin, strict=True)
        return [(n - 1) * s + e - size - b for n, s, e, size, b in axes]

    def padded(self, x: Tensor, value: float) -> Tensor:
        """The operand with ``value`` around it, cut or filled so that the windows tile it exactly."""
        return pad(x, self.begin, self.reach, value)

    def view(self, padded: Tensor) -> Tensor:
        """Every window of a padded operand: (N, C, *count) → (N, C, *count, *kernel), without a copy."""
        for axis, (e, s, d) in enumerate(zip(self.extent, self.stride, self.dilation, strict=True)):
            padded = padded.unfold(2 + axis, e, s)[..., ::d]
        return padded

    def inside(self, axis: int, begin: int, end: int, device: torch.device) -> Tensor:
        """How many elements of each window lie in [−begin, size + end) of one axis: (count,), int64."""
        start = torch.arange(self.count[axis], device=device) * self.stride[axis] - self.begin[axis]
        at = start[:, None] + torch.arange(self.kernel[axis], device=device) * self.dilation[axis]
        return ((at >= -begin) & (at < self.size[axis] + end)).sum(1)


def extent(kernel: int, dilation: int) -> int:
    """Elements from the first to the last that a dilated kernel touches."""
    return (kernel - 1) * dilation + 1


def ints(call: Call, name: str, default: int, n: int) -> list[int]:
    """An attribute with one number an axis, ``default`` on each where the node leaves it out."""
    return [int(v) for v in call.attr(name) or [default] * n]


def split(total: int, lower: bool) -> tuple[int, int]:
    """Padding before and after; an odd one goes to the end, or to the beginning for SAME_LOWER."""
    begin = int((total + lower) / 2)  # toward zero, also of a negative total
    return begin, total - begin


def windows(call: Call, x: Tensor, kernel: Sequence[int]) -> Windows:
    """The windows of a node over x, from auto_pad, ceil_mode, dilations, pads and strides.

    A window that would start in the padding after the operand is left out (ceil_mode), as ONNX has it since opset 22
    and runtimes had it before.

    Raises:
        Unsupported: not one window fits into the padded operand.
    """
    size = list(x.shape[2:])
    n = len(size)
    stride, dilation = ints(call, "strides", 1, n), ints(call, "dilations", 1, n)
    mode = call.attr("auto_pad", "NOTSET")
    pads = ints(call, "pads", 0, 2 * n) if mode == "NOTSET" else [0] * 2 * n
    begin, end, count = pads[:n], pads[n:], []
    for i in range(n):
        e = extent(kernel[i], dilation[i])
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            count.append(-(-size[i] // stride[i]))
            total = (count[i] - 1) * stride[i] + e - size[i]
            # A kernel narrower than its stride leaves elements over, which pools skip on both sides.
            begin[i], end[i] = split(max(total, 0) if call.op == "Conv" else total, mode == "SAME_LOWER")
        else:
            room = size[i] + begin[i] + end[i] - e
            up = bool(call.attr("ceil_mode", 0)) and mode == "NOTSET"
            count.append((-(-room // stride[i]) if up else room // stride[i]) + 1)
            if up and (count[i] - 1) * stride[i] >= size[i] + begin[i]:
                count[i] -= 1
    if min(count, default=1) < 1:
        raise call.unsupported(f"a kernel of {list(kernel)} with dilations {dilation}, larger than its operand {size},")
    return Windows(size, list(kernel), stride, dilation, begin, end, count)


def pad(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0) -> Tensor:
    """Pads (or, where negative, crops) the spatial axes."""
    if not any(begin) and not any(end):
        return x
    pairs = [p for b, e in zip(reversed(begin), reversed(end), strict=True) for p in (b, e)]
    return F.pad(x, pairs, value=value)
