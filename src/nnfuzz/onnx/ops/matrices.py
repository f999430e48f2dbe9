"""Products of matrices, determinants, triangles."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.onnx.ops.narrow import moved, wide
from nnfuzz.onnx.ops.registry import Call, operator


@operator("MatMul")
def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Product as of ``numpy.matmul``."""
    return torch.matmul(wide(a), wide(b)).to(a.dtype)


@operator("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """``alpha`` A B + ``beta`` C with either matrix transposed at will; C broadcasts to the product."""
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if not a.is_floating_point():
        alpha, beta = int(alpha), int(beta)
    left, right = wide(a.T if call.attr("transA", 0) else a), wide(b.T if call.attr("transB", 0) else b)
    if c is not None:
        return torch.addmm(wide(c), left, right, alpha=alpha, beta=beta).to(a.dtype)
    product = torch.mm(left, right)
    return (product if alpha == 1 else torch.mul(product, alpha)).to(a.dtype)


@operator("Einsum")
def einsum(call: Call, *operands: Tensor) -> Tensor:
    """Einstein summation."""
    return torch.einsum(call.attrs["equation"], *map(wide, operands)).to(operands[0].dtype)


@operator("Det")
def det(call: Call, x: Tensor) -> Tensor:
    """Determinant of the last two axes."""
    result: Tensor = torch.linalg.det(x)
    return result


@operator("Trilu")
def triangle(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    """The upper (or lower) triangle of the last two axes, from diagonal ``k`` on; the rest is 0."""
    diagonal = 0 if k is None else int(k)
    if call.attr("upper", 1):
        return moved(lambda t: torch.triu(t, diagonal), x)
    return moved(lambda t: torch.tril(t, diagonal), x)


@operator("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    """1 on diagonal ``k``, 0 elsewhere, in the shape of a matrix."""
    code = call.attr("dtype")
    dtype = x.dtype if code is None else call.dtype(code)
    rows, columns = torch.arange(x.shape[0], device=x.device), torch.arange(x.shape[1], device=x.device)
    return torch.eq(columns - rows[:, None], call.attr("k", 0)).to(dtype)
