"""Masks: rows in which everything is masked, and branches that `where` does not take but differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add

_SAFE = {"exp": 0.0, "exp2": 0.0, "expm1": 0.0, "sinh": 0.0, "cosh": 0.0, "acos": 0.0, "asin": 0.0, "atanh": 0.0,
         "erfinv": 0.0, "tan": 0.0, "acosh": 2.0, "logit": 0.5}  # fmt: skip
_DEPTH = 8  # operations between the failing one and the `where` that hides it


def _replayed(t: Any, here: Here, keep: Tensor, depth: int = _DEPTH) -> Tensor | None:
    """`t` computed again, the failing call in it on an operand that is safe wherever `keep` is False."""
    made = here.trail.maker(t)
    if made is None or depth < 0:
        return None
    if here.hit(made):
        position = 1 if made.name in ("div", "fmod", "remainder") else 0
        operand = made.arg(position, "other" if position else "input")
        if not isinstance(operand, Tensor):
            return None
        safe = torch.where(keep, operand, _SAFE.get(made.name, 1.0))
        args = list(made.args) or [operand]
        args[position] = safe
        out = made.on(tuple(args))
        return out if isinstance(out, Tensor) else None
    for i, part in enumerate(made.args):
        inner = _replayed(part, here, keep, depth - 1) if isinstance(part, Tensor) else None
        if inner is not None:
            out = made.on((*made.args[:i], inner, *made.args[i + 1 :]))
            return out if isinstance(out, Tensor) else None
    return None


def _double_where(call: TorchCall, here: Here) -> Tensor | None:
    """where(c, a, f(x)) → where(c, a, f(where(c, safe, x))), for whichever branch holds the failing call."""
    if call.name != "where" or len(call.args) < 3:
        return None
    condition, taken, other = call.args[:3]
    for branch, keep in ((other, ~condition), (taken, condition)):
        found = _replayed(branch, here, keep)
        if found is not None:
            return torch.where(condition, taken, found) if branch is other else torch.where(condition, found, other)
    return None


def _rows(call: TorchCall) -> tuple[Tensor, Tensor] | None:
    """(scores, which rows are −inf throughout) of a softmax."""
    x, dim = call.first, call.arg(1, "dim")
    if x is None or not isinstance(dim, int):
        return None
    return x, (x == -torch.inf).all(dim, keepdim=True)


def _empty_rows(call: TorchCall, _: Here) -> Any:
    found = _rows(call)
    if found is None:
        return None
    x, empty = found
    return torch.where(empty, 0, call.again(torch.where(empty, 0, x)))


def _finite_mask(call: TorchCall, _: Here) -> Any:
    x = call.first
    return None if x is None else call.again(x.clamp(min=torch.finfo(x.dtype).min))


def _nan_to_num(call: TorchCall, _: Here) -> Any:
    return torch.nan_to_num(call.func(*call.args, **call.kwargs))


_ROWS = ("softmax", "log_softmax", "logsumexp")
add(Remedy(
    "softmax.rows", ("softmax",), "exact",
    "leave rows out in which everything is masked: give them 0 before the softmax and put 0 in its place after it",
    _empty_rows,
    code="torch.where(empty, 0, torch.softmax(torch.where(empty, 0, {0}), {1})), "
    "with empty = ({0} == -torch.inf).all({1}, keepdim=True)",
))  # fmt: skip
add(Remedy(
    "softmax.finfo", _ROWS, "guard",
    "mask with torch.finfo(dtype).min and keep the sum of masks there: a row of -inf throughout has no softmax",
    _finite_mask, code="torch.{op}({0}.clamp(min=torch.finfo({0}.dtype).min), {1})",
))  # fmt: skip
add(Remedy(
    "softmax.nan_to_num", ("softmax",), "saturate", "replace what a fully masked row gives by 0 (forward pass only)",
    _nan_to_num, code="torch.nan_to_num(torch.softmax({0}, {1}))",
))  # fmt: skip
add(Remedy(
    "where.double", (
        "exp", "exp2", "expm1", "sinh", "cosh", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "div", "reciprocal",
        "pow", "acos", "asin", "atanh", "acosh", "erfinv", "logit", "tan",
    ), "exact",
    "use a second where inside: the branch that is not taken is differentiated too, and 0 times infinity is NaN",
    _double_where, code="torch.where(c, a, {op}(torch.where(c, safe, {0})))", around=True,
))  # fmt: skip
