"""Sums and products that pass the largest number of a half-precision dtype, casts, and eps constants that vanish."""

import math

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import finite_part, is_half, is_near, log_limit, not_too_large
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct, log_zero

# In float32 and float64 these need magnitudes of 1e38: products and quotients are looked at for that, sums, matrix
# products and convolutions are not, since it would cost another pass over every activation. The result, not the
# operands, is compared: that is the layer's headroom.
_HALF = is_half("out")


def _product(call: Call) -> bool:
    """Products of many factors overflow in any dtype."""
    return call.has("out") and not call.raw("out").is_complex()


def _target(call: Call) -> torch.dtype | None:
    dtype = call.raw("dtype")
    return dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else None


def _narrows(call: Call) -> bool:
    dtype = _target(call)
    if dtype is None or not call.has("self") or call.raw("self").is_complex():
        return False
    # bfloat16 has the range of float32 but for the last half per cent: not worth a reading at every autocast.
    return 2 * torch.finfo(dtype).max < torch.finfo(call.dtype("self")).max


def _cast(call: Call) -> Tensor:
    dtype = _target(call)
    assert dtype is not None
    return finite_part(call.raw("self"), log_limit(dtype) - call.magnitude("self").value)


def _constant_cast(call: Call) -> bool:
    """One-element tensors only: in an activation map zeros and near-zeros are ordinary."""
    dtype = _target(call)
    if dtype is None or not call.has("self") or call.raw("self").numel() != 1 or call.raw("self").is_complex():
        return False
    return torch.finfo(dtype).tiny > torch.finfo(call.dtype("self")).tiny


def _cast_to_zero(call: Call) -> Tensor:
    dtype = _target(call)
    assert dtype is not None
    x: Tensor = call.raw("self")
    return torch.where(x.detach() == 0, math.inf, direct(call.real("self")).value - log_zero(dtype))


def _eps_name(call: Call) -> str:
    return "min" if call.raw("min") is not None else "other"


def _eps(call: Call) -> float | None:
    value = call.raw(_eps_name(call))
    return float(value) if isinstance(value, float) and value != 0 else None


def _eps_lost(call: Call) -> bool:
    """A small constant that the tensor's dtype rounds to 0."""
    eps = _eps(call)
    return call.has("self") and eps is not None and float(torch.tensor(eps, dtype=call.dtype("self"))) == 0


def _eps_distance(call: Call) -> Tensor:
    eps = _eps(call)
    assert eps is not None
    return torch.tensor(math.log(abs(eps)) - log_zero(call.dtype("self")))


_SCALE = "scale the operands down, keep this operation in float32, or use bfloat16"

HAZARDS = (
    Hazard("matmul.overflow", ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "addbmm"), "out",
           "result passes the largest number", "forward", "+inf", not_too_large("out"), _SCALE, _HALF),
    Hazard("conv.overflow", ("convolution", "mkldnn_convolution", "_convolution"), "out",
           "result passes the largest number", "forward", "+inf", not_too_large("out"), _SCALE, _HALF),
    Hazard("mul.overflow", ("mul", "square", "addcmul"), "out", "result passes the largest number", "forward", "+inf",
           not_too_large("out"), _SCALE, is_near("out")),
    Hazard("div.overflow", ("div", "reciprocal"), "out", "quotient passes the largest number", "forward", "+inf",
           not_too_large("out"), "keep the divisor away from 0", is_near("out")),
    Hazard("add.overflow", ("add", "sub", "rsub"), "out", "result passes the largest number", "forward", "+inf",
           not_too_large("out"), _SCALE, _HALF),
    Hazard("sum.overflow", ("sum", "cumsum", "index_add", "scatter_add"), "out", "result passes the largest number",
           "forward", "+inf", not_too_large("out"), _SCALE, _HALF),
    Hazard("prod.overflow", ("prod", "cumprod"), "out", "product passes the largest number", "forward", "+inf",
           not_too_large("out"), "sum the logarithms instead", _product),
    Hazard("to.overflow", ("_to_copy",), "self", "value does not fit the narrower dtype", "forward", "+inf", _cast,
           "clamp to the target's finfo.max before the cast, or scale", _narrows),
    Hazard("to.underflow", ("_to_copy",), "self", "a constant becomes 0 in the narrower dtype", "forward", "zero",
           _cast_to_zero, "choose a constant that the dtype can hold", _constant_cast),
    Hazard("eps.lost", ("clamp", "clamp_min", "add", "maximum"), "self", "the added or clamped eps is 0 in this dtype",
           "forward", "zero", _eps_distance, "use an eps of at least finfo(dtype).tiny, or compute in float32",
           _eps_lost),
)  # fmt: skip
