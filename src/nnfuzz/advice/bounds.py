"""Functions that end at a closed bound: acos and asin at ±1, atanh, erfinv, logit, acosh, lgamma, atan2 at (0, 0)."""

from __future__ import annotations

from typing import Any

import torch

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add, beside_one, small


def _within_one(call: TorchCall, here: Here) -> Any:
    edge = 1 - here.eps
    return call.again(call.first.clamp(-edge, edge)) if call.first is not None else None


def _within_unit(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(here.eps, 1 - here.eps)) if call.first is not None else None


def _above_one(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(min=1 + here.eps)) if call.first is not None else None


def _above_zero(call: TorchCall, here: Here) -> Any:
    return call.again(call.first.clamp(min=here.eps)) if call.first is not None else None


def _no_origin(call: TorchCall, _: Here) -> Any:
    y, x = call.arg(0, "input"), call.arg(1, "other")
    return call.on((y, torch.where((x == 0) & (y == 0), 1, x)))


add(Remedy(
    "bound.one", ("acos", "asin", "atanh", "erfinv"), "guard",
    "keep the argument inside -1..1 by {eps}, which the dtype can tell from 0 there",
    _within_one, code="torch.{op}({0}.clamp(-1 + {eps}, 1 - {eps}))", eps=beside_one,
))  # fmt: skip
add(Remedy(
    "bound.logit", ("logit",), "guard", "keep the probability inside 0..1 by {eps}", _within_unit,
    code="torch.logit({0}, eps={eps})", eps=beside_one,
))  # fmt: skip
add(Remedy(
    "bound.acosh", ("acosh",), "guard", "keep the argument above 1 by {eps}", _above_one,
    code="torch.acosh({0}.clamp(min=1 + {eps}))", eps=beside_one,
))  # fmt: skip
add(Remedy(
    "bound.gamma", ("lgamma", "digamma", "polygamma"), "guard", "keep the argument at {eps} or more", _above_zero,
    code="torch.{op}({0}.clamp(min={eps}))", eps=small,
))  # fmt: skip
add(Remedy(
    "bound.origin", ("atan2", "hypot"), "guard", "give the origin an angle of its own: it has no direction",
    _no_origin, code="torch.atan2({0}, torch.where(({0} == 0) & ({1} == 0), 1, {1}))",
))  # fmt: skip
