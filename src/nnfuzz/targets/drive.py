"""Ways to run many candidates at once, and the proof that a way gives what running them alone gives.

rows   the first axis of every input holds independent candidates: one call, as in ordinary inference
fold   candidates are whole inputs whose own first axis is independent: joined along it, one call
vmap   candidates are whole inputs: ``torch.func.vmap`` over a new first axis, one call
loop   one call per candidate: always right
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm
from nnfuzz.space import Batch, size
from nnfuzz.targets.outputs import named_outputs
from nnfuzz.targets.ragged import stacked

Model = Callable[..., Any]
Named = dict[str, Tensor]
Call = Callable[[Batch], Named]
"""Runs the model on one model input and returns named tensors (outputs, and activations if tapped)."""


class NotDrivable(Exception):
    """This way of running does not fit this model."""


def drive_rows(call: Call, batch: Batch) -> Named:
    outputs = call(batch)
    count = size(batch)
    for name, t in outputs.items():
        if t.dim() == 0 or t.shape[0] != count:
            raise NotDrivable(f"output {name} has shape {tuple(t.shape)}, not one row for each of {count} candidates")
    return outputs


def drive_fold(call: Call, batch: Batch) -> Named:
    count = size(batch)
    inner = {t.shape[1] if t.dim() > 1 else -1 for t in batch.values()}
    if len(inner) != 1 or -1 in inner:
        raise NotDrivable("the inputs have no common first axis")
    (length,) = inner
    outputs = call({n: t.reshape(count * t.shape[1], *t.shape[2:]) for n, t in batch.items()})
    for name, t in outputs.items():
        if t.dim() == 0 or t.shape[0] != count * length:
            raise NotDrivable(f"output {name} has shape {tuple(t.shape)}")
    return {n: t.reshape(count, length, *t.shape[1:]) for n, t in outputs.items()}


def drive_vmap(call: Call, batch: Batch) -> Named:
    return torch.func.vmap(call)(batch)


def drive_loop(call: Call, batch: Batch) -> Named:
    each = [call({n: t[i] for n, t in batch.items()}) for i in range(size(batch))]
    return stacked(each)


DRIVES: dict[str, Callable[[Call, Batch], Named]] = {
    "rows": drive_rows,
    "fold": drive_fold,
    "vmap": drive_vmap,
    "loop": drive_loop,
}


def agree(together: Named, alone: Named) -> bool:
    """Equal within what a different order of summation explains, NaN and Inf in the same places."""
    if together.keys() != alone.keys():
        return False
    scale = max((_largest(t) for t in alone.values()), default=0.0)
    for name, a in together.items():
        a, b = a.detach(), alone[name].detach()
        if a.shape != b.shape:
            return False
        if a.is_floating_point() or a.is_complex():
            eps = torch.finfo(a.dtype).eps
            # Errors come from numbers larger than what is left of them: a loss of 1e-6 is -log of a probability near 1,
            # and that was made of logits of 40. So the largest of all outputs sets the scale, and never less than a
            # few hundred roundings of the number 1 (in half precision, two).
            least = 256 * eps if eps < 1e-4 else 2 * eps
            slack = max(least, 64 * eps * scale * math.sqrt(max(1, min(a.numel(), 4096))))
            if not torch.allclose(a, b, rtol=256 * eps, atol=slack, equal_nan=True):
                return False
        elif not torch.equal(a, b):
            return False
    return True


def _largest(t: Tensor) -> float:
    if not (t.is_floating_point() or t.is_complex()):
        return 0.0
    finite = t.detach()[t.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def works(drive: str, call: Call, batch: Batch) -> bool:
    """Whether the drive runs and gives the same as one call per candidate."""
    try:
        return agree(DRIVES[drive](call, batch), drive_loop(call, batch))
    except Exception:  # any failure of a faster way only means that it is not taken
        return False


def plain_call(model: Model, form: CallForm) -> Call:
    """The model as a function of one model input."""

    def call(inputs: Batch) -> Named:
        return named_outputs(form.call(model, inputs))

    return call
