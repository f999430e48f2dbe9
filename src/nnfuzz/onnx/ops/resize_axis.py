"""One axis of a Resize: coordinates in the operand, and the elements and weights that each takes.

In NumPy, since none of it depends on values: what watches the model's operations sees only those that touch data.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from nnfuzz.errors import Unsupported

Array = np.ndarray[Any, Any]
Numbers = TypeVar("Numbers", Tensor, Array)


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


@dataclass(frozen=True, eq=False)
class Taps:
    """What each output element is made of.

    Attributes:
        index: elements of the operand, (length, taps), int64.
        weight: theirs, float32, of the same shape; None for nearest, which has one tap.
        outside: output elements that lie outside the operand, (length,), bool.
    """

    index: Array
    weight: Array | None
    outside: Array

    def keep(self, size: int) -> bool:
        """The axis, of this size, stays as it is."""
        return self.weight is None and np.array_equal(self.index[:, 0], np.arange(size))


def single(number: float) -> float:
    """Rounded to float32, in which runtimes compute sizes and scales."""
    return float(np.float32(number))


def coordinates(axis: Axis) -> Array:
    """Where each output element lies in the operand: (length,), float32.

    Raises:
        Unsupported: a transformation that ONNX does not define.
    """
    out = np.arange(axis.length, dtype=np.float32)
    scale, steps = np.float32(axis.scale), axis.length - 1
    half, one = np.float32(0.5), np.float32(1)
    if scale == 1 and axis.transformation != "tf_crop_and_resize":
        return out  # also where the formula would shift it
    match axis.transformation:
        case "half_pixel":
            return (out + half) / scale - half
        case "half_pixel_symmetric":  # both middles coincide although the length was rounded down
            shift = np.float32(axis.size / 2) * (one - np.float32(axis.length) / (scale * np.float32(axis.size)))
            return shift + (out + half) / scale - half
        case "pytorch_half_pixel":
            return (out + half) / scale - half if axis.length > 1 else np.zeros_like(out)
        case "align_corners":
            return out * np.float32(axis.size - 1) / np.float32(steps) if steps > 0 else np.zeros_like(out)
        case "asymmetric":
            return out / scale
        case "tf_half_pixel_for_nn":
            return (out + half) / scale
        case "tf_crop_and_resize":
            begin, end, last = *(np.float32(r) for r in axis.roi), np.float32(axis.size - 1)
            if steps <= 0:
                return np.full_like(out, half * (begin + end) * last)
            return begin * last + out * (end - begin) * last / np.float32(steps)
    raise Unsupported(f"Resize: the coordinate_transformation_mode {axis.transformation!r} is not one of ONNX")


@functools.lru_cache(512)
def taps(axis: Axis, how: Filter) -> Taps:
    """Which elements make up each element of a resized axis.

    Raises:
        Unsupported: a mode that ONNX does not define.
    """
    at = coordinates(axis)
    outside = (at < 0) | (at > axis.size - 1)
    if how.mode == "nearest":
        index = _round(at.astype(np.float64), how.nearest, axis.scale).clip(0, axis.size - 1)
        return Taps(index.astype(np.int64)[:, None], None, outside)
    if how.mode not in ("linear", "cubic"):
        raise Unsupported(f"Resize: the mode {how.mode!r} is not one of ONNX (nearest, linear, cubic)")
    support = 1 if how.mode == "linear" else 2
    # Against aliasing the filter is stretched over as many elements as one output element stands for.
    shrink = np.float32(min(axis.scale, 1.0) if how.antialias else 1.0)
    half = math.ceil(support / shrink)
    first = np.floor(at)
    offset = np.arange(1 - half, half + 1)
    away = (offset.astype(np.float32) - (at - first)[:, None]) * shrink
    weight = triangle(away) if how.mode == "linear" else cubic(away, how.coefficient)
    index = first[:, None].astype(np.int64) + offset
    if how.exclude_outside:
        weight = weight * ((index >= 0) & (index < axis.size))
    if how.exclude_outside or how.antialias:
        total = weight.sum(1, keepdims=True)
        weight = weight / np.where(total == 0, np.float32(1), total)
    index = index.clip(0, axis.size - 1)
    if np.array_equal(index[:, half - 1], np.arange(axis.length)) and not (weight[:, half - 1] != 1).any():
        return Taps(index[:, half - 1 : half], None, outside)  # every element as it is
    return Taps(index, weight, outside)


def _round(at: Array, how: str, scale: float) -> Array:
    match how:
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
        case "round_prefer_ceil":
            return np.floor(at + 0.5)
        case "floor":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
        case "opset 10":  # not specified then; the runtime rounds up when it shrinks
            return np.ceil(at) if scale < 1 else np.floor(at)
    raise Unsupported(f"Resize: the nearest_mode {how!r} is not one of ONNX")


def triangle(away: Numbers) -> Numbers:
    """Weight of an element at a distance, in linear interpolation."""
    return (1 - abs(away)).clip(min=0)


def cubic(away: Numbers, a: float = -0.75) -> Numbers:
    """Keys' cubic convolution: 1 at 0, 0 at ±1 and from ±2 on."""
    d = abs(away)
    near: Numbers = ((a + 2) * d - (a + 3)) * d * d + 1
    far: Numbers = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weight: Numbers = near * (d <= 1) + far * ((d > 1) & (d < 2))
    return weight
