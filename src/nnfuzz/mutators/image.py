"""Pictures changed as the world changes them: light, focus, position, occlusion. For inputs of image shape."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, log_uniform, special, uniform
from nnfuzz.mutators.ranges import cast, largest_finite, step, wide
from nnfuzz.mutators.regions import box
from nnfuzz.space import Batch, InputSpace, InputSpec


class ImageMutator(Mutator):
    """Brings HW, CHW and HWC inputs to (rows, channels, height, width) and back; leading axes count as channels."""

    name: ClassVar[str]

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.image_like]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel() or min(x.shape[-2:]) < 1:
                continue
            last = spec.image_layout == "HWC"
            planes = x.movedim(-1, -3) if last else x
            shape = planes.shape
            planes = wide(planes).reshape(len(x), -1, *shape[-2:])
            changed = self.change(planes, spec, ctx).to(x.dtype).reshape(shape)
            batch[spec.name] = (changed.movedim(-3, -1) if last else changed).contiguous()

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        """(rows, channels, height, width), float32 or float64, the same back."""
        raise NotImplementedError


@register
class Tone(ImageMutator):
    """Brightness (±half the range), contrast (0.1 to 3) and, for half the groups, inversion of some rows."""

    name = "image-tone"

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        contrast = log_uniform(ctx, x, 0.1, 3.0).to(x.dtype)
        if ctx.rng.random() < 0.5:
            contrast = torch.where(coin(ctx, x, 0.3), -contrast, contrast)
        mean = x.mean((-2, -1), keepdim=True)
        limit = largest_finite(x.dtype)
        span = float((spec.high.double() - spec.low.double()).max().clamp(max=limit))
        shift = (uniform(ctx, x, -0.5, 0.5).double() * span).clamp(-limit, limit).to(x.dtype)
        shift = torch.where(coin(ctx, x, 0.3), 0, shift)
        return torch.addcmul(mean * (1 - contrast) + shift, x, contrast)


@register
class Blur(ImageMutator):
    """Mixes in a 3×3 or 5×5 box blur; a negative share sharpens."""

    name = "image-blur"

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        reach = 1 + int(ctx.rng.integers(2))
        blurred = x
        for axis in (-2, -1):  # separable: two short sums instead of one of k² terms
            blurred = _mean_along(blurred, axis, reach)
        return torch.lerp(x, blurred, uniform(ctx, x, -1.0, 1.0).to(x.dtype))


def _mean_along(x: Tensor, axis: int, reach: int) -> Tensor:
    """Mean of the 2·reach + 1 neighbours along an axis, edges repeated."""
    n = x.shape[axis]
    first, last = x.narrow(axis, 0, 1), x.narrow(axis, n - 1, 1)
    padded = torch.cat([*[first] * reach, x, *[last] * reach], axis)
    total = padded.narrow(axis, 0, n) + padded.narrow(axis, 2 * reach, n)
    for k in range(1, 2 * reach):
        total += padded.narrow(axis, k, n)
    return total.div_(2 * reach + 1)


@register
class Shift(ImageMutator):
    """Moves the picture by up to a quarter; what comes in is the other side, the edge, or the darkest value."""

    name = "image-shift"

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        border = int(ctx.rng.integers(3))
        dark = x.amin((-2, -1), keepdim=True) if border == 2 else None
        for axis in (-2, -1):
            n = x.shape[axis]
            by = int(ctx.rng.integers(-(n // 4) - 1, n // 4 + 2))
            source = torch.arange(n, device=x.device) - by
            outside = (source < 0) | (source >= n)
            x = x.index_select(axis, source % n if border == 0 else source.clamp(0, n - 1))
            if dark is not None:
                x = torch.where(outside[:, None] if axis == -2 else outside, dark, x)
        return x


@register
class Rotate(ImageMutator):
    """Turns by up to 45° and zooms by 0.8 to 1.25, bilinear, one angle a row."""

    name = "image-rotate"

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        angle = uniform(ctx, x, -math.pi / 4, math.pi / 4).view(-1).to(x.dtype)
        zoom = log_uniform(ctx, x, 0.8, 1.25).view(-1).to(x.dtype)
        cos, sin, zero = angle.cos() * zoom, angle.sin() * zoom, torch.zeros_like(angle)
        turn = torch.stack([cos, -sin, zero, sin, cos, zero], -1).view(-1, 2, 3)
        grid = F.affine_grid(turn, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


@register
class Patch(ImageMutator):
    """Covers a rectangle a row with one value or with noise; or pushes it up or down as in Square Attack
    (Andriushchenko et al., ECCV 2020), whose squares cross L∞ balls fast."""

    name = "image-patch"

    def change(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        where = box(ctx, x[:, :1], 0)
        mode = int(ctx.rng.integers(4))
        if mode == 0:
            return torch.where(where, cast(special(ctx, spec, x), spec).to(x.dtype), x)
        if mode == 1:
            noise = ctx.pool.uniform(tuple(x.shape), x.dtype, ctx.rng)
            low = float(spec.low.double().min())
            span = min(float(spec.high.double().max()) - low, largest_finite(x.dtype))
            return torch.where(where, noise * span + low, x)
        up = torch.rand(*x.shape[:2], 1, 1, generator=ctx.generator, device=x.device) < 0.5
        unit = step(spec, x, log_uniform(ctx, x, 0.05, 1.0)).amax(tuple(range(1, x.dim())), keepdim=True)
        return torch.where(where, x + torch.where(up, unit.view(-1, 1, 1, 1), -unit.view(-1, 1, 1, 1)), x)
