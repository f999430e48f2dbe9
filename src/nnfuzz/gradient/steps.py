"""One step of every slot: along the sign or the direction of its gradient, scaled by each input's reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nnfuzz.kinds import KINDS
from nnfuzz.mutators.ranges import reach
from nnfuzz.space import Batch, InputSpace, InputSpec

FIRST_STEP = 0.15
"""Of the reach, as in GRIST; the step grows while the distance falls and halves when it does not."""
MOMENTUM = 0.5
NEWTON = 1.6
"""A step reaches at most this many times as far as the linear model of the distance says that 0 is."""


def followable(space: InputSpace) -> list[InputSpec]:
    """Inputs that carry a gradient: floating dtypes, also where the values are discrete (one-hot, choices)."""
    return [s for s in space.mutable if s.dtype.is_floating_point]


class Stepper:
    """Keeps momentum and step size of every slot of one turn.

    Args:
        specs: the inputs to move. count: slots. signed: bool ``(count,)``, which slots move by signs (L∞ steps) and
            which along the gradient itself (largest component 1).
    """

    def __init__(self, specs: Sequence[InputSpec], count: int, signed: Tensor, first: Tensor):
        self.specs, self.signed = specs, signed
        self.size = first.double().clone()
        self.velocity: Batch = {}

    def move(
        self, batch: Batch, gradients: Batch, distance: Tensor, frozen: Tensor, generator: torch.Generator
    ) -> Batch:
        """New values (not yet legal) for all inputs. ``distance``: ``(count,)``; ``frozen`` slots stay."""
        directions, slope = {}, torch.zeros(len(distance), dtype=torch.float64, device=distance.device)
        for spec in self.specs:
            g = gradients.get(spec.name)
            x = batch[spec.name]
            unit = reach(spec).to(x.device)
            g = torch.zeros_like(x).double() if g is None else g.double().nan_to_num(0.0, 0.0, 0.0)
            g = g * unit  # in units of the reach, so that inputs of different ranges compare
            directions[spec.name] = self._direction(spec.name, g)
            slope += (g * directions[spec.name]).reshape(len(g), -1).sum(1)
        length = self._length(distance, slope)
        moved = dict(batch)
        for spec in self.specs:
            x, d = batch[spec.name], directions[spec.name]
            if KINDS[spec.kind].discrete:
                moved[spec.name] = _flip(spec, x, d, frozen, generator)
                continue
            by = _column(torch.where(frozen, 0.0, length), x) * d * reach(spec).to(x.device)
            moved[spec.name] = (x.double() - by).to(x.dtype)
        return moved

    def _direction(self, name: str, g: Tensor) -> Tensor:
        largest = g.abs().reshape(len(g), -1).amax(1) if g[0].numel() else g.new_zeros(len(g))
        scaled = g / _column(largest.clamp(min=1e-300), g)
        kept = self.velocity.get(name)
        mixed = scaled if kept is None else MOMENTUM * kept + scaled
        self.velocity[name] = mixed
        top = mixed.abs().reshape(len(g), -1).amax(1) if g[0].numel() else g.new_zeros(len(g))
        unit = mixed / _column(top.clamp(min=1e-300), g)
        return torch.where(_column(self.signed, g), mixed.sign(), unit)

    def _length(self, distance: Tensor, slope: Tensor) -> Tensor:
        linear = NEWTON * distance.double().clamp(min=0) / slope.clamp(min=1e-300)
        return torch.where(slope > 0, torch.minimum(self.size, linear.clamp(min=1e-7)), self.size)

    def learn(self, improved: Tensor) -> None:
        """Larger strides while it goes well, half the stride and no momentum when it does not."""
        self.size = torch.where(improved, self.size * 1.25, self.size * 0.5).clamp(max=1.0)
        for name, v in self.velocity.items():
            self.velocity[name] = torch.where(_column(improved, v), v, 0.0)


def _flip(spec: InputSpec, x: Tensor, direction: Tensor, frozen: Tensor, generator: torch.Generator) -> Tensor:
    """A few coordinates (rows, for one-hot labels) jump to the next legal value that their gradient asks for."""
    if not x[0].numel():
        return x
    wish = direction.abs()
    if KINDS[spec.kind].last_axis:
        wish = wish.amax(-1, keepdim=True).expand_as(wish) if x.dim() > 1 else wish
    chance = torch.rand(wish.shape, generator=generator, device=x.device, dtype=torch.float64)
    at = (wish * chance).reshape(len(x), -1)
    best = at.amax(1)
    picked = (at >= _column(best, at)).view(x.shape) & (wish > 0) & ~_column(frozen, x)
    if KINDS[spec.kind].last_axis and x.dim() > 1:
        picked = picked.any(-1, keepdim=True).expand_as(x)
        return torch.where(picked, -direction, x.double()).to(x.dtype)
    if spec.choices is not None and len(spec.choices) > 1:
        gaps = spec.choices.double().diff().amin().to(x.device)
    else:
        gaps = torch.ones((), dtype=torch.float64, device=x.device)
    return torch.where(picked, x.double() - direction.sign() * gaps, x.double()).to(x.dtype)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
