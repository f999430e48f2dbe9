"""com.microsoft: products of quantized matrices as ONNX Runtime's quantizer and optimizer write them."""

from __future__ import annotations

import torch

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.grid import at_least_single
from nnfuzz.onnx.ops.quantized import quantize_dynamically
from nnfuzz.onnx.ops.quantized_linear import by_row, integer_matmul, ratio, requantize
from nnfuzz.onnx.ops.registry import Call, operator


def integer_matmul_to_float(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    a_zero: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    """``((a - a_zero) @ (b - b_zero)) * a_scale * b_scale``, the sums exact; what belongs to b may be by column."""
    precision = at_least_single(a_scale.dtype)
    scale = by_row(a_scale).to(precision) * b_scale.to(precision)
    return (integer_matmul(a, b, a_zero, b_zero).to(precision) * scale).to(a_scale.dtype)


@operator("MatMulIntegerToFloat", domain=MS)
def matmul_integer_to_float(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    a_zero: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """MatMulInteger, Cast, Mul and Add in one."""
    y = integer_matmul_to_float(a, b, a_scale, b_scale, a_zero, b_zero)
    return y if bias is None else y + bias


@operator("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``a`` in floats, quantized on the spot, times the quantized ``b``."""
    q, scale, zero = quantize_dynamically(a)
    y = integer_matmul_to_float(q, b, scale, b_scale, zero, b_zero)
    return y if bias is None else y + bias


@operator("MatMulInteger16", domain=MS)
def matmul_integer16(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product of integers of 16 bits in int32."""
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64).to(torch.int32)


@operator("QGemm", domain=MS)
def qgemm(
    call: Call,
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor,
    c: torch.Tensor | None = None,
    y_scale: torch.Tensor | None = None,
    y_zero: torch.Tensor | None = None,
) -> torch.Tensor:
    """``alpha`` A B + C of quantized matrices, quantized, or in floats without ``y_scale``.

    ``c`` is in int32 with scale ``alpha * a_scale * b_scale``; either matrix is transposed at will.
    """
    a = a.mT if call.attr("transA", 0) else a
    b = b.mT if call.attr("transB", 0) else b
    total = integer_matmul(a, b, a_zero, b_zero)
    total = total if c is None else total + c.to(total.dtype)
    alpha: float = call.attr("alpha", 1.0)
    if y_scale is None:
        precision = at_least_single(a_scale.dtype)
        return total.to(precision) * (alpha * a_scale.to(precision) * b_scale.to(precision))
    return requantize(total, alpha * ratio(a_scale, b_scale, y_scale), y_zero)
