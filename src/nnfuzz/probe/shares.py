"""Which elements of an operand one output element was computed from, and how much each counts: by the gradient.

An operation that picks or mixes elements (gather, resizing, pooling, a convolution) has no rule in ``regions``. It is
run again on copies of its operands, and the one output element is differentiated: an operand element counts by its
gradient times its value, which for a linear operation is its very share of the result.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nnfuzz.probe.live import LiveAutograd
from nnfuzz.probe.watch import Record, tensors_in


def shares(record: Record, index: tuple[int, ...], output: int) -> dict[int, Tensor]:
    """id of an operand → how much each of its elements counts for element ``index`` of output number ``output``, in
    its shape, float64, 0 for what does not count. Operands without a gradient are left out, all of them where the
    operation cannot be run again."""
    told = _differentiated(record, index, output)
    return {key: _share(x, g, value) for key, (x, g, value) in told.items() if bool(g.any())}


def infinity_times_zero(record: Record, index: tuple[int, ...], output: int) -> tuple[Tensor, Tensor, str] | None:
    """Of a mixing operation whose element ``index`` is NaN: an operand that holds an infinity which was read for it,
    where (bool, in its shape), and why that is to blame, in words. Neither factor of 0·inf shows in the product's
    gradient (it is 0, or NaN), so what is read is asked of the same operation on ones."""
    told = _differentiated(record, index, output)
    if not any(bool(x.isinf().any()) and value != value for x, _, value in told.values()):
        return None
    read = {key: g != 0 for key, (_, g, _) in _differentiated(record, index, output, on_ones=True).items()}
    for key, (x, _, _) in told.items():
        place = x.isinf() & read[key] if key in read and read[key].shape == x.shape else None
        if place is None or not bool(place.any()):
            continue
        others = [y == 0 for other, (y, _, _) in told.items() if other != key]
        return x, place, "times 0" if any(bool(zero.any()) for zero in others) else ""
    return None


def _differentiated(
    record: Record, index: tuple[int, ...], output: int, *, on_ones: bool = False
) -> dict[int, tuple[Tensor, Tensor, float]]:
    """id of a floating operand → the operand, the gradient of the output element by it, and that element's value.
    ``on_ones``: with every number of the operands replaced by 1."""
    func, about = record.func, record.facts
    if func is None or about.out or about.writes or torch.Tag.nondeterministic_seeded in func.tags:
        return {}
    leaves: dict[int, tuple[Tensor, Tensor]] = {}

    def copied(x: object) -> object:
        if not isinstance(x, Tensor):
            return x
        if not x.is_floating_point() or x.layout is not torch.strided:
            return x.detach()
        if id(x) not in leaves:
            leaves[id(x)] = (x.detach(), (torch.ones_like(x) if on_ones else x.detach().clone()).requires_grad_())
        return leaves[id(x)][1]

    try:
        with torch.inference_mode(False), LiveAutograd():
            out = func(*tree_map(copied, record.args), **tree_map(copied, record.kwargs))
            result = out if isinstance(out, Tensor) else tuple(tensors_in(out))[output]
            one = result[index]
            value = float(one.detach())
            wanted = [leaf for _, leaf in leaves.values()]
            gradients = torch.autograd.grad(one, wanted, torch.ones_like(one), allow_unused=True)
    except Exception:  # no gradient is known for it
        return {}
    found = zip(leaves.items(), gradients, strict=True)
    return {key: (x, g, value) for (key, (x, _)), g in found if g is not None}


def _share(x: Tensor, gradient: Tensor, value: float) -> Tensor:
    """Of a negative result, what pulls it down counts; of zero and NaN, what could move it."""
    slope = gradient.double().nan_to_num(1.0)
    wide = x.double()
    if value == 0 or not math.isfinite(value):
        pushed = (slope * wide).abs().nan_to_num(math.inf)
    else:
        pushed = slope * wide * math.copysign(1.0, value)
    # What counts at all stays above what does not, also where its share is zero or of the other sign.
    reached = slope != 0
    if value == 0 or not bool((pushed * reached > 0).any()):
        pushed = slope.abs()
    return torch.where(reached, pushed.clamp_min(0.0) + torch.finfo(torch.float64).tiny, 0.0)
