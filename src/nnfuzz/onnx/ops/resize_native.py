"""The resizes that torch's own upsampling computes: the last one to three axes of a batch of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.onnx.ops.resize_axis import Axis, Filter, Taps

_aten: Any = torch.ops.aten
LINEAR = {1: _aten.upsample_linear1d, 2: _aten.upsample_bilinear2d, 3: _aten.upsample_trilinear3d}
NEAREST = {1: _aten.upsample_nearest1d, 2: _aten.upsample_nearest2d, 3: _aten.upsample_nearest3d}


def native(x: Tensor, todo: list[tuple[Axis, Taps]], how: Filter) -> Any:
    """x resized along the axes to be done; None where torch's upsampling means something else."""
    n = x.dim() - 2
    if not todo or n not in LINEAR or any(axis.axis < 2 for axis, _ in todo) or not x.is_floating_point():
        return None
    if any(axis.length in (0, axis.size) for axis, _ in todo):  # torch takes a length that stays for no resize
        return None
    size, scales = list(x.shape[2:]), [1.0] * n
    for axis, _ in todo:
        size[axis.axis - 2], scales[axis.axis - 2] = axis.length, axis.scale
    if how.mode == "nearest":
        same = all(np.array_equal(_floors(axis), plan.index[:, 0]) for axis, plan in todo)
        return NEAREST[n](x, size, *[None] * n) if same else None
    if how.exclude_outside or (how.antialias and min(scales) < 1):
        return None
    kinds = {_kind(axis) for axis, _ in todo}
    if len(kinds) > 1 or None in kinds:
        return None
    corners = kinds == {"align_corners"}
    if how.mode == "linear":
        return LINEAR[n](x, size, corners, *scales)
    return _aten.upsample_bicubic2d(x, size, corners, *scales) if n == 2 and how.coefficient == -0.75 else None


def _kind(axis: Axis) -> str | None:
    """Which of torch's two transformations this is; None if neither."""
    if axis.transformation == "pytorch_half_pixel":
        return "half_pixel" if axis.length > 1 else None
    return axis.transformation if axis.transformation in ("half_pixel", "align_corners") else None


def _floors(axis: Axis) -> Any:
    """The elements that torch's nearest upsampling takes: floor of the coordinate, in float32."""
    out = np.arange(axis.length)
    if axis.length == 2 * axis.size:
        return out // 2
    ratio = np.float32(axis.size) / np.float32(axis.length)
    return np.floor(out.astype(np.float32) * ratio).astype(np.int64).clip(0, axis.size - 1)
