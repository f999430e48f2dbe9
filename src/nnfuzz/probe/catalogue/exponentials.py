"""Operations whose result grows like exp: the argument against the logarithm of the dtype's maximum."""

import math

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import at_most, is_real, log_limit
from nnfuzz.probe.hazard import Call, Hazard

_ADVICE = "subtract the maximum before exp (softmax, logsumexp), use softplus for log(1 + exp), or clamp the argument"


def _bessel(call: Call) -> Tensor:
    """i0(x) grows like exp|x| / sqrt(2π|x|)."""
    x = call.real("self").abs()
    return log_limit(call.dtype("self")) + 0.5 * torch.log(2 * math.pi * x.clamp(min=1)) - x


HAZARDS = (
    Hazard("exp.overflow", ("exp", "expm1"), "self", "argument passes log(max)", "forward", "+inf",
           at_most("self", log_limit), _ADVICE, is_real("self")),
    Hazard("exp2.overflow", ("exp2",), "self", "argument passes log2(max)", "forward", "+inf",
           at_most("self", lambda d: log_limit(d) / math.log(2)), _ADVICE, is_real("self")),
    Hazard("sinh.overflow", ("sinh", "cosh"), "self", "argument passes log(2·max)", "forward", "+inf",
           at_most("self", lambda d: log_limit(d) + math.log(2), magnitude=True), "clamp the argument",
           is_real("self")),
    Hazard("i0.overflow", ("i0",), "self", "argument passes about log(max)", "forward", "+inf", _bessel,
           "use the exponentially scaled torch.special.i0e", is_real("self")),
)  # fmt: skip
