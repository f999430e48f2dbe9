"""com.microsoft: element-wise operators and pooling on quantized values: dequantize, compute, quantize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional as F

from nnfuzz.onnx.ops.activations import softmax
from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.grid import centred, grid_of, snap
from nnfuzz.onnx.ops.pooling import average_pool
from nnfuzz.onnx.ops.registry import Call, operator

Maybe = torch.Tensor | None


def plain(x: torch.Tensor, scale: torch.Tensor, zero: Maybe) -> torch.Tensor:
    """What quantized values stand for."""
    return centred(x, zero, scale.dtype) * scale


def quantized(
    y: torch.Tensor, scale: torch.Tensor, zero: Maybe, like: torch.Tensor, *, shifted: bool = False
) -> torch.Tensor:
    """``y`` on the grid of its zero point, or of ``like`` where that is left out.

    Ties: with ``shifted`` ``y / scale + zero`` is rounded to even, else ``y / scale`` before the zero point is added.
    The first is what the formula of QLinearAdd and QLinearMul says, and what the runtime does there and in
    QLinearAveragePool.
    """
    if zero is None and not like.dtype.is_floating_point:
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
    if shifted and zero is not None:
        return snap(y / scale + zero.to(y.dtype), grid_of(zero))
    return snap(y / scale, grid_of(zero), zero)


@operator("QLinearAdd", "QLinearMul", domain=MS)
def qlinear_binary(
    call: Call,
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: Maybe,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe = None,
) -> torch.Tensor:
    """Sum or product, broadcast."""
    if call.op == "QLinearMul":
        product = centred(a, a_zero, a_scale.dtype) * centred(b, b_zero, b_scale.dtype)
        return quantized(product * (a_scale * b_scale), y_scale, y_zero, a, shifted=True)
    return quantized(plain(a, a_scale, a_zero) + plain(b, b_scale, b_zero), y_scale, y_zero, a, shifted=True)


@operator("QLinearLeakyRelu", "QLinearSigmoid", domain=MS)
def qlinear_unary(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe = None,
) -> torch.Tensor:
    """An activation."""
    value = plain(x, x_scale, x_zero)
    y = torch.sigmoid(value) if call.op == "QLinearSigmoid" else F.leaky_relu(value, call.attr("alpha", 0.01))
    return quantized(y, y_scale, y_zero, x)


@operator("QLinearSoftmax", domain=MS)
def qlinear_softmax(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
) -> torch.Tensor:
    """Softmax as of the opset that the attribute names.

    ONNX Runtime computes in integers and drops the fraction of ``1 / y_scale``: for a scale of 1/255 a probability of 1
    becomes 254.
    """
    y: torch.Tensor = softmax(replace(call, op="Softmax", version=call.attrs["opset"]), plain(x, x_scale, x_zero))
    return snap(y * torch.floor(1 / y_scale), grid_of(y_zero), y_zero)


def _pooled(
    call: Call,
    pool: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe,
) -> torch.Tensor:
    last = bool(call.attr("channels_last", 0))
    value = plain(x, x_scale, x_zero)
    y = pool(value.movedim(-1, 1) if last else value)
    shifted = call.op == "QLinearAveragePool"
    return quantized(y.movedim(1, -1) if last else y, y_scale, y_zero, x, shifted=shifted)


@operator("QLinearAveragePool", domain=MS)
def qlinear_average_pool(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe = None,
) -> torch.Tensor:
    """AveragePool; with ``channels_last`` of (N, d.., C)."""
    return _pooled(call, lambda v: average_pool(call, v), x, x_scale, x_zero, y_scale, y_zero)


@operator("QLinearGlobalAveragePool", domain=MS)
def qlinear_global_average_pool(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe = None,
) -> torch.Tensor:
    """The mean of each channel; with ``channels_last`` of (N, d.., C)."""

    def mean(v: torch.Tensor) -> torch.Tensor:
        return v.mean(list(range(2, v.ndim)), keepdim=True)

    return _pooled(call, mean, x, x_scale, x_zero, y_scale, y_zero)


@operator("QLinearReduceMean", domain=MS)
def qlinear_reduce_mean(
    call: Call,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: Maybe,
    y_scale: torch.Tensor,
    y_zero: Maybe = None,
) -> torch.Tensor:
    """The mean over ``axes``."""
    axes = list(call.attr("axes") or range(x.ndim))
    return quantized(plain(x, x_scale, x_zero).mean(axes, bool(call.attr("keepdims", 1))), y_scale, y_zero, x)


@operator("QLinearConcat", domain=MS)
def qlinear_concat(call: Call, y_scale: torch.Tensor, y_zero: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    """Parts one after the other, each given as values, scale, zero point."""
    held = [
        quantized(plain(x, scale, zero), y_scale, y_zero, x)
        for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]
    return torch.cat(held, call.attrs["axis"])


@operator("QLinearWhere", domain=MS)
def qlinear_where(
    call: Call,
    condition: torch.Tensor,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: torch.Tensor,
    y: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
    z_scale: torch.Tensor,
    z_zero: torch.Tensor,
) -> torch.Tensor:
    """x where the condition holds, else y."""
    chosen = torch.where(condition, plain(x, x_scale, x_zero), plain(y, y_scale, y_zero))
    return quantized(chosen, z_scale, z_zero, x)
