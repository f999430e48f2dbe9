"""Checks for models that raise, properties, dying gradients, and rows that know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.findings.parts.facts import ATOL, DIFFERENTIATED, OBJECTIVE, RTOL, TYPICAL, WRONG_WAY, call
from nnfuzz.findings.parts.frame import show
from nnfuzz.findings.parts.loading import load_object, read
from nnfuzz.findings.parts.running import named, run


def fails_raising(model: Callable[..., Any], how: Any = None) -> bool:
    try:
        show(run(model, read("input.safetensors"), how))
    except Exception as error:
        print(f"raises {type(error).__name__}: {error}")
        return True
    return False


def fails_property(model: Callable[..., Any]) -> bool:
    """The objective takes outputs and inputs, and answers True where the property does not hold."""
    inputs = read("input.safetensors")
    outputs = run(model, inputs)
    show(outputs)
    return said(load_object(OBJECTIVE)(as_given(outputs), as_given(inputs)))


def fails_dead_gradient(model: Callable[..., Any]) -> bool:
    """The loss is large beside what the run's seeds showed, and its gradient is not, or does not lead down."""
    inputs = {n: t.requires_grad_(n in DIFFERENTIATED) for n, t in read("input.safetensors").items()}
    own = [p for p in model.parameters() if p.requires_grad] if isinstance(model, torch.nn.Module) else []
    with torch.enable_grad():
        loss = next(t for t in named(call(model, inputs)).values() if t.is_floating_point()).sum()
        found = torch.autograd.grad(loss, [*(inputs[n] for n in DIFFERENTIATED), *own], allow_unused=True)
    by_inputs, by_parameters = found[: len(DIFFERENTIATED)], found[len(DIFFERENTIATED) :]
    print(f"loss {float(loss.detach()):.6g} (of the seeds, in the middle: {TYPICAL['loss']:.6g})")
    shares = []
    for what, gradients in (("inputs", by_inputs), ("parameters", by_parameters)):
        if TYPICAL[what]:
            largest = max((float(g.abs().max()) for g in gradients if g is not None and g.numel()), default=0.0)
            print(f"largest element of the gradient by {what}: {largest:.3g} (of the seeds: {TYPICAL[what]:.3g})")
            shares.append(largest / TYPICAL[what])
    large = float(loss.detach()) - TYPICAL["lowest"] >= 0.99 * TYPICAL["large"]
    if not WRONG_WAY:
        return large and max(shares) <= 1.01 * max(1e-3, 4 * torch.finfo(loss.dtype).eps)
    longest = max(float(g.abs().max()) for g in by_inputs if g is not None)
    for share in (1e-2, 1e-3):
        moved = {n: t.detach() for n, t in inputs.items()}
        for n, g in zip(DIFFERENTIATED, by_inputs, strict=True):
            if g is not None:
                moved[n] = moved[n] - share * TYPICAL["reach"] / longest * g
        after = next(t for t in named(call(model, moved)).values() if t.is_floating_point()).sum()
        print(f"a step of {share:g} against the gradient: loss {float(after.detach()):.6g}")
        large = large and float(after.detach()) > float(loss.detach())
    return large


def as_given(values: dict[str, torch.Tensor]) -> Any:
    """One tensor alone, positional ones as a tuple, others as a dict."""
    if len(values) == 1:
        return next(iter(values.values()))
    return tuple(values.values()) if list(values) == [str(i) for i in range(len(values))] else values


def said(answer: Any) -> bool:
    """A function answers with a mask, or with ``(mask, score)``."""
    return bool(torch.as_tensor(answer[0] if isinstance(answer, tuple) else answer).any())


def fails_rows(model: Callable[..., Any]) -> bool:
    """Rows together, each alone and, where the run compared that too, in training mode: they should be the same."""
    inputs = read("input.safetensors")
    count = len(next(iter(inputs.values())))
    together = run(model, inputs)
    alone = [run(model, {n: t[i : i + 1] for n, t in inputs.items()}) for i in range(count)]
    ways = {"alone": {n: torch.cat([row[n] for row in alone]) for n in together}}
    if isinstance(model, torch.nn.Module) and any(n.startswith("training.") for n in read("outputs.safetensors")):
        model.train()
        ways["training"] = run(model, inputs)
        model.eval()
    worst = {way: max(beyond(t, other[n]) for n, t in together.items()) for way, other in ways.items()}
    for way, times in worst.items():
        unlike = "one gives NaN or Inf where the other does not"
        print(f"together against {way}: {unlike if times == float('inf') else f'{times:.3g} times the tolerance'}")
    return max(worst.values()) > 1


def beyond(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference, in units of the tolerance."""
    x, y = x.double(), y.double()
    scale = float(x.abs().nan_to_num(0.0, 0.0, 0.0).max())
    gap = (x - y).abs() / (ATOL + RTOL * scale)
    return float(torch.where(x.isfinite() == y.isfinite(), gap.nan_to_num(0.0, float("inf")), float("inf")).max())
