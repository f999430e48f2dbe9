"""Normalisation by statistics: batch, instance, layer, group and RMS; local response; Lp; mean and variance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator

EPSILON = 1e-5


def _channels(t: Tensor, x: Tensor) -> Tensor:
    """A value a channel, (C,), against x (N, C, *D)."""
    return t.reshape(-1, *[1] * (x.dim() - 2))


@operator("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...] | Tensor:
    """x (N, C, *D), the others (C,) → Y, and in training the running mean and variance (C,).

    Until opset 13 a node is in training when more than one output is wanted, and gives the batch's own statistics too;
    in opset 7 ``spatial=0`` has a statistic for every element of a sample.
    """
    eps, momentum = call.attr("epsilon", EPSILON), call.attr("momentum", 0.9)
    training = call.attr("training_mode", 0) if call.version >= 14 else any(call.outputs[1:])
    if call.version < 9 and not call.attr("spatial", 1):
        if training:
            raise call.unsupported("spatial=0 in training")
        return _normalised(x, mean, var, eps) * scale + b
    alike = {t.dtype for t in (x, scale, b, mean, var)} == {x.dtype}
    if not training and alike and not (mean.requires_grad or var.requires_grad):
        return F.batch_norm(x, mean, var, scale, b, eps=eps)
    wide = x.to(torch.promote_types(x.dtype, mean.dtype))
    running, batch = (mean, var), (mean, var)
    if training:
        batch_var, batch_mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        batch = batch_mean, batch_var
        running = tuple((old * momentum + new * (1 - momentum)).to(old.dtype)
                        for old, new in zip((mean, var), batch, strict=True))  # fmt: skip
    y = _normalised(wide, _channels(batch[0], x), _channels(batch[1], x), eps)
    y = (y * _channels(scale, x) + _channels(b, x)).to(x.dtype)
    return (y, *running) if call.version >= 14 else (y, *running, *batch)


def _normalised(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    return (x - mean) / torch.sqrt(var + eps)


@operator("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, b: Tensor) -> Tensor:
    """x (N, C, *D), scale and b (C,): each channel of each sample by its own statistics."""
    return F.group_norm(x, x.shape[1], scale, b, call.attr("epsilon", EPSILON))


@operator("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, b: Tensor) -> Tensor:
    """x (N, C, *D); scale and b have a value a group in opset 18, a value a channel from 21."""
    groups, eps = call.attr("num_groups"), call.attr("epsilon", EPSILON)
    if call.version < 21:
        each = x.shape[1] // groups
        scale, b = scale.repeat_interleave(each), b.repeat_interleave(each)
    return F.group_norm(x, groups, scale, b, eps)


def _stash(call: Call) -> torch.dtype:
    """The element type in which statistics are computed and put out."""
    return call.dtype(call.attr("stash_type", 1))


def _wide(call: Call, x: Tensor) -> Tensor:
    """x in the precision of the statistics; never narrower than x itself."""
    return x.to(torch.promote_types(x.dtype, _stash(call)))


@operator("LayerNormalization")
def layer_normalization(call: Call, x: Tensor, scale: Tensor, b: Tensor | None = None) -> tuple[Tensor, ...]:
    """x (*D) normalised over the axes from ``axis`` on → Y, Mean and InvStdDev (those axes are 1 there)."""
    axis = call.attr("axis", -1) % x.dim()
    shape, eps = list(x.shape[axis:]), call.attr("epsilon", EPSILON)
    wide, stash = _wide(call, x), _stash(call)
    if wide.dtype == x.dtype and list(scale.shape) == shape and (b is None or list(b.shape) == shape):
        y, mean, inverse = torch.native_layer_norm(x, shape, scale, b, eps)
    else:
        y, mean, inverse = torch.native_layer_norm(wide, shape, None, None, eps)
        y = y.to(x.dtype) * scale
        y = y if b is None else y + b
    return y, mean.to(stash), inverse.to(stash)


@operator("RMSNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    """x (*D) divided by its root mean square over the axes from ``axis`` on, then scaled."""
    axis = call.attr("axis", -1) % x.dim()
    normalised = F.rms_norm(_wide(call, x), list(x.shape[axis:]), None, call.attr("epsilon", EPSILON))
    return normalised.to(x.dtype) * scale


@operator("LRN")
def lrn(call: Call, x: Tensor) -> Tensor:
    """x (N, C, *D) divided by a power of the sum of squares over ``size`` neighbouring channels."""
    size = call.attr("size")
    before = (size - 1) // 2
    squares = F.pad((x * x).flatten(2) if x.dim() > 2 else (x * x)[..., None], [0, 0, before, size - 1 - before])
    total = squares.unfold(1, size, 1).sum(-1).reshape(x.shape)
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    return x / torch.pow(bias + alpha / size * total, beta)


@operator("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    """x divided by its 1- or 2-norm along one axis; a vector of zeros stays one."""
    norm: Tensor = torch.linalg.vector_norm(x, call.attr("p", 2), call.attr("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, 1, norm)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Tensor) -> Tensor:
    """(x − mean) / √variance over the axes.

    As ONNX's text and its runtime have it; ONNX's function body takes E[x²] − E[x]² instead, which is less exact.
    """
    variance, mean = torch.var_mean(x, list(call.attr("axes", [0, 2, 3])), correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance)
