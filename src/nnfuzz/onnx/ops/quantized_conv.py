"""Convolutions of integers: exact sums in float64, then one rounding."""

from __future__ import annotations

from dataclasses import replace

import torch

from nnfuzz.onnx.ops.convolution import conv
from nnfuzz.onnx.ops.grid import as_int32, centred
from nnfuzz.onnx.ops.quantized_linear import carried, ratio, requantize
from nnfuzz.onnx.ops.registry import Call, operator


def by_channel(parameter: torch.Tensor, axes: int) -> torch.Tensor:
    """A vector with one number for each output channel so that it broadcasts to (N, M, e..)."""
    return parameter.reshape(-1, *[1] * axes)


def integer_convolve(
    call: Call, x: torch.Tensor, w: torch.Tensor, x_zero: torch.Tensor | None, w_zero: torch.Tensor | None
) -> torch.Tensor:
    """Convolution of ``x - x_zero`` by ``w - w_zero`` in float64, exact; ``w_zero`` one number or one a channel."""
    if w_zero is not None and w_zero.numel() > 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    total: torch.Tensor = conv(
        replace(call, op="Conv"), centred(x, x_zero, torch.float64), centred(w, w_zero, torch.float64)
    )
    return total


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
