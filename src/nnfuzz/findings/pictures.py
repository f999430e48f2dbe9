"""PNGs of image-shaped inputs: the seed, the failing input, and their difference, amplified."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from nnfuzz.findings.context import RunContext
from nnfuzz.findings.finding import Finding
from nnfuzz.space import InputSpec

SMALLEST_SIDE = 224
"""Smaller images are enlarged to about this many pixels, each becoming a square: 28 × 28 is hard to see."""
KINDS: tuple[str, ...] = ("seed", "failing", "difference")
MOST_TILES = 8
"""Of an input that holds many images, those that changed most are shown side by side."""


@dataclass(frozen=True)
class Picture:
    """What was drawn of one input. ``gain``: how much the difference is amplified; None when there is none."""

    name: str
    files: dict[str, str]
    gain: float | None
    scale: int


def draw(finding: Finding, run: RunContext, into: Path) -> list[Picture]:
    """Writes ``seed.png``, ``failing.png``, ``difference.png`` of each image-shaped input, suffixed after the first."""
    drawn: list[Picture] = []
    for name, failing in finding.inputs.items():
        pair = [_tiles(t, run, name) for t in (finding.seed.get(name), failing)]
        if pair[1] is not None:
            suffix = f"-{re.sub(r'[^A-Za-z0-9_-]', '_', name)}" if drawn else ""
            drawn.append(_draw_one(name, pair[0], pair[1], _range(run, name, pair), suffix, into))
    return drawn


def _draw_one(
    name: str, seed: Tensor | None, failing: Tensor, ends: tuple[float, float], suffix: str, into: Path
) -> Picture:
    low, high = ends
    width = high - low or 1.0
    planes: dict[str, Tensor] = {}
    gain = None
    if seed is not None and seed.shape == failing.shape:
        gap = (failing - seed).nan_to_num(0.0, width, -width) / width
        tiles = gap.abs().flatten(1).sum(1).topk(min(MOST_TILES, len(gap))).indices.sort().values
        seed, failing, gap = seed[tiles], failing[tiles], gap[tiles]
        most = float(gap.abs().max())
        gain = 0.5 / most if most > 0 else 1.0
        planes["difference"] = 0.5 + gain * gap
    planes["failing"] = (failing[:MOST_TILES].nan_to_num(low, high, low) - low) / width
    if seed is not None:
        planes["seed"] = (seed[:MOST_TILES].nan_to_num(low, high, low) - low) / width
    scale = max(1, math.ceil(SMALLEST_SIDE / max(failing.shape[-2:])))
    files = {kind: f"{kind}{suffix}.png" for kind in KINDS if kind in planes}
    for kind, file in files.items():
        _image(planes[kind], scale).save(into / file)
    return Picture(name, files, gain, scale)


def _tiles(t: Tensor | None, run: RunContext, name: str) -> Tensor | None:
    """``(images, channels, height, width)`` in float64, or None when the input is not shaped like an image."""
    if t is None or (not t.is_floating_point() and t.dtype != torch.uint8) or not t.numel():
        return None
    if name in run.image_shapes:
        shape = [int(n) for n in run.image_shapes[name]]
        if t.numel() % max(math.prod(shape), 1):
            return None
        t = t.reshape(-1, *shape)
    elif run.unit == "sample" and t.dim():
        shape = list(t.shape[1:])
    else:
        shape = list(t.shape)
    edge = torch.zeros((), dtype=t.dtype)
    layout = InputSpec(name, tuple(shape), t.dtype, edge, edge).image_layout
    x = t.double()
    if layout == "HW":
        return x.reshape(-1, 1, *x.shape[-2:])
    if layout == "HWC":
        return x.reshape(-1, *x.shape[-3:]).permute(0, 3, 1, 2)
    return x.reshape(-1, *x.shape[-3:]) if layout == "CHW" else None


def _range(run: RunContext, name: str, pair: list[Tensor | None]) -> tuple[float, float]:
    """The run's range of this input, else what the two images span."""
    given = run.ranges.get(name)
    if isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(v, int | float) for v in given):
        low, high = float(given[0]), float(given[1])
        if math.isfinite(high - low) and high > low:
            return low, high
    values = torch.cat([t.flatten() for t in pair if t is not None])
    values = values[values.isfinite()]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _image(tiles: Tensor, scale: int) -> Image.Image:
    """Values in 0…1, ``(images, channels, height, width)``, side by side with a line between."""
    gap = torch.ones(*tiles.shape[1:-1], 1, dtype=tiles.dtype)
    strip = torch.cat([part for tile in tiles for part in (tile, gap)][:-1], -1)
    pixels = (strip.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    array = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    image = Image.fromarray(array.contiguous().numpy())
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
