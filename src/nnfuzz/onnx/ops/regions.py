"""Pooling over regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator

CHUNK = 1 << 24
"""Elements that one step may hold; more regions than fit are taken in several."""


@dataclass(frozen=True)
class Line:
    """Sample points along one axis of some regions, each (R, bins · points): two neighbours and their weights.

    ``points`` of them fall into a bin; ``used`` says which a region really has.
    """

    low: Tensor
    high: Tensor
    low_weight: Tensor
    high_weight: Tensor
    used: Tensor
    points: int
    count: Tensor


def _line(start: Tensor, length: Tensor, bins: int, ratio: int, size: int) -> Line:
    """Points of regions from ``start`` on (both (R,), float) over an axis of ``size`` elements."""
    count = torch.full_like(length, ratio) if ratio > 0 else (length / bins).ceil()
    points = max(1, int(count.max())) if count.numel() else 1
    width = length / bins
    point = torch.arange(points, dtype=start.dtype, device=start.device)
    step = torch.arange(bins, dtype=start.dtype, device=start.device)
    within = (point + 0.5) * width[:, None] / count.clamp(min=1)[:, None]
    at = (start[:, None, None] + step[:, None] * width[:, None, None] + within[:, None]).flatten(1)
    used = (point < count[:, None])[:, None].expand(-1, bins, -1).flatten(1)
    outside = (at < -1) | (at > size)
    at = at.clamp(0, size - 1)
    low = at.detach().nan_to_num().long()
    high = (low + 1).clamp(max=size - 1)
    part = torch.where(low >= size - 1, 0, at - low)
    return Line(
        low, high, torch.where(outside, 0, 1 - part), torch.where(outside, 0, part), used, points, count.clamp(min=0)
    )


@operator("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """x (N, C, H, W), rois (R, 4) as x1, y1, x2, y2, batch (R,) → (R, C, output_height, output_width)."""
    half = call.version >= 16 and call.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    work = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    corners = rois.to(work.dtype) * call.attr("spatial_scale", 1.0) - (0.5 if half else 0.0)
    start, length = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if not half:
        length = length.clamp(min=1)
    bins = call.attr("output_height", 1), call.attr("output_width", 1)
    ratio = call.attr("sampling_ratio", 0)
    across = _line(start[:, 0], length[:, 0], bins[1], ratio, x.shape[3])
    down = _line(start[:, 1], length[:, 1], bins[0], ratio, x.shape[2])
    pool = _largest if call.attr("mode", "avg") == "max" else _mean
    each = x.shape[1] * down.low.shape[1] * max(x.shape[3], across.low.shape[1] if pool is _largest else 0)
    step = max(1, CHUNK // max(1, each))
    parts = [pool(work, batch[i : i + step], _some(down, i, step), _some(across, i, step), bins)
             for i in range(0, rois.shape[0], step)]  # fmt: skip
    return torch.cat(parts).to(x.dtype) if parts else x.new_zeros(0, x.shape[1], *bins)


def _some(line: Line, begin: int, step: int) -> Line:
    rows = [t[begin : begin + step] for t in (line.low, line.high, line.low_weight, line.high_weight, line.used)]
    return Line(rows[0], rows[1], rows[2], rows[3], rows[4], line.points, line.count[begin : begin + step])


def _mean(x: Tensor, batch: Tensor, down: Line, across: Line, bins: tuple[int, int]) -> Tensor:
    """Mean of the interpolated points: rows first, then columns, since the weights are products."""
    image = batch[:, None]
    rows = x[image, :, down.low] * (down.low_weight * down.used)[..., None, None]
    rows = rows + x[image, :, down.high] * (down.high_weight * down.used)[..., None, None]
    rows = rows.unflatten(1, (bins[0], down.points)).sum(2).transpose(1, 2)  # (R, C, bins, W)
    shape = (-1, rows.shape[1], bins[0], -1)
    low, high = (i[:, None, None].expand(shape) for i in (across.low, across.high))
    first, second = ((w * across.used)[:, None, None] for w in (across.low_weight, across.high_weight))
    values = rows.gather(3, low) * first + rows.gather(3, high) * second
    total: Tensor = values.unflatten(3, (bins[1], across.points)).sum(4)
    return total / (down.count * across.count).clamp(min=1)[:, None, None, None]


def _largest(x: Tensor, batch: Tensor, down: Line, across: Line, bins: tuple[int, int]) -> Tensor:
    """Largest weighted neighbour of any point, which is what ONNX calls the maximum."""
    flat, width = x.flatten(2)[batch], x.shape[3]
    best = None
    for row, a in ((down.low, down.low_weight), (down.high, down.high_weight)):
        for column, b in ((across.low, across.low_weight), (across.high, across.high_weight)):
            index = (row[:, :, None] * width + column[:, None]).flatten(1)
            values = (
                flat.gather(2, index[:, None].expand(-1, x.shape[1], -1))
                * (a[:, :, None] * b[:, None]).flatten(1)[:, None]
            )
            best = values if best is None else torch.maximum(best, values)
    assert best is not None
    used = (down.used[:, :, None] & across.used[:, None]).flatten(1)[:, None]
    best = torch.where(used, best, -torch.inf).unflatten(2, (bins[0], down.points, bins[1], across.points))
    return torch.where((down.count * across.count == 0)[:, None, None, None], 0, best.amax((3, 5)))


@operator("MaxRoiPool")
def max_roi_pool(call: Call, x: Tensor, rois: Tensor) -> Tensor:
    """x (N, C, H, W), rois (R, 5) as image, x1, y1, x2, y2, ends included → (R, C, *pooled_shape)."""
    bins = [int(v) for v in call.attr("pooled_shape")]
    scaled = rois[:, 1:].double() * call.attr("spatial_scale", 1.0)
    corners = (scaled.abs() + 0.5).floor() * scaled.sign()  # halves away from zero
    size = (corners[:, 2:] - corners[:, :2] + 1).clamp(min=1)
    across = _bins(corners[:, 0], size[:, 0], bins[1], x.shape[3])
    down = _bins(corners[:, 1], size[:, 1], bins[0], x.shape[2])
    step = max(1, CHUNK // max(1, x.shape[1] * x.shape[2] * x.shape[3]))
    parts = []
    for i in range(0, rois.shape[0], step):
        part = x[rois[i : i + step, 0].long()]
        columns = torch.stack(
            [_masked_max(part, across[i : i + step, k][:, None, None], 3) for k in range(bins[1])], 3
        )  # (R, C, H, bins)
        parts.append(
            torch.stack([_masked_max(columns, down[i : i + step, k][:, None, :, None], 2) for k in range(bins[0])], 2)
        )
    empty = ~(down.any(2)[:, :, None] & across.any(2)[:, None])
    pooled = torch.cat(parts) if parts else x.new_zeros(0, x.shape[1], *bins)
    return torch.where(empty[:, None], 0, pooled)


def _bins(start: Tensor, length: Tensor, bins: int, size: int) -> Tensor:
    """Which elements of an axis belong to each bin: (R, bins, size), bool."""
    k = torch.arange(bins, device=start.device)
    width = length[:, None] / bins
    begin = (start[:, None] + (k * width).floor()).clamp(0, size)
    end = (start[:, None] + ((k + 1) * width).ceil()).clamp(0, size)
    at = torch.arange(size, device=start.device)
    return (at >= begin[..., None]) & (at < end[..., None])


def _masked_max(x: Tensor, mask: Tensor, axis: int) -> Tensor:
    return torch.where(mask, x, -torch.inf).amax(axis)
