"""One axis of a Resize: coordinates in the operand, and the elements and weights that each takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.errors import Unsupported


@dataclass(frozen=True)
class Axis:
    """An axis of ``size`` elements that becomes one of ``length``.

    Attributes:
        scale: as the node gives it; ``size * scale`` may be fractional.
        transformation: coordinate_transformation_mode of ONNX.
        roi: where the crop begins and ends, in units of the axis (tf_crop_and_resize only).
    """

    axis: int
    size: int
    length: int
    scale: float
    transformation: str = "half_pixel"
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Filter:
    """How an element is made of its neighbours: attributes of Resize by their ONNX meaning."""

    mode: str
    nearest: str = "floor"
    coefficient: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def coordinates(axis: Axis, device: torch.device) -> Tensor:
    """Where each output element lies in the operand: (length,), float32 as runtimes compute it.

    Raises:
        Unsupported: a transformation that ONNX does not define.
    """
    out = torch.arange(axis.length, dtype=torch.float32, device=device)
    scale, steps = axis.scale, axis.length - 1
    match axis.transformation:
        case "half_pixel":
            return (out + 0.5) / scale - 0.5
        case "half_pixel_symmetric":  # both middles coincide although the length was rounded down
            shift = axis.size / 2 * (1 - axis.length / (scale * axis.size))
            return shift + (out + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (out + 0.5) / scale - 0.5 if axis.length > 1 else torch.zeros_like(out)
        case "align_corners":
            return out * (axis.size - 1) / steps if steps > 0 else torch.zeros_like(out)
        case "asymmetric":
            return out / scale
        case "tf_half_pixel_for_nn":
            return (out + 0.5) / scale
        case "tf_crop_and_resize":
            begin, end = axis.roi
            if steps <= 0:
                return torch.full_like(out, 0.5 * (begin + end) * (axis.size - 1))
            return begin * (axis.size - 1) + out * (end - begin) * (axis.size - 1) / steps
    raise Unsupported(f"Resize: the coordinate_transformation_mode {axis.transformation!r} is not one of ONNX")


def taps(at: Tensor, axis: Axis, how: Filter) -> tuple[Tensor, Tensor | None]:
    """Indices (length, taps) into the axis and their weights of the same shape; None for nearest.

    Raises:
        Unsupported: a mode that ONNX does not define.
    """
    if how.mode == "nearest":
        return _round(at.double(), how.nearest, axis.scale).long().clamp(0, axis.size - 1)[:, None], None
    if how.mode not in ("linear", "cubic"):
        raise Unsupported(f"Resize: the mode {how.mode!r} is not one of ONNX (nearest, linear, cubic)")
    support = 1 if how.mode == "linear" else 2
    # Against aliasing the filter is stretched over as many elements as one output element stands for.
    shrink = min(axis.scale, 1.0) if how.antialias else 1.0
    half = math.ceil(support / shrink)
    first = at.floor()
    offset = torch.arange(1 - half, half + 1, device=at.device)
    away = (offset - (at - first)[:, None]) * shrink
    weight = triangle(away) if how.mode == "linear" else cubic(away, how.coefficient)
    index = first[:, None].long() + offset
    if how.exclude_outside:
        weight = torch.where((index >= 0) & (index < axis.size), weight, 0)
    if how.exclude_outside or how.antialias:
        total = weight.sum(1, keepdim=True)
        weight = weight / torch.where(total == 0, 1, total)
    return index.clamp(0, axis.size - 1), weight


def _round(at: Tensor, how: str, scale: float) -> Tensor:
    match how:
        case "round_prefer_floor":
            return (at - 0.5).ceil()
        case "round_prefer_ceil":
            return (at + 0.5).floor()
        case "floor":
            return at.floor()
        case "ceil":
            return at.ceil()
        case "opset 10":  # not specified then; the runtime rounds up when it shrinks
            return at.ceil() if scale < 1 else at.floor()
    raise Unsupported(f"Resize: the nearest_mode {how!r} is not one of ONNX")


def triangle(away: Tensor) -> Tensor:
    """Weight of an element at a distance, in linear interpolation."""
    return (1 - away.abs()).clamp(min=0)


def cubic(away: Tensor, a: float = -0.75) -> Tensor:
    """Keys' cubic convolution: 1 at 0, 0 at ±1 and from ±2 on."""
    d = away.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))
