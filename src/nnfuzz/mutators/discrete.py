"""Values that jump: integers, choices and masks, one-hot labels."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, density, gate, index, special
from nnfuzz.mutators.ranges import cast, ends
from nnfuzz.mutators.regions import everything, one_element, region
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Integer(Mutator):
    """Integers: random elements anew, ±1 to ±8 steps, an end of the range, all alike, or counting up."""

    name = "integer"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "integer" or (s.kind == "real" and is_int(s.dtype))]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            where = gate(ctx, x, density(ctx, x)) if ctx.rng.random() < 0.6 else region(ctx, x)
            mode = int(ctx.rng.integers(5))
            if mode == 0:
                low, high = (t.double() for t in ends(spec, x))
                value = low + ctx.pool.uniform(tuple(x.shape), torch.float64, ctx.rng) * (high - low + 1) - 0.5
            elif mode == 1:
                by = 1 << int(ctx.rng.integers(4))
                move = torch.where(coin(ctx, x, 0.5), float(by), -float(by))
                value = x.double() + move
            elif mode == 2:
                low, high = (t.double() for t in ends(spec, x))
                value = torch.where(coin(ctx, x, 0.5), low, high)
            elif mode == 3:
                value = special(ctx, spec, x)
            else:  # 0, 1, 2 … along the last axis, as positions and token types are
                low, _ = (t.double() for t in ends(spec, x))
                steps = torch.arange(x.shape[-1] if x.dim() > 1 else 1, device=x.device).double()
                value = low + (steps if x.dim() > 1 else column(index(ctx, x, 8), x))
            batch[spec.name] = torch.where(where, bounded(value, spec, x), x)


def is_int(dtype: torch.dtype) -> bool:
    return dtype != torch.bool and not dtype.is_floating_point


def bounded(value: Tensor, spec: InputSpec, x: Tensor) -> Tensor:
    """Rounded and clipped to the range before the cast: an integer dtype would wrap round."""
    low, high = (t.double() for t in ends(spec, x))
    return cast(value.clamp(low, high), spec) if is_int(spec.dtype) else value.round().to(x.dtype)


@register
class Choice(Mutator):
    """Choices, masks and bools: random elements or a region anew, all alike, all but one, the next value."""

    name = "choice"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind in ("choice", "mask") or s.dtype == torch.bool]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            values = torch.tensor([False, True]) if spec.choices is None else spec.choices
            values = values.to(x.device)
            k, mode = len(values), int(ctx.rng.integers(5))
            one = column(values[index(ctx, x, k)], x)
            if mode == 0:
                draw = ctx.pool.uniform(tuple(x.shape), torch.float32, ctx.rng)
                x = torch.where(gate(ctx, x, density(ctx, x)), values[(draw * k).long().clamp_(max=k - 1)], x)
            elif mode == 1:
                x = torch.where(region(ctx, x), one, x)
            elif mode == 2:
                x = torch.where(everything(ctx, x, 0), one, x)
            elif mode == 3:  # all alike but one element
                other = column(values[index(ctx, x, k)], x)
                x = torch.where(one_element(ctx, x, 0), other, one)
            else:  # the next value, flipping a mask
                ordered = values.to(torch.uint8) if values.dtype == torch.bool else values
                place = torch.searchsorted(ordered, x.to(ordered.dtype).contiguous()).clamp_(max=k - 1)
                x = torch.where(region(ctx, x), values[(place + 1) % k], x)
            batch[spec.name] = x


@register
class OneHot(Mutator):
    """Another class in one vector, in some, in all; all vectors of one class; each the next class."""

    name = "onehot"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "onehot"]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            n, lead = x.shape[-1], x[..., :1]
            mode = int(ctx.rng.integers(3))
            if mode == 0:
                label = torch.randint(n, lead.shape, generator=ctx.generator, device=x.device)
            elif mode == 1:
                label = column(index(ctx, x, n), x).expand(lead.shape)
            else:
                label = (x.to(torch.uint8).argmax(-1, keepdim=True) + 1 + column(index(ctx, x, max(1, n - 1)), x)) % n
            hot = torch.zeros_like(x).scatter_(-1, label, 1)
            batch[spec.name] = torch.where(region(ctx, lead), hot, x)
