"""Steps on inputs: by the sign of a gradient, each element with a step of its own, inside the range."""

from __future__ import annotations

import torch
from torch import Tensor

GROW, SHRINK = 1.2, 0.5  # Riedmiller & Braun 1993: same sign as last time → larger, other sign → smaller
FIRST = 0.15  # of the range; GRIST's step
LARGEST, SMALLEST = 0.3, 2e-4  # of the range; fine enough for weights of some hundreds


def signs(gradient: Tensor) -> Tensor:
    """-1, 0 or 1; 0 where the gradient is NaN."""
    return torch.nan_to_num(gradient, nan=0.0, posinf=1.0, neginf=-1.0).sign()


def along(x: Tensor, gradient: Tensor | None, low: float, high: float, stride: float) -> Tensor:
    """`x` moved by `stride` of the range along the sign of the gradient, clamped into [low, high]."""
    x = x.detach()
    return x if gradient is None else x.add(signs(gradient), alpha=stride * (high - low)).clamp_(low, high)


class Rprop:
    """Step sizes of one tensor: they adapt to the scale at which the objective bends, which training changes."""

    def __init__(self, smallest: float = SMALLEST) -> None:
        self._size: Tensor | None = None
        self._last: Tensor | None = None
        self._smallest = smallest

    def copy(self) -> Rprop:
        """The same sizes and signs, to be gone on with from here."""
        other = Rprop(self._smallest)
        other._size, other._last = self._size, self._last
        return other

    def step(self, x: Tensor, gradient: Tensor | None, low: float, high: float) -> Tensor:
        """`x` moved along `gradient` (upwards) and clamped into [low, high]."""
        x = x.detach()
        if gradient is None:
            return x
        sign = signs(gradient)
        if self._size is None or self._last is None or self._size.shape != x.shape:
            self._size, self._last = torch.full_like(x, FIRST), torch.zeros_like(x)
        agree = self._last * sign
        factor = torch.where(agree > 0, GROW, torch.where(agree < 0, SHRINK, 1.0))
        self._size = (self._size * factor).clamp_(self._smallest, LARGEST)
        self._last = sign
        return torch.addcmul(x, self._size, sign, value=high - low).clamp_(low, high)
