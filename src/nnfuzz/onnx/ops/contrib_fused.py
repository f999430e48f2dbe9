"""com.microsoft: products, convolutions and activations that ONNX Runtime's optimizer fuses."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional as F

from nnfuzz.onnx.ops.convolution import conv
from nnfuzz.onnx.ops.matrices import gemm
from nnfuzz.onnx.ops.pooling import max_pool
from nnfuzz.onnx.ops.recurrent_cells import ACTIVATIONS, ALPHA, BETA
from nnfuzz.onnx.ops.registry import Call, operator

MS = "com.microsoft"


def fused_activation(call: Call, x: torch.Tensor, first: float | None, second: float | None) -> torch.Tensor:
    """The activation that the node names, if any, with up to two parameters."""
    name = call.attr("activation", "").lower()
    if not name:
        return x
    if name == "clip":
        return x.clamp(first, second)
    if name in ("gelu", "hardswish"):
        return F.gelu(x) if name == "gelu" else F.hardswish(x)
    if name not in ACTIVATIONS:
        raise call.unsupported(f"the activation {name!r}")
    a, b = ALPHA.get(name) if first is None else first, BETA.get(name) if second is None else second
    return ACTIVATIONS[name](x, a or 0.0, b or 0.0)


@operator("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MS)
def fused_matmul(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``alpha`` A B, either matrix transposed at will.

    ``transBatch`` of a factor says that its second axis from the end stands first, before the axes of the batch.
    """
    a, b = _oriented(call, a, "A"), _oriented(call, b, "B")
    alpha: float = call.attr("alpha", 1.0)
    product = torch.matmul(a, b)
    product = product if alpha == 1 else alpha * product
    return fused_activation(call, product, call.attr("activation_alpha"), call.attr("activation_beta"))


def _oriented(call: Call, x: torch.Tensor, side: str) -> torch.Tensor:
    if call.attr(f"transBatch{side}", 0):
        x = x.movedim(0, -2)
    return x.transpose(-2, -1) if call.attr(f"trans{side}", 0) and x.ndim > 1 else x


@operator("FusedGemm", domain=MS)
def fused_gemm(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """Gemm and an activation."""
    y = gemm(replace(call, version=13), a, b, c)
    return fused_activation(call, y, call.attr("activation_alpha"), call.attr("activation_beta"))


@operator("FusedConv", domain=MS)
def fused_conv(
    call: Call, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolution, a tensor added to it, and an activation."""
    y: torch.Tensor = conv(replace(call, op="Conv"), x, w, b)
    y = y if z is None else y + z
    first, second = [*(call.attr("activation_params") or ()), None, None][:2]
    return fused_activation(call, y, first, second)


@operator("NhwcFusedConv", "NhwcConv", domain=MS)
def nhwc_conv(
    call: Call, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """As FusedConv, channels last: x (N, d.., C), w (M, C/group, k..) → (N, e.., M)."""
    y: torch.Tensor = fused_conv(call, x.movedim(-1, 1), w, b, None if z is None else z.movedim(-1, 1))
    return y.movedim(1, -1)


@operator("NhwcMaxPool", domain=MS)
def nhwc_max_pool(call: Call, x: torch.Tensor) -> torch.Tensor:
    """MaxPool, channels last: x (N, d.., C) → (N, e.., C)."""
    y: torch.Tensor = max_pool(replace(call, outputs=("y",)), x.movedim(-1, 1))[0]
    return y.movedim(1, -1)


@operator("Gelu", domain=MS)
def gelu(call: Call, x: torch.Tensor) -> torch.Tensor:
    """x Φ(x)."""
    return F.gelu(x)


@operator("BiasGelu", domain=MS)
def bias_gelu(call: Call, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Gelu of ``x + bias``."""
    return F.gelu(x + bias)


@operator("FastGelu", domain=MS)
def fast_gelu(call: Call, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Gelu of ``x + bias`` by the formula with tanh."""
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("GemmFastGelu", domain=MS)
def gemm_fast_gelu(call: Call, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """FastGelu of ``x @ w + bias``."""
    y = torch.matmul(x, w)
    return F.gelu(y if bias is None else y + bias, approximate="tanh")


@operator("QuickGelu", domain=MS)
def quick_gelu(call: Call, x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(``alpha`` x)."""
    alpha: float = call.attr("alpha", 1.702)
    return x * torch.sigmoid(alpha * x)


@operator("BiasSplitGelu", domain=MS)
def bias_split_gelu(call: Call, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The left half of ``x + bias`` times Gelu of the right half: (N, S, D) → (N, S, D/2)."""
    left, right = (x + bias).chunk(2, -1)
    return left * F.gelu(right)


@operator("BiasAdd", domain=MS)
def bias_add(call: Call, x: torch.Tensor, bias: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """``x + bias + skip``."""
    return x + bias + skip


@operator("BiasSoftmax", domain=MS)
def bias_softmax(call: Call, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Softmax of ``x + bias`` over all axes from ``axis`` on together; ``bias`` broadcasts."""
    axis = call.attr("axis", 1) % x.ndim
    return torch.softmax((x + bias).flatten(axis), -1).reshape(x.shape)
