"""Operations that are defined on part of the line: log, div, sqrt, pow, gamma functions."""

import math

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import (
    Distance,
    above_minus_one,
    comes_near,
    finite_part,
    is_real,
    is_tensor,
    log_limit,
    nonnegative,
    nonzero,
    positive,
    wants_gradient,
)
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct, log_max

# ------------------------------------------------------------------------------------------------ log


def _log_slope(call: Call) -> Tensor:
    """1/x → overflow. Reached well before x is 0: at 2.9e-39 in float32."""
    return torch.minimum(positive("self")(call), call.magnitude("self").value + log_max(call.dtype("self")))


_LOGS = ("log", "log2", "log10")
_LOG_ADVICE = (
    "take the logarithm where it is made: log_softmax or logsigmoid of the logits instead of log(softmax) or "
    "log(sigmoid); otherwise clamp the operand to a positive number that its dtype can hold"
)


def _xlogy(call: Call) -> Tensor:
    x, y = call.raw("self"), call.raw("other")
    # 0 * log(0) is 0 here; only a negative y is beyond the edge then.
    zero = x.detach() == 0 if isinstance(x, Tensor) else torch.tensor(x == 0)
    if x is y:
        return nonnegative("other")(call)
    return torch.where(zero, nonnegative("other")(call), positive("other")(call))


# ------------------------------------------------------------------------------------------------ division


def _quotient_slope(call: Call) -> Tensor:
    """a/b² → overflow, the gradient by b."""
    a, b = call.magnitude("self").value, call.magnitude("other").value
    return torch.minimum(nonzero("other")(call), log_max(call.dtype("other")) - a + 2 * b)


def _power_slope(power: float) -> Distance:
    """|x|^-power → overflow, as a gradient."""

    def distance(call: Call) -> Tensor:
        m = call.magnitude("self")
        return torch.minimum(m.margin, log_max(call.dtype("self")) + power * m.value)

    return distance


# ------------------------------------------------------------------------------------------------ pow


def _exponent(call: Call) -> Tensor:
    e = call.raw("exponent")
    return e.detach().to(torch.float64) if isinstance(e, Tensor) else torch.tensor(float(e), dtype=torch.float64)


def _base_is_tensor(call: Call) -> bool:
    return is_real("self")(call)


def _pow_zero_applies(call: Call) -> bool:
    return _base_is_tensor(call) and bool((_exponent(call) < 0).any())


def _pow_zero(call: Call) -> Tensor:
    return torch.where(_exponent(call) < 0, nonzero("self")(call), math.inf)


def _fractional(call: Call) -> Tensor:
    e = _exponent(call)
    return e != e.round()


def _pow_negative(call: Call) -> Tensor:
    return torch.where(_fractional(call), nonnegative("self")(call), math.inf)


def _pow_overflow(call: Call) -> Tensor:
    """exponent · log|base| → log of the maximum; differentiable in whichever of them is a tensor."""
    name = "self" if call.has("self") else "exponent"
    exponent = call.real("exponent")
    base = call.magnitude("self").value
    return finite_part(call.raw(name), log_limit(call.dtype(name)) - exponent * base)


def _pow_overflow_applies(call: Call) -> bool:
    if call.has("self") and not call.raw("self").is_complex():
        e = call.raw("exponent")
        return isinstance(e, Tensor) or (abs(e) > 1 and (e < 0 or comes_near(call, "self", e)))
    base = call.raw("self")
    return isinstance(base, float | int) and base > 0 and base != 1 and is_real("exponent")(call)


def _pow_slope_applies(call: Call) -> bool:
    e = _exponent(call)
    return wants_gradient("self")(call) and _base_is_tensor(call) and bool(((e < 1) & (e != 0)).any())


def _pow_slope(call: Call) -> Tensor:
    """e·x^(e−1) → overflow for e < 1; at 0 it is infinite however close to 1 the exponent."""
    e, m = _exponent(call), call.magnitude("self")
    slope = log_max(call.dtype("self")) - e.abs().clamp(min=1e-300).log() - (e - 1) * m.value
    return torch.where((e < 1) & (e != 0), torch.minimum(m.margin.to(slope.dtype), slope), math.inf).to(m.value.dtype)


# ------------------------------------------------------------------------------------------------ sqrt of a difference


def _difference(call: Call) -> tuple[Tensor, Tensor, Tensor] | None:
    """(difference, minuend, subtrahend) where the operand of a root is a − b (+ a number) with a, b >= 0, as in
    E[x²] − E[x]²."""
    t: Tensor = call.raw("self")
    made = call.maker("self")
    if made is not None and made[0] == "add" and not isinstance(made[1][1], Tensor):
        t = made[1][0]
        made = call.maker_of(t)
    if made is None or made[0] != "sub":
        return None
    a, b = made[1][0], made[1][1]
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return None
    squared = call.maker_of(b)
    if squared is None or squared[0] not in ("mul", "pow", "square"):
        return None
    return t, a, b


