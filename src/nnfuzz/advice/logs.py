"""Logarithms: of what softmax, sigmoid and exp made, the stable form; of anything else, off the edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.advice.calls import VIEWS, TorchCall, Trail
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add, beside_one, small

_NEARLY = 1e-6  # "1 + 1e-10" is meant as 1 with a guard, and rounds to 1 in float32
_BASES = {"log": 1.0, "log2": 1 / math.log(2), "log10": 1 / math.log(10)}


def log_of(t: Any, trail: Trail) -> Tensor | None:
    """log(t) from the operands of what made `t`: through softmax, sigmoid, exp, products, quotients and selections.

    None where some part is not known to be positive and finite in its logarithm.
    """
    made = trail.maker(t)
    if made is None:
        return None
    rule = _RULES.get(made.name)
    if rule is not None:
        return rule(made, trail)
    if made.name in VIEWS:
        inner = log_of(made.first, trail)
        return None if inner is None else _moved(made, inner)
    return None


def _moved(made: TorchCall, inner: Tensor) -> Tensor | None:
    out = made.again(inner)
    return out if isinstance(out, Tensor) else None


def _softmax(made: TorchCall, _: Trail) -> Tensor | None:
    dim = made.arg(1, "dim")
    return F.log_softmax(made.first, dim) if made.first is not None and isinstance(dim, int) else None


def _sigmoid(made: TorchCall, _: Trail) -> Tensor | None:
    return F.logsigmoid(made.first) if made.first is not None else None


def _product(made: TorchCall, trail: Trail) -> Tensor | None:
    left, right = (log_of(made.arg(i), trail) for i in (0, 1))
    return left + right if left is not None and right is not None else None


def _quotient(made: TorchCall, trail: Trail) -> Tensor | None:
    left, right = log_of(made.arg(0), trail), log_of(made.arg(1, "other"), trail)
    return left - right if left is not None and right is not None else None


def _sum(made: TorchCall, trail: Trail) -> Tensor | None:
    inner, dim = log_of(made.first, trail), made.arg(1, "dim", "axis")
    if inner is None:
        return None
    dims = tuple(range(inner.dim())) if dim is None else dim
    return torch.logsumexp(inner, dims, keepdim=bool(made.arg(2, "keepdim", default=False)))


def _complement(made: TorchCall, trail: Trail) -> Tensor | None:
    """log(1 − sigmoid(z)) = logsigmoid(−z)."""
    inner = trail.through(made.arg(1, "other"), "sigmoid")
    one = made.arg(0)
    if isinstance(one, int | float) and abs(one - 1) < _NEARLY and inner is not None and inner.first is not None:
        own = trail.maker(made.arg(1, "other"))
        out = F.logsigmoid(-inner.first)
        return out if own is inner or own is None else _moved(own, out)
    return None


def _plus_eps(made: TorchCall, trail: Trail) -> Tensor | None:
    """log(p + eps): the eps was there to keep log off zero, which the logarithm of the softmax needs no more."""
    other = made.arg(1, "other")
    return log_of(made.first, trail) if isinstance(other, float) and 0 <= other < 1e-4 else None


def _clamped(made: TorchCall, trail: Trail) -> Tensor | None:
    inner = log_of(made.first, trail)
    low, high = made.arg(1, "min"), made.arg(2, "max")
    if inner is None or isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    low = math.log(low) if low is not None and low > 0 else None
    high = math.log(high) if high is not None and high > 0 else None
    return inner if low is None and high is None else inner.clamp(low, high)


_RULES: dict[str, Callable[[TorchCall, Trail], Tensor | None]] = {
    "softmax": _softmax, "sigmoid": _sigmoid, "exp": lambda made, _: made.first, "mul": _product, "div": _quotient,
    "sum": _sum, "sub": _complement, "rsub": _complement, "add": _plus_eps, "clamp": _clamped,
    "clamp_min": _clamped, "relu": lambda made, trail: log_of(made.first, trail),
}  # fmt: skip


def _stable_log(call: TorchCall, here: Here) -> Tensor | None:
    found = log_of(call.first, here.trail)
    if found is None or call.name not in _BASES or call.first is None:
        return None
    return (found * _BASES[call.name]).to(call.first.dtype)


def _stable_log1p(call: TorchCall, here: Here) -> Tensor | None:
    """log1p(exp(x)) → softplus; log1p(−sigmoid(z)) → logsigmoid(−z)."""
    made = here.trail.through(call.first, "exp")
    if made is not None and made.first is not None:
        return F.softplus(made.first)
    negated = here.trail.maker(call.first, "neg")
    inner = here.trail.maker(negated.first, "sigmoid") if negated is not None else None
    return F.logsigmoid(-inner.first) if inner is not None and inner.first is not None else None


def _clamped_log(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(min=here.eps)) if call.first is not None else None


def _xlogy(call: TorchCall, here: Here) -> Tensor | None:
    """a · log(x) → xlogy(a, x), which is 0 where a is."""
    if call.name != "mul":
        return None
    for i in (0, 1):
        made = here.failing(call.arg(i), "log", "log1p")
        weight = call.arg(1 - i)
        if made is not None and made.first is not None and here.trail.maker(call.arg(i)) is made:
            fn = torch.xlogy if made.name == "log" else torch.special.xlog1py
            return fn(weight, made.first)
    return None


_LOGS = ("log", "log2", "log10", "log1p")
add(Remedy(
    "log.softmax", _LOGS, "exact",
    "take the logarithm where the probabilities are made: log_softmax of the logits (or logsigmoid) instead of the log "
    "of a softmax (or sigmoid) that has rounded to 0",
    _stable_log, code="log-of",
))  # fmt: skip
add(Remedy(
    "log1p.softplus", ("log1p", "exp"), "exact",
    "compute log(1 + exp(x)) as softplus(x), which does not overflow",
    lambda call, here: _stable_log1p(call, here) if call.name == "log1p" else None, around=True,
    code="torch.nn.functional.softplus(x) in place of torch.log1p(torch.exp(x))",
))  # fmt: skip
add(Remedy(
    "log.xlogy", ("log", "log1p"), "exact",
    "write a * log(x) as torch.xlogy(a, x), which is 0 where a is 0", _xlogy, code="torch.xlogy(a, {0})", around=True,
))  # fmt: skip
add(Remedy(
    "log.clamp", ("log", "log2", "log10"), "guard",
    "keep the argument of the logarithm at {eps} or more, which the dtype can hold",
    _clamped_log, code="{0}.clamp(min={eps}).log()", eps=small,
))  # fmt: skip
add(Remedy(
    "log1p.clamp", ("log1p",), "guard", "keep the argument of log1p above -1 by {eps}",
    lambda call, here: call.again(call.first.clamp(min=here.eps - 1)) if call.first is not None else None,
    code="torch.log1p({0}.clamp(min={eps} - 1))", eps=beside_one,
))  # fmt: skip
