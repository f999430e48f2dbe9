"""Resize and Upsample: every output coordinate of an axis is a weighted sum of a few input coordinates of that axis.

Axes are independent, so each is resized alone: *where* an output element lies in the operand (the coordinate
transformation), *which* elements it takes and with what weights (the mode), then a gather for each of them and a sum.
What torch's own upsampling does the same way is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.resize_axis import Axis, Filter, Taps, single, taps
from nnfuzz.onnx.ops.resize_native import native


@operator("Upsample")
def upsample(call: Call, x: Tensor, scales: Tensor | None = None) -> Tensor:
    """x → each axis times its scale, an attribute until opset 8 and an input from 9."""
    given = [float(s) for s in (call.attr("scales") if scales is None else scales.tolist())]
    return _resize(x, _scaled(x, range(x.dim()), given, "asymmetric"), Filter(call.attr("mode", "nearest")))


@operator("Resize")
def resize(call: Call, x: Tensor, *inputs: Tensor | None) -> Tensor:
    """x, scales (opset 10), or x, roi, scales, sizes (opset 11 and later), of which scales or sizes is given."""
    if call.version < 11:
        assert inputs[0] is not None
        axes = _scaled(x, range(x.dim()), inputs[0].tolist(), "asymmetric")
        return _resize(x, axes, Filter(call.attr("mode", "nearest"), nearest="opset 10"))
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
    return _resize(x, axes, _filter(call), call.attr("extrapolation_value", 0.0) if crop else None)


def _filter(call: Call) -> Filter:
    return Filter(
        call.attr("mode", "nearest"),
        call.attr("nearest_mode", "round_prefer_floor"),
        call.attr("cubic_coeff_a", -0.75),
        bool(call.attr("exclude_outside", 0)),
        bool(call.attr("antialias", 0)),
    )


def _scaled(x: Tensor, which: Sequence[int], scales: list[float], transformation: str, roi: Any = None) -> list[Axis]:
    # The product is rounded to float32 before the floor, as runtimes have it: 10 × 0.7 is 7.
    lengths = [math.floor(single(s * x.shape[a])) for a, s in zip(which, scales, strict=True)]
    return _axes(x, which, lengths, scales, transformation, roi)


def _sized(x: Tensor, which: Sequence[int], sizes: list[int], transformation: str, policy: str, roi: Any) -> list[Axis]:
    scales = [n / max(1, x.shape[a]) for a, n in zip(which, sizes, strict=True)]
    if policy != "stretch":
        one = min(scales) if policy == "not_larger" else max(scales)
        sizes = [math.floor(one * x.shape[a] + 0.5) for a in which]
        scales = [one] * len(sizes)
    return _axes(x, which, sizes, scales, transformation, roi)


def _axes(
    x: Tensor, which: Sequence[int], lengths: list[int], scales: list[float], transformation: str, roi: Any
) -> list[Axis]:
    found = []
    for i, (axis, length, scale) in enumerate(zip(which, lengths, scales, strict=True)):
        ends = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[i + len(lengths)]))
        found.append(Axis(axis, x.shape[axis], length, single(scale), transformation, ends))
    return found


def _resize(x: Tensor, axes: list[Axis], how: Filter, extrapolation: float | None = None) -> Tensor:
    work = x if x.dtype in (torch.float32, torch.float64) or how.mode == "nearest" else x.to(torch.float32)
    plans = [taps(axis, how) for axis in axes]
    todo = [(axis, plan) for axis, plan in zip(axes, plans, strict=True) if not plan.keep(axis.size)]
    own = native(work, todo, how)
    if own is None:
        for axis, plan in todo:
            work = _along(work, axis.axis, plan)
    else:
        work = own
    if extrapolation is not None:
        outside = torch.zeros((), dtype=torch.bool, device=x.device)
        for axis, plan in zip(axes, plans, strict=True):
            here = torch.from_numpy(plan.outside).to(x.device)
            outside = outside | here.reshape(-1, *[1] * (x.dim() - 1 - axis.axis))
        work = torch.where(outside, extrapolation, work)
    return work.to(x.dtype)


def _along(x: Tensor, axis: int, plan: Taps) -> Tensor:
    """One axis resized. A gather is several times as fast as index_select on inner axes."""
    length, count = plan.index.shape
    line, shape = [1] * x.dim(), list(x.shape)
    line[axis] = shape[axis] = length
    index = torch.from_numpy(plan.index).to(x.device)
    taken = [x.gather(axis, index[:, k].reshape(line).expand(shape)) for k in range(count)]
    if plan.weight is None:
        return taken[0]
    weight = torch.from_numpy(plan.weight).to(x.device, x.dtype)
    total = taken[0] * weight[:, 0].reshape(line)
    for k in range(1, count):
        total = torch.addcmul(total, taken[k], weight[:, k].reshape(line))
    return total
