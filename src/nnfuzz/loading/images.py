"""A folder of PNG/JPEG images → one float32 tensor ``(n, channels, height, width)`` in 0..1, sorted by name."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from nnfuzz.errors import UsageError

ENDINGS = {".png", ".jpg", ".jpeg"}
MAX_BYTES = 4 << 30
"""As for other seeds (see ``loading.seeds``)."""
MAX_IMAGES = 10_000
"""More files than this in one folder are a training set, not seeds."""


def load_images(folder: Path) -> Tensor:
    """All images in the folder and its subfolders; grayscale gives one channel, unless any other is in colour."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and not _hidden(p, folder))
    if not paths:
        raise UsageError(f"the folder {folder} holds no PNG or JPEG images")
    if len(paths) > MAX_IMAGES:
        raise UsageError(f"the folder {folder} holds {len(paths):,} images: give at most {MAX_IMAGES:,} as seeds")
    _check_room(paths, folder)
    first, images = None, []
    for path in paths:
        image = _read(path)
        size = (image.shape[1], image.shape[0])
        if first is None:
            first = (path, size)
        elif size != first[1]:
            raise UsageError(
                f"{path} is {size[0]}x{size[1]} but {first[0].name} is {first[1][0]}x{first[1][1]}: "
                "images in a folder need one size"
            )
        images.append(image)
    channels = max(i.shape[2] for i in images)
    full = [np.repeat(i, channels, axis=2) if i.shape[2] < channels else i for i in images]
    return torch.from_numpy(np.ascontiguousarray(np.stack(full).transpose(0, 3, 1, 2)))


def _check_room(paths: list[Path], folder: Path) -> None:
    """By the files' headers, before any is decoded: a few thousand photographs are more than a machine can hold."""
    total = 0
    for path in paths:
        with warnings.catch_warnings(), suppress(Exception):  # what cannot be read is told where it is read
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                total += image.width * image.height * (1 if image.mode in ("1", "L", "I", "I;16") else 3) * 4
    if total > MAX_BYTES:
        raise UsageError(
            f"the {len(paths):,} images in the folder {folder} are {total / 2**30:.1f} GiB as numbers, more than the "
            f"{MAX_BYTES >> 30} GiB that seeds may take: a few dozen of them are enough"
        )


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _read(path: Path) -> NDArray[np.float32]:
    """``(height, width, 1 or 3)``, turned upright as its EXIF says."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                image = ImageOps.exif_transpose(opened)
                image.load()
    except Exception as error:
        raise UsageError(f"{path} cannot be read as an image: {error}") from error
    return _pixels(image, path)


def _pixels(image: Image.Image, path: Path) -> NDArray[np.float32]:
    if image.mode.startswith("I"):
        deep: NDArray[np.float32] = (np.asarray(image).astype(np.float64) / 65535).clip(0, 1).astype(np.float32)
        return deep[..., None]
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        if np.asarray(image)[..., 3].min() < 255:
            raise UsageError(f"{path} is transparent in places, and what shows there is unknown: save it without alpha")
    gray = image.mode in ("1", "L", "LA")
    values: NDArray[np.float32] = np.asarray(image.convert("L" if gray else "RGB")).astype(np.float32)
    values = values / np.float32(255)
    return values[..., None] if gray else values
