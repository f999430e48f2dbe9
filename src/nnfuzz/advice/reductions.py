"""Reductions of too little: the spread of one element, the mean of nothing, a loss whose labels are all ignored."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add


def _dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim)]


def _count(x: Tensor, dim: Any) -> int:
    count = 1
    for d in _dims(x, dim):
        count *= x.shape[d]
    return count


def _spread(call: TorchCall, _: Here) -> Any:
    """std and var with correction 0 where there are too few elements for theirs."""
    x = call.first
    if x is None:
        return None
    second = call.arg(1, "dim")
    dim = None if isinstance(second, bool) else second
    correction = call.kwargs.get("correction", 1 if call.kwargs.get("unbiased", True) and second is not False else 0)
    if _count(x, dim) > correction:
        return None
    fn: Any = torch.std if call.name == "std" else torch.var
    value: Any = fn(x, dim, correction=0, keepdim=bool(call.kwargs.get("keepdim", False)))
    return value


def _mean_of_some(call: TorchCall, _: Here) -> Any:
    x = call.first
    if x is None:
        return None
    dim, keep = call.arg(1, "dim", "axis"), bool(call.arg(2, "keepdim", default=False))
    total = x.sum() if dim is None else x.sum(dim, keepdim=keep)
    return total / max(_count(x, dim), 1)


def _some_labels(call: TorchCall, _: Here) -> Any:
    """A mean over the labels that are not ignored, at least one."""
    if call.name not in ("cross_entropy_loss", "cross_entropy", "nll_loss", "nll_loss_nd", "nll_loss2d"):
        return None
    logits, target = call.arg(0, "input", "self"), call.arg(1, "target")
    weight = call.arg(2, "weight")
    ignored = call.arg(4, "ignore_index", default=-100)
    if not isinstance(target, Tensor) or target.is_floating_point():
        return None
    kept = target != ignored
    fn: Any = F.cross_entropy if call.name.startswith("cross_entropy") else F.nll_loss
    total = fn(logits, target, weight=weight, ignore_index=ignored, reduction="sum")
    if weight is None:
        return total / kept.sum().clamp(min=1)
    share = torch.where(kept, weight[target.clamp(min=0)], 0).sum()
    return total / torch.where(share == 0, 1, share)


add(Remedy(
    "std.correction", ("std", "var", "std_mean", "var_mean"), "exact",
    "use correction=0 where there is only one element, or leave the division by the spread out for it",
    _spread, code="{0}.{op}(correction=0) if {0}.numel() < 2 else {0}.{op}()",
))  # fmt: skip
add(Remedy(
    "mean.count", ("mean", "nanmean"), "exact", "divide the sum by the number of elements, at least 1",
    _mean_of_some, code="{0}.sum() / max({0}.numel(), 1)",
))  # fmt: skip
add(Remedy(
    "loss.count", ("nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy_loss"), "exact",
    "sum the loss and divide by the number of labels that are not ignored, at least 1",
    _some_labels,
    code="F.cross_entropy({0}, {1}, ignore_index=ignored, reduction='sum') / ({1} != ignored).sum().clamp(min=1)",
))  # fmt: skip
