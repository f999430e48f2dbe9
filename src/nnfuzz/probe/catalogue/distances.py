"""Distances to the edge of a domain, from which the catalogue's entries are put together.

All are differentiable, positive on the safe side and <= 0 where the edge is reached. Near zero they are logarithmic,
so that the gradient points on until the operand is truly 0 in its dtype; elsewhere linear in the operand.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nnfuzz.probe.hazard import Call
from nnfuzz.probe.magnitude import direct, log_below_one
from nnfuzz.probe.watch import extent

Distance = Callable[[Call], Tensor]
Applies = Callable[[Call], bool]

# Where zero itself is still safe its distance is this, not 0.
_STEP = 0.5


def nonzero(name: str) -> Distance:
    """|x| → 0, reached where x is exactly 0."""
    return lambda call: call.magnitude(name).margin


def positive(name: str) -> Distance:
    """x → 0 from above; 0 and negative numbers are beyond the edge."""

    def distance(call: Call) -> Tensor:
        x: Tensor = call.raw(name)
        margin = call.magnitude(name).margin
        return margin if x.is_complex() else torch.where(x.detach() < 0, call.real(name), margin)

    return distance


def nonnegative(name: str) -> Distance:
    """x → below 0; 0 itself is safe."""

    def distance(call: Call) -> Tensor:
        margin = call.magnitude(name).margin + _STEP
        return torch.where(call.raw(name).detach() < 0, call.real(name), margin)

    return distance


def at_most(name: str, limit: Callable[[torch.dtype], float], *, magnitude: bool = False) -> Distance:
    """x → limit(dtype) from below; with `magnitude` |x|."""

    def distance(call: Call) -> Tensor:
        x = call.real(name)
        return limit(call.dtype(name)) - (x.abs() if magnitude else x)

    return distance


def inside_unit(name: str) -> Distance:
    """|x| → 1, reached at 1: logarithmic, since such operands mostly come out of a saturating tanh."""
    return lambda call: _log_gap(1 - call.real(name).abs(), log_below_one(call.dtype(name)))


def within_unit(name: str) -> Distance:
    """|x| → beyond 1; 1 itself is safe."""
    return lambda call: 1 - call.real(name).abs() + torch.finfo(call.dtype(name)).eps / 4


def probability(name: str) -> Distance:
    """x → below 0 or beyond 1; both ends are safe."""

    def distance(call: Call) -> Tensor:
        x = call.real(name)
        return torch.minimum(x, 1 - x) + torch.finfo(call.dtype(name)).tiny

    return distance


def strict_probability(name: str) -> Distance:
    """x → 0 or 1, both beyond the edge."""

    def distance(call: Call) -> Tensor:
        return torch.minimum(positive(name)(call), _log_gap(1 - call.real(name), log_below_one(call.dtype(name))))

    return distance


def above_minus_one(name: str) -> Distance:
    """x → −1 from above, −1 beyond the edge."""
    return lambda call: _log_gap(1 + call.real(name), log_below_one(call.dtype(name)))


def _log_gap(gap: Tensor, level: float) -> Tensor:
    """log(gap) above the smallest gap that the dtype can show; the gap itself once it is closed."""
    return torch.where(gap.detach() <= 0, gap, direct(gap).value - level)


def log_limit(dtype: torch.dtype) -> float:
    """Logarithm of the smallest number that rounds to infinity: the maximum and half a unit in its last place."""
    info = torch.finfo(dtype)
    return math.log(info.max) + math.log1p(info.eps / 4)


def not_too_large(name: str, power: float = 1.0, dtype: torch.dtype | None = None) -> Distance:
    """|x|^power → the dtype's maximum, on a logarithmic scale; an infinite x is beyond."""

    def distance(call: Call) -> Tensor:
        limit = log_limit(dtype or call.dtype(name))
        return finite_part(call.raw(name), limit - power * call.magnitude(name).value)

    return distance


def finite_part(x: Tensor, distance: Tensor) -> Tensor:
    """`distance`, but −1 without a gradient where x is infinite already: log(inf) has none."""
    return torch.where(x.detach().isinf(), -1.0, distance)


# Below max^(1/4) (float32: 4e9) an operand is so far from overflow that its distance is not worth its price.
_FAR = 0.25


def comes_near(call: Call, name: str, power: float, dtype: torch.dtype | None = None) -> bool:
    """Whether |x|^power is at least max^(1/4) somewhere: one pass, and no graph, for what is far away."""
    low, high = extent(call.raw(name))
    largest = max(abs(low), abs(high))
    # Written so that NaN comes near: it must not be passed over.
    return not (largest == 0 or power * math.log(largest) < _FAR * log_limit(dtype or call.dtype(name)))


def is_half(name: str) -> Callable[[Call], bool]:
    """Applies to float16, and to bfloat16 where it is not far away: its range is that of float32."""

    def applies(call: Call) -> bool:
        if not call.has(name) or call.raw(name).dtype.itemsize != 2:
            return False
        return call.raw(name).dtype is torch.float16 or comes_near(call, name, 1.0)

    return applies


def is_near(name: str) -> Callable[[Call], bool]:
    """Applies to float16, and to other dtypes where the operand is not far from the largest number."""
    return lambda call: is_real(name)(call) and (call.raw(name).dtype is torch.float16 or comes_near(call, name, 1.0))


def wants_gradient(name: str) -> Callable[[Call], bool]:
    """Applies only where the operand is differentiated."""
    return lambda call: call.has(name) and bool(call.raw(name).requires_grad)


def is_tensor(name: str) -> Callable[[Call], bool]:
    """Applies only where the operand is a floating tensor, not a Python number."""
    return lambda call: call.has(name)


def is_real(name: str) -> Callable[[Call], bool]:
    """Applies only to real floating tensors."""
    return lambda call: call.has(name) and not call.raw(name).is_complex()
