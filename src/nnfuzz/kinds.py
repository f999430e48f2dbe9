"""What an input *is*, beyond its range: one small projection per kind, each onto the set of legal values.

A projection takes ``x`` of shape ``(batch, *shape)`` (finite or not) and returns legal values of the same shape and
dtype; applied twice it changes nothing more. ``legal`` is the matching test, one bool per batch row. The last axis
is the one that is normalised (one-hot labels, probabilities, unit vectors, boxes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nnfuzz.registry import Registry

if TYPE_CHECKING:
    from nnfuzz.space import InputSpec


class Kind(NamedTuple):
    """``discrete``: values jump, so an eps-ball either contains a neighbour or only the anchor itself."""

    project: Callable[[Tensor, InputSpec], Tensor]
    legal: Callable[[Tensor, InputSpec], Tensor]
    discrete: bool
    last_axis: bool


KINDS: Registry[Kind] = Registry("kind")


def rows_all(ok: Tensor) -> Tensor:
    """(batch, ...) bool → (batch,) bool."""
    return ok.reshape(ok.shape[0], -1).all(1) if ok.dim() > 1 else ok


def finite(x: Tensor, spec: InputSpec) -> Tensor:
    """Replaces NaN by the middle of the range; ±inf is left to the clamp that follows."""
    if not x.is_floating_point():
        return x
    if spec.scalar_range is not None:  # seven times faster than where, and in place
        return x.nan_to_num_(float(spec.middle), math.inf, -math.inf)
    return torch.where(x.isnan(), spec.middle.to(x.device), x)


def clamp(x: Tensor, spec: InputSpec) -> Tensor:
    """In place where it can: the hot path of float inputs."""
    if spec.dtype == torch.bool:
        return x
    if spec.scalar_range is not None:
        return x.clamp_(*spec.scalar_range)
    return torch.minimum(torch.maximum(x, spec.low.to(x.device)), spec.high.to(x.device))


def in_range(x: Tensor, spec: InputSpec) -> Tensor:
    if spec.dtype == torch.bool:
        return torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    return rows_all((x >= spec.low.to(x.device)) & (x <= spec.high.to(x.device)))


def _integer(x: Tensor, spec: InputSpec) -> Tensor:
    if not x.is_floating_point():
        return clamp(x, spec)
    # Bounds need not be whole numbers themselves: [0.5, 3.5] holds 1, 2 and 3.
    return torch.clamp(x.round_(), spec.low.to(x.device).ceil(), spec.high.to(x.device).floor())


def _is_integer(x: Tensor, spec: InputSpec) -> Tensor:
    ok = in_range(x, spec)
    return ok & rows_all(x == x.round()) if x.is_floating_point() else ok


def _choice(x: Tensor, spec: InputSpec) -> Tensor:
    """The nearest legal value, element by element (ties go to the smaller)."""
    assert spec.choices is not None
    values = spec.choices.to(x.device)
    if len(values) == 1:
        return torch.full_like(x, values[0].item())
    wide = values.double()
    return values[torch.bucketize(x.double().contiguous(), wide[1:] / 2 + wide[:-1] / 2)]


def _is_choice(x: Tensor, spec: InputSpec) -> Tensor:
    assert spec.choices is not None
    return rows_all(torch.isin(x, spec.choices.to(x.device)))


def _onehot(x: Tensor, spec: InputSpec) -> Tensor:
    index = x.to(torch.float32 if x.dtype == torch.bool else x.dtype).argmax(-1, keepdim=True)
    return torch.zeros_like(x).scatter_(-1, index, 1)


def _is_onehot(x: Tensor, spec: InputSpec) -> Tensor:
    y = x.to(torch.float64)
    return rows_all(((y == 0) | (y == 1)).all(-1) & (y.sum(-1) == 1))


def _simplex(x: Tensor, spec: InputSpec) -> Tensor:
    """Non-negative and summing to one (within the dtype's rounding); a row of zeros becomes uniform."""
    wide = x.double().clamp(0, torch.finfo(x.dtype).max)
    if x.dtype == torch.float64:  # the sum must not overflow
        wide = torch.where(wide > 1e300, wide / 1e300, torch.where(wide.amax(-1, keepdim=True) > 1e300, 0, wide))
    total = wide.sum(-1, keepdim=True)
    uniform = torch.full_like(wide, 1 / x.shape[-1])
    already = (total - 1).abs() <= _sum_slack(x)
    shares = torch.where(total > 0, wide / total.clamp(min=torch.finfo(torch.float64).tiny), uniform)
    return torch.where(already, wide, shares).to(x.dtype)


def _sum_slack(x: Tensor) -> float:
    return float(torch.finfo(x.dtype).eps * max(4, x.shape[-1]))


def _is_simplex(x: Tensor, spec: InputSpec) -> Tensor:
    wide = x.double()
    return rows_all((wide >= 0).all(-1) & ((wide.sum(-1) - 1).abs() <= _sum_slack(x)))


def _unit(x: Tensor, spec: InputSpec) -> Tensor:
    """Euclidean length one along the last axis; a zero vector becomes the first axis direction."""
    # ±inf becomes the dtype's largest number, and a float64 vector is scaled first: its squares must neither overflow
    # nor lose their digits as subnormals.
    wide = x.nan_to_num(0.0).double()
    if x.dtype == torch.float64:
        top = wide.abs().amax(-1, keepdim=True)
        wide = torch.where((top > 1e150) | ((top > 0) & (top < 1e-150)), wide / top, wide)
    norm = wide.norm(dim=-1, keepdim=True)
    axis = torch.zeros_like(wide)
    axis[..., 0] = 1
    already = (norm - 1).abs() <= _sum_slack(x)
    scaled = torch.where(norm > 0, wide / norm.clamp(min=torch.finfo(torch.float64).tiny), axis)
    return torch.where(already, wide, scaled).to(x.dtype)


def _is_unit(x: Tensor, spec: InputSpec) -> Tensor:
    return rows_all((x.double().norm(dim=-1) - 1).abs() <= _sum_slack(x))


def _boxes(x: Tensor, spec: InputSpec) -> Tensor:
    """(…, 4) as x1, y1, x2, y2 with x1 ≤ x2 and y1 ≤ y2; a flat box is legal."""
    x = clamp(x, spec)
    low, high = torch.minimum(x[..., :2], x[..., 2:]), torch.maximum(x[..., :2], x[..., 2:])
    # Clamped again, for corners with ranges of their own: what was swapped may lie outside, and cannot cross back.
    return clamp(torch.cat([low, high], -1), spec)


def _is_boxes(x: Tensor, spec: InputSpec) -> Tensor:
    return in_range(x, spec) & rows_all((x[..., :2] <= x[..., 2:]).all(-1))


KINDS.register("real")(Kind(clamp, in_range, discrete=False, last_axis=False))
KINDS.register("integer")(Kind(_integer, _is_integer, discrete=True, last_axis=False))
KINDS.register("bool")(Kind(clamp, in_range, discrete=True, last_axis=False))
KINDS.register("choice")(Kind(_choice, _is_choice, discrete=True, last_axis=False))
KINDS.register("mask")(Kind(_choice, _is_choice, discrete=True, last_axis=False))
KINDS.register("onehot")(Kind(_onehot, _is_onehot, discrete=True, last_axis=True))
KINDS.register("simplex")(Kind(_simplex, _is_simplex, discrete=False, last_axis=True))
KINDS.register("unit")(Kind(_unit, _is_unit, discrete=False, last_axis=True))
KINDS.register("boxes")(Kind(_boxes, _is_boxes, discrete=False, last_axis=True))

ALIASES = {
    "probabilities": "simplex",
    "probs": "simplex",
    "int": "integer",
    "float": "real",
    "one-hot": "onehot",
    "categorical": "choice",
    "choices": "choice",
    "box": "boxes",
}
