"""Operations that fail by one operand leaving its domain while another decides the domain: which operand, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nnfuzz.probe.watch import Record

BATCH = frozenset({
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
    "_batch_norm_no_update", "_batch_norm_with_update", "batch_norm", "miopen_batch_norm",
})  # fmt: skip
_ROWWISE = frozenset({"native_layer_norm", "native_group_norm"})


def breach(record: Record, read: Mapping[str, tuple[Any, Tensor]]) -> tuple[str, str] | None:
    """(name of the operand at fault, why in words); None where no rule is known or none was broken.

    read: name of an argument → its value, and the part of it that the bad output element was computed from.
    """
    base = record.facts.base
    if base == "pow":
        return _pow(_number(read, "self"), _number(read, "exponent"))
    if base in BATCH or base in _ROWWISE:
        return _norm(base, record, read)
    return None


def _number(read: Mapping[str, tuple[Any, Tensor]], name: str) -> float:
    value, region = read.get(name, (math.nan, torch.empty(0)))
    if not isinstance(value, Tensor):
        return float(value)
    return float(region) if region.numel() == 1 and not region.is_complex() else math.nan


def _pow(base: float, exponent: float) -> tuple[str, str] | None:
    if base < 0 and math.isfinite(exponent) and exponent != int(exponent):
        return "self", f"a negative base under the fractional exponent {exponent:.6g}"
    if base == 0 and exponent < 0:
        return "self", f"a base of zero under the negative exponent {exponent:.6g}"
    return None


def _norm(base: str, record: Record, read: Mapping[str, tuple[Any, Tensor]]) -> tuple[str, str] | None:
    eps = _number(read, "eps") if "eps" in read else _number(read, "epsilon")
    if "running_var" in read and not trains(record):
        var = float(read["running_var"][1].double().min())
        return ("running_var", _said("the variance", var, eps)) if var + eps <= 0 else None
    _, region = read["input"]
    var = float(region.detach().double().var(correction=0)) if region.numel() else math.nan
    # The operation rounds: values that differ in their last place may have no variance in its dtype.
    narrow = float(region.detach().var(correction=0)) if region.numel() else math.nan
    if min(var, narrow) + eps > 0 or var != var:
        return None
    equal = bool((region == region.flatten()[0]).all())
    what = "equal values" if equal else "values without a variance in this dtype"
    over = "the channel" if base in BATCH else "the group" if base == "native_group_norm" else "the row"
    return "input", f"{what} throughout {over}, and epsilon is {eps:.6g}"


def _said(what: str, var: float, eps: float) -> str:
    return f"{what} {var:.6g} plus epsilon {eps:.6g} is {'negative' if var + eps < 0 else 'zero'}"


def trains(record: Record) -> bool:
    """Whether a batch normalization took the statistics of its input."""
    if record.facts.base == "_native_batch_norm_legit_no_training" or record.facts.base == "_batch_norm_no_update":
        return False
    arguments = dict(zip(record.facts.arguments, record.args, strict=False)) | record.kwargs
    return bool(arguments.get("training", arguments.get("train", False))) or arguments.get("running_var") is None