def _cancellation(call: Call) -> Tensor:
    """|a − b| → rounding error of a. Nearer than that the sign of the difference is chance."""
    found = _difference(call)
    assert found is not None
    t, a, _ = found
    gap = direct(t.clone()).value - direct(a.clone()).value - math.log(torch.finfo(a.dtype).eps)
    # Chance decides from here on; reached is only what has really come out negative.
    negative = call.raw("self").detach() < 0
    return torch.where(negative, call.real("self"), gap + (0.5 - gap).clamp(min=0).detach())


# ------------------------------------------------------------------------------------------------ gamma functions


def _pole(call: Call) -> Tensor:
    """Distance to the nearest of 0, −1, −2, …"""
    x = call.real("self")
    pole = x.detach().round().clamp(max=0)
    gap = x - pole
    return direct(gap).margin


HAZARDS = (
    Hazard("log.zero", _LOGS, "self", "operand reaches 0 or below", "forward", "-inf", positive("self"), _LOG_ADVICE,
           is_tensor("self")),
    Hazard("log.small", _LOGS, "self", "1/operand overflows in the gradient", "backward", "+inf", _log_slope,
           _LOG_ADVICE, wants_gradient("self")),
    Hazard("log1p.edge", ("log1p",), "self", "operand reaches −1", "forward", "-inf", above_minus_one("self"),
           "clamp the operand above −1, or use softplus / log_softmax if it is a saturated probability",
           is_real("self")),
    Hazard("xlogy.zero", ("xlogy",), "other", "second operand reaches 0 while the first is not 0", "forward", "-inf",
           _xlogy, "clamp the second operand to a positive number that its dtype can hold", is_real("other")),
    Hazard("div.zero", ("div", "remainder", "fmod", "floor_divide"), "other", "divisor reaches 0", "forward", "+inf",
           nonzero("other"), "keep the divisor away from 0: add or clamp to an eps that its dtype can hold",
           is_tensor("other")),
    Hazard("div.small", ("div",), "other", "dividend/divisor² overflows in the gradient", "backward", "+inf",
           _quotient_slope, "clamp the divisor well above the square root of the smallest number of its dtype",
           wants_gradient("other")),
    Hazard("addcdiv.zero", ("addcdiv",), "tensor2", "divisor reaches 0", "forward", "+inf", nonzero("tensor2"),
           "keep the divisor away from 0", is_tensor("tensor2")),
    Hazard("reciprocal.zero", ("reciprocal",), "self", "operand reaches 0", "forward", "+inf", nonzero("self"),
           "keep the operand away from 0: add or clamp to an eps that its dtype can hold", is_tensor("self")),
    Hazard("reciprocal.small", ("reciprocal",), "self", "1/operand² overflows in the gradient", "backward", "-inf",
           _power_slope(2.0), "clamp the operand well above the square root of the smallest number of its dtype",
           wants_gradient("self")),
    Hazard("sqrt.negative", ("sqrt",), "self", "operand falls below 0", "forward", "nan", nonnegative("self"),
           "clamp the operand at 0, or compute a variance as mean((x − mean)²)", is_real("self")),
    Hazard("sqrt.zero", ("sqrt",), "self", "operand reaches 0, where the slope is infinite", "backward", "+inf",
           positive("self"), "add a small eps inside the root, or use torch.linalg.vector_norm",
           wants_gradient("self")),
    Hazard("sqrt.cancellation", ("sqrt", "rsqrt"), "self", "a difference of nearly equal numbers turns negative",
           "forward", "nan", _cancellation, "compute the variance in two passes, mean((x − mean)²), or clamp it at 0",
           lambda call: is_real("self")(call) and _difference(call) is not None),
    Hazard("rsqrt.zero", ("rsqrt",), "self", "operand reaches 0 or below", "forward", "+inf", positive("self"),
           "add eps inside, not behind: rsqrt(x + eps)", is_real("self")),
    Hazard("rsqrt.small", ("rsqrt",), "self", "operand^-1.5 overflows in the gradient", "backward", "-inf",
           _power_slope(1.5), "clamp before the root, not after it: rsqrt(x.clamp(min=eps))", wants_gradient("self")),
    Hazard("pow.zero", ("pow",), "self", "base reaches 0 under a negative exponent", "forward", "+inf", _pow_zero,
           "keep the base away from 0", _pow_zero_applies),
    Hazard("pow.negative", ("pow",), "self", "base falls below 0 under a fractional exponent", "forward", "nan",
           _pow_negative, "clamp the base at a small positive number",
           lambda call: _base_is_tensor(call) and bool(_fractional(call).any())),
    Hazard("pow.overflow", ("pow",), "self", "the power passes the largest number", "forward", "+inf", _pow_overflow,
           "scale the base down first, or stay in log space", _pow_overflow_applies),
    Hazard("pow.small", ("pow",), "self", "base near 0 under an exponent below 1: infinite slope", "backward", "+inf",
           _pow_slope, "add eps to the base inside the power, or work in log space", _pow_slope_applies),
    Hazard("gamma.pole", ("lgamma", "digamma", "polygamma"), "self", "operand reaches 0 or a negative integer",
           "forward", "+inf", _pole, "keep the operand positive: softplus(x) + eps", is_real("self")),
)  # fmt: skip
