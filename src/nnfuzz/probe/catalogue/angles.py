"""Inverse trigonometric and hyperbolic functions, their relatives, and their slopes at the ends."""

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import (
    inside_unit,
    is_real,
    strict_probability,
    wants_gradient,
    within_unit,
)
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct, log_below_one, log_max


def _above_one(call: Call) -> Tensor:
    return call.real("self") - 1 + torch.finfo(call.dtype("self")).eps / 4


def _strictly_above_one(call: Call) -> Tensor:
    gap = call.real("self") - 1
    return torch.where(gap.detach() <= 0, gap, direct(gap).value - log_below_one(call.dtype("self")))


def _pole_slope(call: Call) -> Tensor:
    """1 + tan² → overflow: |cos x| against 1/sqrt(max). Only float16 has numbers near enough to a pole."""
    return direct(call.real("self").cos()).value + 0.5 * log_max(call.dtype("self"))


def _both_zero(call: Call) -> Tensor:
    return torch.maximum(call.magnitude("self").margin, call.magnitude("other").margin)


def _clipped(call: Call) -> bool:
    return call.raw("eps") is None and is_real("self")(call)


_TANH = "clamp to 1 − eps with the eps of the dtype, or keep the value from before the tanh"

HAZARDS = (
    Hazard("acos.domain", ("acos", "asin"), "self", "|operand| passes 1", "forward", "nan", within_unit("self"),
           "clamp the operand to [−1, 1]; for an angle use atan2", is_real("self")),
    Hazard("acos.edge", ("acos", "asin"), "self", "|operand| reaches 1, where the slope is infinite", "backward",
           "+inf", inside_unit("self"), "use atan2(|v|, w), or clamp to 1 − 1e-7 (float32)", wants_gradient("self")),
    Hazard("atanh.edge", ("atanh", "erfinv"), "self", "|operand| reaches 1", "forward", "+inf", inside_unit("self"),
           _TANH, is_real("self")),
    Hazard("acosh.domain", ("acosh",), "self", "operand falls below 1", "forward", "nan", _above_one,
           "clamp the operand at 1 + eps", is_real("self")),
    Hazard("acosh.edge", ("acosh",), "self", "operand reaches 1, where the slope is infinite", "backward", "+inf",
           _strictly_above_one, "clamp the operand at 1 + eps", wants_gradient("self")),
    Hazard("logit.edge", ("logit", "special_ndtri"), "self", "operand reaches 0 or 1", "forward", "-inf",
           strict_probability("self"), "give logit its eps, or keep the logits themselves", _clipped),
    Hazard("tan.pole", ("tan",), "self", "argument comes near π/2 and the slope overflows", "backward", "+inf",
           _pole_slope, "bound the angle away from π/2, or compute in float32",
           lambda call: wants_gradient("self")(call) and call.dtype("self") is torch.float16),
    Hazard("hypot.zero", ("hypot",), "self", "both operands reach 0", "backward", "nan", _both_zero,
           "use torch.linalg.vector_norm of the stacked operands: its gradient at 0 is 0",
           lambda call: is_real("self")(call) and (wants_gradient("self")(call) or wants_gradient("other")(call))),
)  # fmt: skip
