"""Resize and Upsample: every output coordinate of an axis is a weighted sum of a few input coordinates of that axis.

Axes are independent, so each is resized alone: *where* an output element lies in the operand (the coordinate
transformation), *which* elements it takes and with what weights (the mode), then one gather and one sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.resize_axis import Axis, Filter, coordinates, taps


@dataclass(frozen=True)
class Plan:
    """The axes to resize; those not named keep their length."""

    axes: list[Axis]
    filter: Filter
    extrapolation: float | None = None


@operator("Upsample")
def upsample(call: Call, x: Tensor, scales: Tensor | None = None) -> Tensor:
    """x → each axis times its scale, an attribute until opset 8 and an input from 9."""
    given = [float(s) for s in (call.attr("scales") if scales is None else scales.tolist())]
    return _resize(x, Plan(_scaled(x, range(x.dim()), given, "asymmetric"), Filter(call.attr("mode", "nearest"))))


@operator("Resize")
def resize(call: Call, x: Tensor, *inputs: Tensor | None) -> Tensor:
    """x, scales (opset 10), or x, roi, scales, sizes (opset 11 and later), of which scales or sizes is given."""
    if call.version < 11:
        assert inputs[0] is not None
        axes = _scaled(x, range(x.dim()), inputs[0].tolist(), "asymmetric")
        return _resize(x, Plan(axes, Filter(call.attr("mode", "nearest"), nearest="opset 10")))
    roi, scales, sizes = (None if t is None or t.numel() == 0 else t.tolist() for t in (*inputs, None, None, None)[:3])
    which = [a % x.dim() for a in call.attr("axes") or range(x.dim())]
    transformation = call.attr("coordinate_transformation_mode", "half_pixel")
    crop = transformation == "tf_crop_and_resize"
    if crop and roi is None:
        raise call.unsupported("tf_crop_and_resize without the input roi")
    if scales is not None:
        axes = _scaled(x, which, scales, transformation, roi if crop else None)
    elif sizes is not None:
        policy = call.attr("keep_aspect_ratio_policy", "stretch")
        axes = _sized(x, which, sizes, transformation, policy, roi if crop else None)
    else:
        raise call.unsupported("neither scales nor sizes")
    return _resize(x, Plan(axes, _filter(call), call.attr("extrapolation_value", 0.0) if crop else None))


def _filter(call: Call) -> Filter:
    return Filter(
        call.attr("mode", "nearest"),
        call.attr("nearest_mode", "round_prefer_floor"),
        call.attr("cubic_coeff_a", -0.75),
        bool(call.attr("exclude_outside", 0)),
        bool(call.attr("antialias", 0)),
    )


def _scaled(x: Tensor, which: Any, scales: list[float], transformation: str, roi: Any = None) -> list[Axis]:
    # The product is rounded to float32 before the floor, as runtimes have it: 10 × 0.7 is 7.
    lengths = [int(torch.tensor(s) * x.shape[a]) for a, s in zip(which, scales, strict=True)]
    return _axes(x, which, lengths, scales, transformation, roi)


def _sized(x: Tensor, which: Any, sizes: list[int], transformation: str, policy: str, roi: Any) -> list[Axis]:
    scales = [n / x.shape[a] for a, n in zip(which, sizes, strict=True)]
    if policy != "stretch":
        one = min(scales) if policy == "not_larger" else max(scales)
        sizes = [math.floor(one * x.shape[a] + 0.5) for a in which]
        scales = [one] * len(sizes)
    return _axes(x, which, sizes, scales, transformation, roi)


def _axes(x: Tensor, which: Any, lengths: list[int], scales: list[float], transformation: str, roi: Any) -> list[Axis]:
    found = []
    for i, (axis, length, scale) in enumerate(zip(which, lengths, scales, strict=True)):
        ends = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[i + len(lengths)]))
        found.append(Axis(axis, x.shape[axis], length, scale, transformation, ends))
    return found


def _resize(x: Tensor, plan: Plan) -> Tensor:
    work = x if x.dtype in (torch.float32, torch.float64) or plan.filter.mode == "nearest" else x.to(torch.float32)
    outside = None
    for axis in plan.axes:
        at = coordinates(axis, x.device)
        if plan.extrapolation is not None:
            here = ((at < 0) | (at > axis.size - 1)).reshape(-1, *[1] * (x.dim() - 1 - axis.axis))
            outside = here if outside is None else outside | here
        work = _along(work, axis, *taps(at, axis, plan.filter))
    if outside is not None and plan.extrapolation is not None:
        work = torch.where(outside, plan.extrapolation, work)
    return work.to(x.dtype)


def _along(x: Tensor, axis: Axis, index: Tensor, weight: Tensor | None) -> Tensor:
    """One axis: index and weight (length, taps); no weight where one tap is taken as it is."""
    if weight is None or weight.shape[1] == 1:
        same = torch.arange(axis.size, device=x.device)
        return x if torch.equal(index[:, 0], same) else x.index_select(axis.axis, index[:, 0])
    behind = [1] * (x.dim() - 1 - axis.axis)
    parts = [
        x.index_select(axis.axis, index[:, k]) * weight[:, k].to(x.dtype).reshape(-1, *behind)
        for k in range(index.shape[1])
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
