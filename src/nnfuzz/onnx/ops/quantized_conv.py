"""Convolutions of integers: exact sums in float64, then one rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from nnfuzz.onnx.ops.grid import as_int32, centred
from nnfuzz.onnx.ops.quantized_linear import carried, ratio, requantize
from nnfuzz.onnx.ops.registry import Call, operator

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def window_pads(call: Call, size: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
    """How far a sliding window goes beyond its input, (before, after) an axis, by ``pads`` or ``auto_pad``.

    Args:
        call: attributes ``auto_pad``, ``pads``, ``strides``, ``dilations``.
        size: of the input, spatial axes only.
        kernel: sizes of the window.
    """
    axes = len(size)
    mode = call.attr("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = call.attr("pads") or [0] * 2 * axes
        return [(pads[i], pads[i + axes]) for i in range(axes)]
    if mode == "VALID":
        return [(0, 0)] * axes
    strides, dilations = call.attr("strides") or [1] * axes, call.attr("dilations") or [1] * axes
    found = []
    for n, k, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        total = max((-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n, 0)
        less = total // 2
        found.append((less, total - less) if mode == "SAME_UPPER" else (total - less, less))
    return found


def convolve(call: Call, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolution of one to three axes: x (N, C, d..), w (M, C/group, k..) → (N, M, e..); outside ``x`` there is 0."""
    axes = x.ndim - 2
    if axes not in _CONVOLUTIONS:
        raise call.unsupported(f"a convolution over {axes} axes")
    pads = window_pads(call, x.shape[2:], w.shape[2:])
    x = F.pad(x, [p for pair in reversed(pads) for p in pair]) if any(map(any, pads)) else x
    return _CONVOLUTIONS[axes](
        x,
        w,
        stride=call.attr("strides") or [1] * axes,
        dilation=call.attr("dilations") or [1] * axes,
        groups=call.attr("group", 1),
    )


def by_channel(parameter: torch.Tensor, axes: int) -> torch.Tensor:
    """A vector with one number for each output channel so that it broadcasts to (N, M, e..)."""
    return parameter.reshape(-1, *[1] * axes)


def integer_convolve(
    call: Call, x: torch.Tensor, w: torch.Tensor, x_zero: torch.Tensor | None, w_zero: torch.Tensor | None
) -> torch.Tensor:
    """Convolution of ``x - x_zero`` by ``w - w_zero`` in float64, exact; ``w_zero`` one number or one a channel."""
    if w_zero is not None and w_zero.numel() > 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    return convolve(call, centred(x, x_zero, torch.float64), centred(w, w_zero, torch.float64))


@operator("ConvInteger")
def conv_integer(
    call: Call,
    x: torch.Tensor,
    w: torch.Tensor,
    x_zero: torch.Tensor | None = None,
    w_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution of integers of 8 bits in int32."""
    return as_int32(integer_convolve(call, x, w, x_zero, w_zero), carried(x, w))


@operator("QLinearConv")
@operator("QLinearConv", domain="com.microsoft")
def qlinear_conv(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution of quantized values, quantized; ``bias`` is in int32 with scale ``x_scale * w_scale``.

    ONNX Runtime's version may be channels last: x (N, d.., C).
    """
    last = bool(call.attr("channels_last", 0))
    x = x.movedim(-1, 1) if last else x
    total = integer_convolve(call, x, w, x_zero, w_zero)
    axes = x.ndim - 2
    if bias is not None:
        total = total + by_channel(bias, axes).to(total.dtype)
    y = requantize(total, by_channel(ratio(x_scale, w_scale, y_scale), axes), y_zero)
    return y.movedim(1, -1) if last else y
