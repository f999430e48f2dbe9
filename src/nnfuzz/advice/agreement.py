"""Whether two programs say the same on one input: what each gives, how far that is apart, and which is nearer to the
truth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nnfuzz.probe.modules import Program, restored_buffers, restored_random_state

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Inputs of a program: (args, kwargs)."""

NOISE = 16
"""Differences of at most so many eps count as none: the rounding of a few numbers of the size of one."""

AGREEMENT = 0.6
"""Outputs must agree within eps(dtype) ** AGREEMENT of their size: 7e-5 in float32, 0.016 in float16."""


def tolerance_of(x: Tensor) -> float:
    """The largest ``gap`` that counts as agreement, for a floating output."""
    return float(torch.finfo(x.dtype).eps ** AGREEMENT)


def gap(x: Tensor, y: Tensor) -> float:
    """Largest difference relative to the element and the typical size of the output; 0 where both are equal."""
    if not x.numel():
        return 0.0
    a, b = x.double(), y.double()
    finite = a.isfinite()
    if bool((finite & ~b.isfinite()).any()):
        return float("inf")
    # A logarithm of a probability near one has an absolute error of eps, however small it is itself: a better form of
    # it must not be held against that noise.
    noise = NOISE * torch.finfo(x.dtype).eps
    typical = a[finite].square().mean().sqrt() if bool(finite.any()) else torch.zeros(())
    relative = torch.where(finite & ((a - b).abs() > noise), (a - b).abs() / (a.abs() + typical).clamp(min=1e-30), 0.0)
    return float(relative.max())


def outputs_of(run: Callable[..., Any], fn: Callable[..., Any], call: Call) -> list[Tensor]:
    """Floating outputs of a run that leaves nothing behind, complex ones as pairs; where there are none, the others in
    float64. ``run``: the program that is run, ``fn`` or a repaired form of it."""
    args, kwargs = call
    program = Program.of(fn, (*args, *kwargs.values()))
    copies, named = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, dict(kwargs)))
    with restored_random_state(), restored_buffers(program), torch.enable_grad():
        outputs = run(*copies, **named)
    tensors = [t.detach() for t in tree_leaves(outputs) if isinstance(t, Tensor)]
    tensors = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return [t for t in tensors if t.is_floating_point()] or [t.double() for t in tensors]


def all_finite(outputs: list[Tensor]) -> bool:
    """Whether no output holds NaN or Inf."""
    return all(bool(t.isfinite().all()) for t in outputs)


def nearer_to_truth(fn: Callable[..., Any], call: Call, before: list[Tensor], after: list[Tensor]) -> bool:
    """Whether ``after`` is no farther than ``before`` from what the program gives in float64: a stable form differs
    from the other where that has lost its digits. False where the program does not run in float64."""

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    try:
        exact = copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn
        truth = outputs_of(exact, exact, tree_map(wide, (call[0], dict(call[1]))))
        if len(truth) != len(after) or any(t.dtype is not torch.float64 for t in truth):
            return False
        return all(gap(t, b.double()) <= gap(t, a.double()) for t, a, b in zip(truth, before, after, strict=True))
    except Exception:  # no float64 of this program, no excuse
        return False
