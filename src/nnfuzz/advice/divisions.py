"""Divisions by zero: guards of the denominator, as large as the dtype needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add, in_integers, off_zero, small
from nnfuzz.probe.first_bad import BadOp


def _nonnegative(bad: BadOp) -> bool:
    """Whether the denominator was never below zero where the failure was seen. Elsewhere it may be: what other inputs
    say decides whether a guard of one side holds."""
    return all(o.low >= 0 for o in bad.operands if o.name == ("other" if bad.site.op == "div" else "self"))


def _positive_guard(call: TorchCall, here: Here) -> Any:
    if call.name == "reciprocal":
        return call.again(call.first.clamp(min=here.eps)) if call.first is not None else None
    other = call.arg(1, "other")
    return call.on((call.arg(0), other.clamp(min=here.eps), *call.args[2:])) if isinstance(other, Tensor) else None


def _signed_guard(call: TorchCall, here: Here) -> Any:
    if call.name == "reciprocal":
        return call.again(off_zero(call.first, here.eps)) if call.first is not None else None
    other = call.arg(1, "other")
    return call.on((call.arg(0), off_zero(other, here.eps), *call.args[2:])) if isinstance(other, Tensor) else None


def _double(call: TorchCall, here: Here) -> Any:
    """0 wherever the denominator is 0, with a harmless denominator behind the `where`."""
    other = call.arg(1, "other")
    if call.name != "div" or not isinstance(other, Tensor) or not isinstance(call.arg(0), Tensor):
        return None
    fine = other != 0
    return torch.where(fine, call.on((call.arg(0), torch.where(fine, other, 1), *call.args[2:])), 0)


def _ones_for_zeros(call: TorchCall, here: Here) -> Any:
    """The same call with 1 wherever an integer denominator is 0."""
    other = call.arg(1, "other")
    if call.name not in ("div", "floor_divide", "floordiv") or not isinstance(other, Tensor) or len(call.args) < 2:
        return None
    return call.on((call.arg(0), torch.where(other == 0, torch.ones_like(other), other), *call.args[2:]))


def _angle(call: TorchCall, here: Here) -> Tensor | None:
    """atan(y / x) → atan2(y, x) for x ≥ 0."""
    made = here.failing(call.first, "div") if call.name == "atan" else None
    if made is None:
        return None
    y, x = made.arg(0), made.arg(1, "other")
    # At (0, 0) atan2 has no gradient either; a box without extent has no angle.
    return torch.atan2(y, torch.where((x == 0) & (y == 0), 1, x))


def guards(dtype: torch.dtype) -> tuple[float, ...]:
    """Denominators to try, least first: the quotient must still fit."""
    return (*small(dtype), 1e-2) if dtype is torch.float16 else (*small(dtype), 1e-4)


add(Remedy(
    "div.atan2", ("div",), "exact", "use torch.atan2(y, x) for the angle: it needs no quotient", _angle,
    code="torch.atan2({0}, {1})", around=True, applies=_nonnegative,
))  # fmt: skip
add(Remedy(
    "div.guard", ("div", "reciprocal"), "guard",
    "keep the denominator at {eps} or more, which the dtype can hold",
    _positive_guard, code="{0} / {1}.clamp(min={eps})", eps=guards,
    applies=lambda bad: _nonnegative(bad) and not in_integers(bad),
))  # fmt: skip
add(Remedy(
    "div.signed", ("div", "reciprocal"), "guard",
    "keep the denominator at least {eps} away from zero, with its sign",
    _signed_guard, code="{0} / torch.where({1}.abs() < {eps}, torch.where({1} < 0, -{eps}, {eps}), {1})", eps=guards,
    applies=lambda bad: not in_integers(bad), instead="div.guard",
))  # fmt: skip
add(Remedy(
    "div.double_where", ("div",), "guard",
    "give the quotient a value of its own where the denominator is 0, with a harmless denominator behind the where",
    _double, code="torch.where({1} != 0, {0} / torch.where({1} != 0, {1}, 1), 0)",
    applies=lambda bad: not in_integers(bad),
))  # fmt: skip
add(Remedy(
    "div.integer", ("div", "floor_divide"), "guard",
    "divide by 1 where the denominator, an integer, is 0, or refuse such inputs before the model",
    _ones_for_zeros, code="torch.where({1} == 0, 1, {1}) in place of the denominator", applies=in_integers,
))  # fmt: skip
