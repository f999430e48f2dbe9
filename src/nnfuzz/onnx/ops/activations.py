"""Activation functions, and softmax in its two meanings."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from nnfuzz.onnx.ops.registry import Call, operator

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "HardSwish": F.hardswish, "Mish": F.mish, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Softsign": F.softsign,
    "Tanh": torch.tanh,
}  # fmt: skip


@operator(*_PLAIN)
def plain(call: Call, x: Tensor) -> Tensor:
    """An activation without settings."""
    return _PLAIN[call.op](x)


@operator("Softplus")
def softplus(call: Call, x: Tensor) -> Tensor:
    """log(1 + exp(x)), which torch computes as x beyond 20; the difference is below 3e-9."""
    return F.softplus(x)


@operator("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Tensor:
    """x, or ``alpha`` x below 0."""
    return F.leaky_relu(x, call.attr("alpha", 0.01))


@operator("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """x, or slope x below 0; the slope broadcasts to x."""
    return torch.relu(x) + slope * torch.clamp(x, max=0)


@operator("Elu")
def elu(call: Call, x: Tensor) -> Tensor:
    """x, or ``alpha`` (exp(x) − 1) below 0."""
    return F.elu(x, call.attr("alpha", 1.0))


@operator("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    """``gamma`` times elu; the defaults are those of Klambauer et al., 2017."""
    gamma = float(call.attr("gamma", 1.0507009873554805))
    return gamma * F.elu(x, call.attr("alpha", 1.6732632423543772))


@operator("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    """max(0, x) + min(0, ``alpha`` (exp(x / alpha) − 1))."""
    return F.celu(x, call.attr("alpha", 1.0))


@operator("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    """x Φ(x), exactly or by the tanh formula."""
    return F.gelu(x, approximate=call.attr("approximate", "none"))


@operator("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    """``alpha`` x + ``beta``, between 0 and 1."""
    return torch.clamp(call.attr("alpha", 0.2) * x + call.attr("beta", 0.5), 0, 1)


@operator("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    """x · sigmoid(``alpha`` x)."""
    alpha = float(call.attr("alpha", 1.0))
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@operator("SwiGLU")
def swiglu(call: Call, gate: Tensor, value: Tensor) -> Tensor:
    """The swish of the gate times the value."""
    return torch.mul(swish(call, gate), value)


@operator("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    """x where it is above ``alpha``, else 0."""
    return torch.where(x > call.attr("alpha", 1.0), x, torch.zeros_like(x))


@operator("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """x moved by ``bias`` toward 0 where it lies beyond ±``lambd``, else 0."""
    edge, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    outside = torch.where(x > edge, x - bias, torch.zeros_like(x))
    return torch.where(x < -edge, x + bias, outside)


@operator("Softmax", "LogSoftmax")
def softmax(call: Call, x: Tensor) -> Tensor:
    """Along one axis; before opset 13 over all axes from ``axis`` on together."""
    function = torch.softmax if call.op == "Softmax" else torch.log_softmax
    if call.version >= 13:
        return function(x, call.attr("axis", -1))
    return function(_flat(x, call.attr("axis", 1)), 1).reshape(x.shape)


@operator("Hardmax")
def hardmax(call: Call, x: Tensor) -> Tensor:
    """1 at the first greatest element, 0 elsewhere, along what softmax goes along."""
    axis = call.attr("axis", -1 if call.version >= 13 else 1)
    rows, axis = (x, axis) if call.version >= 13 else (_flat(x, axis), 1)
    first = rows.argmax(axis, keepdim=True)
    return torch.zeros_like(rows).scatter(axis, first, 1.0).reshape(x.shape)


def _flat(x: Tensor, axis: int) -> Tensor:
    """The matrix of all axes before ``axis`` by all from it on."""
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
