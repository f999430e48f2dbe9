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
            leaves[id(x)] = (x.detach(), x.detach().clone().requires_grad_())
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
    return {key: _share(x, g, value) for (key, (x, _)), g in found if g is not None and bool(g.any())}


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
