"""Softmax and its relatives, statistics and norms: operations that fail by rows, by counts or by scale."""

import math

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import comes_near, finite_part, is_real, log_limit, not_too_large, wants_gradient
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct

# Counts above this are not worth a reading: nobody steers a mean over thousands to a mean over nothing.
_FEW = 32


# ------------------------------------------------------------------------------------------------ all −inf rows


def _masked_row(call: Call) -> Tensor:
    """Per row: how many entries are not −inf, and how far the largest is above the smallest number of the dtype."""
    x = call.real("self")
    dim = _dims(call, x)
    top = x.amax(dim)
    left = (x.detach() > -math.inf).sum(dim)
    room = torch.where(top.detach().isinf(), 1.0, top + torch.finfo(call.dtype("self")).max)
    return torch.where(left == 0, 0.0, torch.minimum(room, left.to(room.dtype)))


def _can_be_masked(call: Call) -> bool:
    """Some entry is −inf now, or the dtype is so narrow that finfo.min plus a score rounds to −inf."""
    if not is_real("self")(call) or call.raw("self").dim() == 0:
        return False
    return call.dtype("self") is torch.float16 or float(call.raw("self").detach().amin()) == -math.inf


def _dims(call: Call, x: Tensor) -> list[int]:
    dim = call.raw("dim")
    if dim is None:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim) or list(range(x.dim()))


def _pair_masked(call: Call) -> Tensor:
    top = torch.maximum(call.real("self"), call.real("other"))
    return torch.where(top.detach() == -math.inf, 0.0, top + torch.finfo(call.dtype("self")).max)


# ------------------------------------------------------------------------------------------------ counts


def _count(call: Call) -> int:
    t: Tensor = call.raw("self")
    dims = _dims(call, t)
    return math.prod(t.shape[d] for d in dims) if t.dim() else 1


def _degrees(call: Call) -> Tensor:
    correction = call.raw("correction", 1)
    unbiased = call.raw("unbiased", True)
    return torch.tensor(_count(call) - float(correction if unbiased else 0))


def _few(call: Call) -> bool:
    t = call.raw("self")
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()) and _count(call) <= _FEW


# ------------------------------------------------------------------------------------------------ scale


def _spread(call: Call) -> Tensor:
    """log of (x − mean)² against the maximum: a variance overflows long before its operand."""
    x = call.real("self")
    away = x - x.mean(_dims(call, x), keepdim=True).detach()
    return finite_part(call.raw("self"), log_limit(call.dtype("self")) - 2 * direct(away).value)


def _inner_dtype(call: Call) -> bool:
    """float16 is normalised in float32 inside, where its squares cannot overflow; all others can."""
    return (
        is_real("input")(call)
        and call.dtype("input") is not torch.float16
        and comes_near(call, "input", 2.0, torch.float32)
    )


def _norm(call: Call) -> Tensor:
    """log‖x‖ against the maximum; outside float16 the sum of squares comes first."""
    x = call.real("self")
    if call.dtype("self") is torch.float16:
        size = torch.linalg.vector_norm(x, dim=_dims(call, x))
        return log_limit(torch.float16) - direct(size).value
    return finite_part(call.raw("self"), 0.5 * log_limit(x.dtype) - call.magnitude("self").value)


def _row_spread(call: Call) -> Tensor:
    """log of the variance of each normalised group, above the level where it is 0."""
    x = call.real("input")
    shape = call.raw("normalized_shape")
    if shape is None:  # group_norm
        rows = x.reshape(x.shape[0], int(call.raw("group")), -1)
        away = rows - rows.mean(-1, keepdim=True)
        return direct(away.abs().amax(-1)).margin
    dims = list(range(x.dim() - len(shape), x.dim()))
    return direct((x - x.mean(dims, keepdim=True)).abs().amax(dims)).margin


def _eps_is_nothing(call: Call) -> bool:
    return is_real("input")(call) and float(call.raw("eps", 1.0)) == 0


def _eps_is_lost(call: Call) -> bool:
    """1/sqrt(eps) passes the maximum of float16: the gradient of a constant row is infinite."""
    if not wants_gradient("input")(call) or call.dtype("input") is not torch.float16:
        return False
    return 0 < float(call.raw("eps", 1.0)) < torch.finfo(torch.float16).max ** -2


def _row_size(call: Call) -> Tensor:
    """Weight normalisation: ‖v‖ of each row against 0."""
    v = call.real("v")
    kept = int(call.raw("dim", 0)) % v.dim()
    return direct(v.abs().amax([d for d in range(v.dim()) if d != kept])).margin


_MASK_ADVICE = "leave at least one entry unmasked per row; combine masks with where or maximum, not by adding them"

HAZARDS = (
    Hazard("softmax.masked", ("_softmax", "_log_softmax"), "self", "every entry of a row is −inf", "forward", "nan",
           _masked_row, _MASK_ADVICE, _can_be_masked),
    Hazard("logsumexp.masked", ("logsumexp", "logcumsumexp"), "self", "every entry of a row is −inf", "backward",
           "nan", _masked_row, _MASK_ADVICE, lambda c: wants_gradient("self")(c) and _can_be_masked(c)),
    Hazard("logaddexp.masked", ("logaddexp",), "self", "both operands are −inf", "backward", "nan", _pair_masked,
           _MASK_ADVICE, lambda c: wants_gradient("self")(c) and (_can_be_masked(c))),
    Hazard("var.single", ("var", "std", "var_mean", "std_mean"), "self", "as few elements as the correction takes off",
           "forward", "nan", _degrees, "use correction=0, or leave out batches of one", _few),
    Hazard("mean.empty", ("mean", "nanmean", "median"), "self", "no element is left", "forward", "nan",
           lambda call: torch.tensor(float(_count(call))), "divide the sum by max(count, 1)", _few),
    Hazard("var.overflow", ("var", "std", "var_mean", "std_mean"), "self", "squared deviation passes the maximum",
           "forward", "+inf", _spread, "scale the operand down, or compute the statistic in float32",
           lambda call: is_real("self")(call) and call.raw("self").dim() > 0 and comes_near(call, "self", 2.0)),
    Hazard("norm.overflow", ("linalg_vector_norm", "norm"), "self", "sum of squares passes the maximum", "forward",
           "+inf", _norm, "divide by the largest entry before taking the norm",
           lambda call: (
               is_real("self")(call) and call.raw("ord", call.raw("p", 2)) == 2 and comes_near(call, "self", 2.0)
           )),
    Hazard("layer_norm.overflow", ("native_layer_norm", "native_group_norm"), "input",
           "sum of squares passes the maximum", "forward", "nan", not_too_large("input", 2.0, torch.float32),
           "keep activations below the square root of the largest number", _inner_dtype),
    Hazard("layer_norm.constant", ("native_layer_norm", "native_group_norm"), "input",
           "a group is constant and eps is 0", "forward", "nan",
           _row_spread, "give the normalisation an eps that its dtype can hold", _eps_is_nothing),
    Hazard("layer_norm.eps", ("native_layer_norm", "native_group_norm"), "input",
           "a group is constant and 1/sqrt(eps) overflows", "forward", "+inf", _row_spread,
           "raise eps to 1e-5 or normalise in float32", _eps_is_lost),
    Hazard("weight_norm.zero", ("_weight_norm_interface",), "v", "a row of the direction is 0", "forward", "nan",
           _row_size, "start weight-normalised layers away from 0", is_real("v")),
)  # fmt: skip
