"""Values between the elements of an image: GridSample, AffineGrid, and the sampler that others share."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.resize_axis import cubic, triangle

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names until opset 19 → those since opset 20."""

TORCH = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def sample(x: Tensor, at: Tensor, mode: str = "linear", padding: str = "zeros", corners: bool = True) -> Tensor:
    """Values of an n-dimensional image at any coordinates.

    Args:
        x: (N, C, *D), floating.
        at: (N, *O, n) coordinates in elements, in the order of the axes of D.
        mode: "nearest", "linear" or "cubic" (coefficient −0.75).
        padding: what lies outside: "zeros", "border" or "reflection".
        corners: reflection is about the outermost elements' centres; else about their outer edges.

    Returns:
        (N, C, *O)
    """
    size = x.shape[2:]
    flat, places = x.flatten(2), at.flatten(1, -2)
    choices = []  # for each axis its taps: (index, weight), each (N, places)
    for axis, d in enumerate(size):
        place = places[..., axis]
        choices.append(_taps(place.round() if mode == "nearest" else place, d, mode, padding, corners))
    total = None
    for combination in itertools.product(*choices):
        index, weight = torch.zeros((), dtype=torch.int64, device=x.device), torch.ones((), device=x.device)
        for (i, w), d in zip(combination, size, strict=True):
            index, weight = index * d + i, weight * w
        values = flat.gather(2, index[:, None].expand(-1, flat.shape[1], -1))
        part = values * weight[:, None].to(x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(*total.shape[:2], *at.shape[1:-1])


def _taps(place: Tensor, d: int, mode: str, padding: str, corners: bool) -> list[tuple[Tensor, Tensor]]:
    first = place.floor()
    offsets = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    found = []
    for o in offsets:
        index = first + o
        away = place - index
        weight = torch.ones_like(place) if mode == "nearest" else triangle(away) if mode == "linear" else cubic(away)
        if padding == "zeros":
            weight = torch.where((index >= 0) & (index < d), weight, 0)
        elif padding == "reflection":
            index = _reflect(index, 0, d - 1) if corners else _reflect(index, -0.5, d - 0.5)
        found.append((_index(index, d), weight))
    return found


def _index(at: Tensor, d: int) -> Tensor:
    # A coordinate that is no number names some element, and its weight makes the value no number.
    return at.detach().nan_to_num().clamp(0, d - 1).long()


def _reflect(at: Tensor, low: float, high: float) -> Tensor:
    """Mirrored at both ends until it lies between them."""
    span = high - low
    if span <= 0:
        return torch.zeros_like(at)
    away = (at - low).abs() % (2 * span)
    return low + torch.where(away > span, 2 * span - away, away)


@operator("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    """x (N, C, *D) at grid (N, *O, n), from −1 to 1 along each axis, the last axis first → (N, C, *O)."""
    mode = call.attr("mode", "linear")
    mode = MODES.get(mode, mode)
    padding, corners = call.attr("padding_mode", "zeros"), bool(call.attr("align_corners", 0))
    work = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    grid = grid.to(work.dtype)
    n = x.dim() - 2
    if n == 2 or (n == 3 and mode != "cubic"):
        return F.grid_sample(work, grid, TORCH[mode], padding, corners).to(x.dtype)
    size = torch.tensor(x.shape[2:], dtype=grid.dtype, device=grid.device)
    at = grid.flip(-1)
    at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
    return sample(work, at, mode, padding, corners).to(x.dtype)


@operator("AffineGrid")
def affine_grid(call: Call, theta: Tensor, size: Tensor) -> Tensor:
    """theta (N, n, n+1) and size (N, C, *D) → the grid (N, *D, n) that GridSample takes."""
    return F.affine_grid(theta, [int(v) for v in size.tolist()], bool(call.attr("align_corners", 0)))
