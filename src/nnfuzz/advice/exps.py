"""exp that overflows: the form that subtracts the maximum, by what is done with the result; else a clamp."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add

_HEADROOM = 4.0  # clamp exp's argument this far below the logarithm of the largest number: sums of fifty still fit


def _exp_sum(t: Any, here: Here, failing: bool) -> tuple[TorchCall, TorchCall] | None:
    """(the sum, the exp) if `t` is a sum of exponentials."""
    total = here.trail.through(t, "sum")
    inner = here.trail.maker(total.first, "exp") if total is not None else None
    if total is None or inner is None or inner.first is None or (failing and not here.hit(inner)):
        return None
    return total, inner


def _one_plus_exp(t: Any, here: Here) -> TorchCall | None:
    """The exp in 1 + exp(x), either way round."""
    made = here.trail.maker(t, "add")
    for i in (0, 1) if made is not None else ():
        assert made is not None
        inner, one = here.trail.maker(made.arg(i, "other"), "exp"), made.arg(1 - i, "other")
        if inner is not None and here.hit(inner) and isinstance(one, int | float) and one == 1:
            return inner
    return None


def _softmax(call: TorchCall, here: Here) -> Tensor | None:
    """exp(b) / exp(a).sum(dim) → both shifted by the maximum of a."""
    if call.name != "div":
        return None
    total = _exp_sum(call.arg(1, "other"), here, failing=False)
    top = here.trail.maker(call.arg(0), "exp")
    if total is None or top is None or top.first is None or not (here.hit(total[1]) or here.hit(top)):
        return None
    summed, inner = total
    assert inner.first is not None
    dim = summed.arg(1, "dim", "axis")
    dims = tuple(range(inner.first.dim())) if dim is None else dim
    highest = inner.first.detach().amax(dims, keepdim=True)
    shifted = summed.again((inner.first - highest).exp())
    below = here.trail.maker(call.arg(1, "other"))
    shifted = below.again(shifted) if below is not None and below is not summed else shifted
    limit = top.first.new_tensor(_limit(top.first.dtype))
    quotient: Tensor = torch.minimum(top.first - highest, limit).exp() / shifted
    return quotient


def _logsumexp(call: TorchCall, here: Here) -> Tensor | None:
    """log(exp(x).sum(dim)) → logsumexp(x, dim)."""
    found = _exp_sum(call.first, here, failing=True) if call.name == "log" else None
    if found is None:
        return None
    total, inner = found
    assert inner.first is not None
    dim = total.arg(1, "dim", "axis")
    dims = tuple(range(inner.first.dim())) if dim is None else dim
    return torch.logsumexp(inner.first, dims, keepdim=bool(total.arg(2, "keepdim", default=False)))


def _softplus(call: TorchCall, here: Here) -> Tensor | None:
    """log(1 + exp(x)) → softplus(x)."""
    inner = _one_plus_exp(call.first, here) if call.name == "log" else None
    return F.softplus(inner.first) if inner is not None and inner.first is not None else None


def _sigmoid(call: TorchCall, here: Here) -> Tensor | None:
    """1 / (1 + exp(−x)) → sigmoid(x); exp(x) / (1 + exp(x)) → sigmoid(x)."""
    if call.name == "reciprocal":
        inner = _one_plus_exp(call.first, here)
        return torch.sigmoid(-inner.first) if inner is not None and inner.first is not None else None
    if call.name != "div":
        return None
    inner, top = _one_plus_exp(call.arg(1, "other"), here), call.arg(0)
    if inner is None or inner.first is None:
        return None
    if isinstance(top, int | float) or (isinstance(top, Tensor) and top.dim() == 0 and here.trail.maker(top) is None):
        return top * torch.sigmoid(-inner.first)
    upper = here.trail.maker(top, "exp")
    return torch.sigmoid(inner.first) if upper is not None and upper.first is inner.first else None


def _tanh(call: TorchCall, here: Here) -> Tensor | None:
    """(exp(x) − exp(−x)) / (exp(x) + exp(−x)) → tanh(x)."""
    below = here.trail.maker(call.arg(1, "other"), "add") if call.name == "div" else None
    above = here.trail.maker(call.arg(0), "sub") if below is not None else None
    if below is None or above is None:
        return None
    inner = [here.trail.maker(c.arg(i, "other"), "exp") for c in (above, below) for i in (0, 1)]
    if any(e is None or e.first is None for e in inner) or not any(here.hit(e) for e in inner if e is not None):
        return None
    x = inner[0].first if inner[0] is not None else None
    return torch.tanh(x) if x is not None else None


def _limit(dtype: torch.dtype, base: float = math.e) -> float:
    return (math.log(torch.finfo(dtype).max) - _HEADROOM) / math.log(base)


def _headroom(dtype: torch.dtype) -> float:
    """How far below the overflow an argument is changed on purpose. In float16 those are ordinary numbers."""
    return 0.0 if dtype is torch.float16 else 1.05 * _HEADROOM / math.log(2)


def _clamped(call: TorchCall, _: Here) -> Any:
    base = 2.0 if call.name == "exp2" else math.e
    return call.again(call.first.clamp(max=_limit(call.first.dtype, base))) if call.first is not None else None


def _clamped_both(call: TorchCall, _: Here) -> Any:
    if call.first is None:
        return None
    edge = _limit(call.first.dtype)
    return call.again(call.first.clamp(-edge, edge))


_EXP = ("exp",)
add(Remedy(
    "exp.softmax", _EXP, "exact",
    "subtract the row's maximum before exp, which leaves the quotient as it is: torch.softmax (or log_softmax) of the "
    "logits does it", _softmax, code="torch.softmax({0}, dim)", around=True,
))  # fmt: skip
add(Remedy(
    "exp.logsumexp", _EXP, "exact", "compute log(exp(x).sum()) as torch.logsumexp(x, dim)", _logsumexp,
    code="torch.logsumexp({0}, dim)", around=True,
))  # fmt: skip
add(Remedy(
    "exp.softplus", _EXP, "exact", "compute log(1 + exp(x)) as softplus(x), which does not overflow", _softplus,
    code="torch.nn.functional.softplus({0})", around=True,
))  # fmt: skip
add(Remedy(
    "exp.sigmoid", _EXP, "exact", "write 1 / (1 + exp(-x)) as torch.sigmoid(x)", _sigmoid,
    code="torch.sigmoid(x)", around=True,
))  # fmt: skip
add(Remedy(
    "exp.tanh", ("exp",), "exact", "write (exp(x) - exp(-x)) / (exp(x) + exp(-x)) as torch.tanh(x)", _tanh,
    code="torch.tanh(x)", around=True,
))  # fmt: skip
add(Remedy(
    "exp.clamp", ("exp", "expm1"), "guard",
    "keep the argument of exp below the logarithm of the dtype's largest number, with room for sums",
    _clamped, code="torch.exp({0}.clamp(max=math.log(torch.finfo({0}.dtype).max) - 4))", reach=_headroom,
))  # fmt: skip
add(Remedy(
    "exp2.clamp", ("exp2",), "guard",
    "keep the argument of exp2 below the binary logarithm of the dtype's largest number, with room for sums",
    _clamped, code="torch.exp2({0}.clamp(max=math.log2(torch.finfo({0}.dtype).max) - 6))", reach=_headroom,
))  # fmt: skip
add(Remedy(
    "sinh.clamp", ("sinh", "cosh"), "guard",
    "keep the argument inside the logarithm of the dtype's largest number", _clamped_both,
    code="torch.{op}({0}.clamp(-80, 80))", reach=_headroom,
))  # fmt: skip
