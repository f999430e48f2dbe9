"""Square roots, norms and powers: at zero their gradient is infinite, below it there is nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add, small
from nnfuzz.probe.first_bad import BadOp

_ROOTS = ("sqrt", "rsqrt", "pow")


def is_square(made: TorchCall | None) -> bool:
    """Whether a call squares its operand, in any of the ways of writing it."""
    if made is None:
        return False
    if made.name == "square":
        return True
    if made.name == "pow":
        power = made.arg(1, "exponent")
        return isinstance(power, int | float) and power == 2
    return made.name == "mul" and made.arg(0) is made.arg(1, "other")


def _is_root(call: TorchCall) -> bool:
    return call.name == "sqrt" or (call.name == "pow" and call.arg(1, "exponent") == 0.5)


def _norm(call: TorchCall, here: Here) -> Tensor | None:
    """sqrt of a sum of squares → vector_norm, whose gradient at zero is zero."""
    total = here.trail.maker(call.first, "sum") if _is_root(call) else None
    square = here.trail.maker(total.first) if total is not None else None
    if total is None or not is_square(square) or square is None or square.first is None:
        return None
    keep = bool(total.arg(2, "keepdim", default=False))
    norm: Tensor = torch.linalg.vector_norm(square.first, dim=total.arg(1, "dim", "axis"), keepdim=keep)
    return norm


def _hypot(call: TorchCall, here: Here) -> Tensor | None:
    """sqrt(a² + b²) → the norm of the pair."""
    total = here.trail.maker(call.first, "add") if _is_root(call) else None
    if total is None:
        return None
    squares = [here.trail.maker(total.arg(i, "other")) for i in (0, 1)]
    if not all(is_square(s) and s is not None and s.first is not None for s in squares):
        return None
    pair = [s.first for s in squares if s is not None and s.first is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch.broadcast_tensors(*pair)), dim=0)
    return norm


def _first_of(*found: Tensor | None) -> Tensor | None:
    return next((t for t in found if t is not None), None)


def _moments(t: Any, here: Here) -> tuple[Tensor, Any, bool] | None:
    """(x, dims, keepdim) if `t` is mean(x²) − mean(x)²."""
    made = here.trail.maker(t, "sub")
    if made is None:
        return None
    first, second = here.trail.maker(made.arg(0), "mean"), here.trail.maker(made.arg(1, "other"))
    square = here.trail.maker(first.first) if first is not None else None
    mean = here.trail.maker(second.first, "mean") if is_square(second) and second is not None else None
    if first is None or mean is None or square is None or not is_square(square) or square.first is not mean.first:
        return None
    x = square.first
    return None if x is None else (x, first.arg(1, "dim"), bool(first.arg(2, "keepdim", default=False)))


def _two_pass(call: TorchCall, here: Here) -> Any:
    """The root of mean(x²) − mean(x)² (+ eps) → of mean((x − mean(x))²) (+ eps)."""
    t: Any = call.first
    outer = here.trail.maker(t, "add")
    plus = outer.arg(1, "other") if outer is not None else 0.0
    found = _moments(outer.first if outer is not None else t, here)
    if found is None or isinstance(plus, Tensor):
        return None
    x, dims, keep = found
    centred = (x - x.mean(dims, keepdim=True)).square() if dims is not None else (x - x.mean()).square()
    variance = centred.mean(dims, keepdim=keep) if dims is not None else centred.mean()
    return call.again(variance + plus)


def _variance_floor(call: TorchCall, here: Here) -> Any:
    """A difference (+ eps) under a root: the difference is kept at 0 or more, before the eps."""
    outer = here.trail.maker(call.first, "add")
    if outer is not None and here.trail.maker(outer.first, "sub") is not None and outer.first is not None:
        return call.again(outer.again(outer.first.clamp(min=0)))
    inner = here.trail.maker(call.first, "sub")
    return call.again(call.first.clamp(min=here.eps)) if inner is not None and call.first is not None else None


def _inside(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(min=0) + here.eps) if call.first is not None else None


def _floor(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(min=here.eps)) if call.first is not None else None


def _half_exponent(call: TorchCall, here: Here) -> Tensor | None:
    """sqrt(exp(x)) → exp(x / 2)."""
    made = here.trail.through(call.first, "exp") if _is_root(call) else None
    own = here.trail.maker(call.first)
    return (made.first / 2).exp() if made is not None and made is own and made.first is not None else None


def _safe_norm(call: TorchCall, here: Here) -> Tensor | None:
    x = call.first
    if x is None or call.name not in ("vector_norm", "norm"):
        return None
    order = call.arg(1, "ord", "p", default=2)
    if order not in (2, 2.0, None):
        return None
    dim = call.arg(2, "dim", default=None)
    keep = bool(call.arg(3, "keepdim", default=False))
    total = x.square().sum() if dim is None else x.square().sum(dim, keepdim=keep)
    inside: Tensor = total + here.eps
    call.note_move(total, inside)
    return inside.sqrt()


def _exponent(bad: BadOp) -> float | None:
    return next((o.low for o in bad.operands if o.name == "exponent"), None)


def _fractional(bad: BadOp) -> bool:
    power = _exponent(bad)
    return bad.site.op != "pow" or power is None or power < 1 or power != int(power)


def squares(dtype: torch.dtype) -> tuple[float, ...]:
    """Floors under a root whose gradient, of degree −3/2 at most, still fits the dtype."""
    if dtype is torch.float16:
        return (1e-3, 1e-2)
    return (1e-24, 1e-16, 1e-12, 1e-8) if dtype is not torch.float64 else (1e-30, 1e-16)


add(Remedy(
    "sqrt.two_pass", _ROOTS, "exact",
    "compute the variance in two passes, mean((x - x.mean())**2): E[x^2] - E[x]^2 cancels and can come out negative",
    _two_pass, code="torch.sqrt(((x - x.mean(dim, keepdim=True)) ** 2).mean(dim, keepdim=True) + eps)",
))  # fmt: skip
add(Remedy(
    "sqrt.exp", ("sqrt", "pow"), "exact", "write sqrt(exp(x)) as exp(x / 2), which neither underflows nor divides by 0",
    _half_exponent, code="torch.exp(x / 2)",
))  # fmt: skip
add(Remedy(
    "sqrt.norm", ("sqrt", "pow"), "exact",
    "use torch.linalg.vector_norm for the root of a sum of squares: its gradient at the zero vector is 0",
    lambda call, here: _first_of(_norm(call, here), _hypot(call, here)),
    code="torch.linalg.vector_norm(x, dim=dim)", phases=("backward",),
))  # fmt: skip
add(Remedy(
    "sqrt.variance", ("sqrt", "rsqrt"), "guard",
    "keep the difference under the root at 0 or more before anything is added to it",
    _variance_floor, code="torch.{op}({0}.clamp(min={eps}))", eps=squares, phases=("forward",),
))  # fmt: skip
add(Remedy(
    "sqrt.inside", ("sqrt", "rsqrt"), "guard",
    "add {eps} inside the root, where it keeps the gradient finite (added outside it does not)",
    _inside, code="torch.{op}({0} + {eps})", eps=squares,
))  # fmt: skip
add(Remedy(
    "sqrt.floor", ("sqrt", "rsqrt"), "guard",
    "clamp the argument of the root at {eps} before the root; a guard after it comes too late",
    _floor, code="torch.{op}({0}.clamp(min={eps}))", eps=squares,
))  # fmt: skip
add(Remedy(
    "pow.clamp", ("pow",), "guard",
    "keep the base at {eps} or more: a fractional power of a negative number is NaN, and at 0 its gradient is infinite",
    _floor, code="{0}.clamp(min={eps}) ** {1}", eps=small, applies=_fractional,
))  # fmt: skip
add(Remedy(
    "norm.inside", ("vector_norm", "norm", "cdist", "dist", "std"), "guard",
    "take the root of the sum of squares plus {eps} instead of a norm",
    _safe_norm, code="({0}.square().sum(dim) + {eps}).sqrt()", eps=squares,
    phases=("backward",),
))  # fmt: skip
