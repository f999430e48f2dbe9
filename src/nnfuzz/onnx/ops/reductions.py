"""Reductions over axes, the places of extremes, running sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nnfuzz.onnx.ops.narrow import wide
from nnfuzz.onnx.ops.registry import Call, operator

Dims = tuple[int, ...]
_FROM_INPUT = {"ReduceSum": 13}
"""Opset from which the axes are an input; 18 for the operators that are not here."""


def _amax(x: Tensor, dims: Dims) -> Tensor:
    return torch.amax(x, dims) if _filled(x, dims) else x.new_full(_left(x, dims), _least(x.dtype))


def _amin(x: Tensor, dims: Dims) -> Tensor:
    return torch.amin(x, dims) if _filled(x, dims) else x.new_full(_left(x, dims), _greatest(x.dtype))


def _filled(x: Tensor, dims: Dims) -> bool:
    return all(x.shape[d] for d in dims)


def _left(x: Tensor, dims: Dims) -> list[int]:
    return [n for d, n in enumerate(x.shape) if d not in dims]


def _least(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return float("-inf")
    return 0 if dtype is torch.bool else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return float("inf")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def _prod(x: Tensor, dims: Dims) -> Tensor:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, dtype=x.dtype)
    return x


def _sum(x: Tensor, dims: Dims) -> Tensor:
    return torch.sum(x, dims, dtype=x.dtype)


def _mean(x: Tensor, dims: Dims) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, dims)
    count = math.prod(x.shape[d] for d in dims)
    return torch.div(_sum(x, dims), count, rounding_mode="trunc")


def _l2(x: Tensor, dims: Dims) -> Tensor:
    if x.is_floating_point():
        norm: Tensor = torch.linalg.vector_norm(x, 2, dims)
        return norm
    return torch.sqrt(_sum(torch.square(x).double(), dims)).to(x.dtype)


def _real(function: Callable[[Tensor, Dims], Tensor]) -> Callable[[Tensor, Dims], Tensor]:
    """Integers are computed with as doubles."""

    def of_any(x: Tensor, dims: Dims) -> Tensor:
        return function(x if x.is_floating_point() else x.double(), dims).to(x.dtype)

    return of_any


_REDUCE: dict[str, Callable[[Tensor, Dims], Tensor]] = {
    "ReduceL1": lambda x, dims: _sum(torch.abs(x), dims),
    "ReduceL2": _l2,
    "ReduceLogSum": _real(lambda x, dims: torch.log(torch.sum(x, dims))),
    "ReduceLogSumExp": _real(torch.logsumexp),
    "ReduceMax": _amax,
    "ReduceMean": _mean,
    "ReduceMin": _amin,
    "ReduceProd": _prod,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, dims: _sum(torch.square(x), dims),
}


@operator(*_REDUCE)
def reduce(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """A reduction over the given axes, over all without any; with ``noop_with_empty_axes`` over none then, which
    leaves the elementwise part (the square of a sum of squares). Of an empty set: 0, 1, −∞ or ∞, or the least or
    greatest integer."""
    given = call.attr("axes") if axes is None else [int(a) for a in axes]
    if call.version < _FROM_INPUT.get(call.op, 18):
        given = call.attr("axes")
    function, values = _REDUCE[call.op], wide(x)
    if not given and call.attr("noop_with_empty_axes", 0):
        return function(values.unsqueeze(-1), (x.dim(),)).to(x.dtype)
    dims = tuple(sorted({a % x.dim() for a in given})) if given else tuple(range(x.dim()))
    if not dims:  # a single number
        return function(values.reshape(1), (0,)).to(x.dtype)
    reduced = function(values, dims)
    if call.attr("keepdims", 1):
        reduced = reduced.reshape([1 if d in dims else n for d, n in enumerate(x.shape)])
    return reduced.to(x.dtype)


@operator("ArgMax", "ArgMin")
def place_of_extreme(call: Call, x: Tensor) -> Tensor:
    """Index of the greatest or least element along an axis: the first of equal ones, or the last."""
    axis, keep = int(call.attr("axis", 0)), bool(call.attr("keepdims", 1))
    function = torch.argmax if call.op == "ArgMax" else torch.argmin
    x = wide(x)
    if call.attr("select_last_index", 0):
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)
    return function(x, axis, keepdim=keep)


@operator("CumSum", "CumProd")
def running(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    """Sum or product of all elements up to each along an axis, with ``exclusive`` without itself, from either end."""
    dim, values = int(axis), wide(x)
    backward = bool(call.attr("reverse", 0))
    if backward:
        values = values.flip(dim)
    if call.attr("exclusive", 0) and x.shape[dim]:
        first = torch.full_like(values.narrow(dim, 0, 1), 0 if call.op == "CumSum" else 1)
        values = torch.cat([first, values.narrow(dim, 0, x.shape[dim] - 1)], dim)
    function = torch.cumsum if call.op == "CumSum" else torch.cumprod
    result = function(values, dim, dtype=values.dtype)
    return (result.flip(dim) if backward else result).to(x.dtype)
