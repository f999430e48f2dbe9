"""Pooling over regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator

CHUNK = 1 << 22
"""Elements that one step may hold; more regions than fit are taken in several."""


@dataclass(frozen=True)
class Line:
    """Sample points along one axis of some regions.

    Attributes:
        index: the two neighbours of each point, (R, bins, points, 2), int64.
        weight: theirs, 0 for a point outside the image.
        count: how many points a bin of each region really has, (R,); the rest are there to fill the array.
    """

    index: Tensor
    weight: Tensor
    count: Tensor

    def some(self, begin: int, step: int) -> Line:
        """A few of the regions, with no more points than they need."""
        count = self.count[begin : begin + step]
        points = max(1, int(count.max()))
        return Line(self.index[begin : begin + step, :, :points], self.weight[begin : begin + step, :, :points], count)


def _line(start: Tensor, length: Tensor, bins: int, ratio: int, size: int) -> Line:
    """Points of regions from ``start`` on (both (R,), float) over an axis of ``size`` elements."""
    width = length / bins
    count = torch.full_like(length, ratio) if ratio > 0 else width.ceil()
    points = max(1, int(count.detach().max()))
    point = torch.arange(points, dtype=start.dtype, device=start.device)
    step = torch.arange(bins, dtype=start.dtype, device=start.device)[:, None]
    within = (point + 0.5) * width[:, None] / count.clamp(min=1)[:, None]
    at = start[:, None, None] + step * width[:, None, None] + within[:, None]
    inside = (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    low = at.detach().nan_to_num().long()
    part = at - low
    index = torch.stack([low, (low + 1).clamp(max=size - 1)], -1)
    return Line(index, torch.stack([1 - part, part], -1) * inside[..., None], count.clamp(min=0).long())


@operator("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """x (N, C, H, W), rois (R, 4) as x1, y1, x2, y2, batch (R,) → (R, C, output_height, output_width)."""
    height, width = call.attr("output_height", 1), call.attr("output_width", 1)
    if rois.shape[0] == 0:
        return x.new_zeros(0, x.shape[1], height, width)
    half = call.version >= 16 and call.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    work = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    corners = rois.to(work.dtype) * call.attr("spatial_scale", 1.0) - (0.5 if half else 0.0)
    start, length = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if not half:
        length = length.clamp(min=1)
    ratio, largest = call.attr("sampling_ratio", 0), call.attr("mode", "avg") == "max"
    across = _line(start[:, 0], length[:, 0], width, ratio, x.shape[3])
    down = _line(start[:, 1], length[:, 1], height, ratio, x.shape[2])
    # A row for each place of each image, so that all channels of a place lie together.
    table = work.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    each = height * width * down.index.shape[2] * across.index.shape[2] * 4 * (x.shape[1] if largest else 1)
    step = max(1, CHUNK // each)
    parts = []
    for i in range(0, rois.shape[0], step):
        first = batch[i : i + step].long() * x.shape[2]
        pooled = (_largest if largest else _mean)(table, first, x.shape[3], down.some(i, step), across.some(i, step))
        parts.append(pooled.reshape(-1, height, width, x.shape[1]))
    return torch.cat(parts).permute(0, 3, 1, 2).to(x.dtype)


def _points(first: Tensor, width: int, down: Line, across: Line) -> tuple[Tensor, Tensor, Tensor]:
    """Every neighbour of every point: its row in the table, its weight, whether it is used; (R, bins, neighbours)."""
    rows = (first[:, None, None, None] + down.index)[:, :, None, :, None, :, None] * width
    index = rows + across.index[:, None, :, None, :, None, :]
    weight = down.weight[:, :, None, :, None, :, None] * across.weight[:, None, :, None, :, None, :]
    used = [torch.arange(line.index.shape[2], device=first.device) < line.count[:, None] for line in (down, across)]
    both = used[0][:, None, None, :, None, None, None] & used[1][:, None, None, None, :, None, None]
    return (
        index.flatten(3).flatten(1, 2),
        weight.flatten(3).flatten(1, 2),
        both.expand_as(index).flatten(3).flatten(1, 2),
    )


def _mean(table: Tensor, first: Tensor, width: int, down: Line, across: Line) -> Tensor:
    """Mean of the interpolated points of each bin: (R·bins, C)."""
    index, weight, used = _points(first, width, down, across)
    sizes = used.sum(2).flatten()
    offsets = sizes.cumsum(0) - sizes
    total = F.embedding_bag(index[used], table, offsets, mode="sum", per_sample_weights=weight[used])
    return total / (sizes / 4).clamp(min=1)[:, None]


def _largest(table: Tensor, first: Tensor, width: int, down: Line, across: Line) -> Tensor:
    """Largest weighted neighbour of any point, which is what ONNX calls the maximum: (R·bins, C)."""
    index, weight, used = (t.flatten(0, 1) for t in _points(first, width, down, across))
    values = torch.where(used[..., None], table[index] * weight[..., None], -torch.inf)
    return torch.where(used.any(1)[:, None], values.amax(1), 0)


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
