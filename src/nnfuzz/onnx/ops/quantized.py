"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear. How gradients pass is told in ``grid.py``."""

from __future__ import annotations

import torch

from nnfuzz.onnx.dtypes import WORKING, onnx_code
from nnfuzz.onnx.ops.grid import UINT8, Grid, at_least_single, centred, snap, spread
from nnfuzz.onnx.ops.narrow import moved
from nnfuzz.onnx.ops.registry import Call, operator


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain="com.microsoft")
def quantize_linear(
    call: Call, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None
) -> torch.Tensor:
    """``saturate(round(x / scale) + zero_point)``: one scale, one an index of ``axis``, or one a block of them.

    Halves are divided in float32 before opset 23, as ONNX Runtime does, and from then on in the type of ``scale`` or
    the one that ``precision`` names, as ONNX says.
    """
    axis, block = call.attr("axis", 1), call.attr("block_size", 0)
    grid = Grid(_target(call, zero_point), bool(call.attr("saturate", 1)))
    scale = spread(scale, x.shape, axis, block)
    if zero_point is not None:
        zero_point = moved(lambda z: spread(z, x.shape, axis, block), zero_point)
    precision = at_least_single(scale.dtype)
    if call.version >= 23 and not call.domain:
        precision = call.dtype(call.attrs["precision"]) if call.attr("precision") else scale.dtype
    steps = x.to(precision) / scale.to(precision)
    return snap(steps.to(at_least_single(precision)), grid, zero_point)


def _target(call: Call, zero_point: torch.Tensor | None) -> int:
    """The element type of the quantized values: that of the zero point, or what ``output_dtype`` says, or uint8."""
    told = call.types[2] if zero_point is not None and len(call.types) > 2 else 0
    named = told or int(call.attr("output_dtype", 0))
    if named or zero_point is None:
        return named or UINT8
    if zero_point.dtype in WORKING:  # float4 is held in float32
        raise call.unsupported("a zero point of which the file does not tell the element type")
    return onnx_code(zero_point.dtype)


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(
    call: Call, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None
) -> torch.Tensor:
    """``(x - zero_point) * scale`` in the type of ``scale`` or the one that ``output_dtype`` names."""
    axis, block = call.attr("axis", 1), call.attr("block_size", 0)
    result = call.dtype(call.attrs["output_dtype"]) if call.attr("output_dtype") else scale.dtype
    scale = spread(scale, x.shape, axis, block)
    if zero_point is not None:
        zero_point = moved(lambda z: spread(z, x.shape, axis, block), zero_point)
    precision = at_least_single(scale.dtype)
    return (centred(x, zero_point, precision) * scale.to(precision)).to(result)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x`` in uint8 on the grid that just covers it and 0; its scale; its zero point.

    The scale is differentiable, the zero point is not. Of an ``x`` that is all 0 the scale is 1, as in ONNX Runtime
    (ONNX divides by 0 there).
    """
    return quantize_dynamically(x)


def quantize_dynamically(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``dynamic_quantize_linear``."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    width = high - low
    scale = torch.where(width == 0, 1.0, width / 255)
    precision = at_least_single(x.dtype)
    zero_point = snap((-low / scale).detach().to(precision), Grid(UINT8))
    return snap((x / scale).to(precision), Grid(UINT8), zero_point), scale, zero_point
