"""GRIST's own rule, for comparison: it is told the operand, and moves the inputs by the sign of the gradient of its
smallest entry.

x moves by 0.15 of its range toward the edge; in training one step follows, and every 100 iterations 5 % of the rows
are replaced (Yan et al., ESEC/FSE 2021, as `check.py` of the subjects states it). This is the only place that reads a
training subject's `operand`. Functions and reports have none: theirs is the operand of the operation that the subject
names, as the probe sees it; where the operation has no operand that could be followed, the rule cannot be applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from judge import right
from torch import Tensor

from nnfuzz.probe import Reading, observe

STEP, REPLACED, EVERY = 0.15, 0.05, 100
LARGE = ("exp", "mm", "matmul", "bmm", "addmm", "cosh", "sinh", "expm1")  # fail where the operand is large


def bad(tensors: list[Tensor]) -> bool:
    return any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in tensors)


def smallest(operand: Tensor, op: str) -> Tensor:
    """What GRIST descends on: the operand's smallest absolute value, for exp minus its largest."""
    return -operand.max() if op in LARGE else operand.abs().min()


def moved(x: Tensor, g: Tensor | None, low: float, high: float) -> Tensor:
    """`x` one step down the gradient, in range."""
    step = 0 if g is None else STEP * (high - low) * g.nan_to_num(0).sign()
    return (x.detach() - step).clamp(low, high)


def in_training(
    subject: ModuleType, seconds: float, seed: int = 0, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Run the rule for `seconds`: {"found", "steps", "seconds", "near"}."""
    torch.manual_seed(seed)
    stream = subject.batches(seed)
    batch = next(stream)
    model = subject.build(seed)
    optimizer = subject.optimizer(model)
    roles = {k: r.get("role") for k, r in subject.INPUTS.items()}
    data = [k for k in roles if roles[k] == "data"]
    noise = [k for k in roles if roles[k] == "noise"]
    rows, oldest, near, steps = len(batch["x"]), 0, None, 0
    started = clock()
    while clock() - started < seconds:
        if noise and steps:
            fresh = next(stream)
            batch.update({k: fresh[k] for k in noise})
        model.train(not getattr(subject, "CHECK_EVAL", False))
        with torch.no_grad():
            if bad([subject.loss(model, batch)]):
                break
        leaves = [batch[k].requires_grad_() for k in data]
        value = smallest(subject.operand(model, batch), subject.EXPECT["op"])
        near = float(value.detach())
        for name, x, g in zip(data, leaves, torch.autograd.grad(value, leaves, allow_unused=True), strict=True):
            batch[name] = moved(x, g, subject.INPUTS[name]["low"], subject.INPUTS[name]["high"])
        model.train()
        optimizer.zero_grad()
        loss = subject.loss(model, batch)
        loss.backward()
        if bad([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]):
            break
        optimizer.step()
        steps += 1
        if steps % EVERY == 0 and getattr(subject, "SWITCH", True):
            count, fresh = int(REPLACED * rows), next(stream)
            where = torch.arange(oldest, oldest + count) % rows
            for name in batch:
                if name not in noise and count:
                    batch[name] = batch[name].clone()
                    batch[name][where] = fresh[name][:count]
            oldest = (oldest + count) % rows
    else:
        return {"found": False, "steps": steps, "seconds": clock() - started, "near": near}
    return {"found": True, "steps": steps, "seconds": clock() - started, "near": near}


def on_function(subject: ModuleType, seconds: float, seed: int = 0) -> dict[str, Any]:
    """The same without training: {"found", "steps", "seconds", "near"} or {"skipped": why}."""
    torch.manual_seed(seed)
    fn, specs = subject.make(), subject.inputs()
    expected = subject.EXPECT["op"]
    backward = subject.EXPECT.get("where", subject.EXPECT.get("phase")) == "backward"
    values = [s["value"] for s in specs]
    free = [
        i
        for i, s in enumerate(specs)
        if "low" in s and not s.get("fixed") and s.get("kind") != "onehot" and s["value"].is_floating_point()
    ]
    near, steps, started = None, 0, time.monotonic()
    while time.monotonic() - started < seconds:
        try:
            if _fails(fn, values, free, backward):
                return {"found": True, "steps": steps, "seconds": time.monotonic() - started, "near": near}
            leaves = {i: values[i].detach().requires_grad_() for i in free}
            reading = _named(fn, [leaves.get(i, v) for i, v in enumerate(values)], expected)
        except RuntimeError:  # torch refuses the operand: the failure of some reports
            return {"found": True, "steps": steps, "seconds": time.monotonic() - started, "near": near}
        if reading is None or not reading.operand.requires_grad or not leaves:
            return {"skipped": "the operation has no operand that the rule could follow"}
        value = smallest(reading.operand.float(), reading.site.op)
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        near = float(value.detach())
        for i, g in zip(leaves, gradients, strict=True):
            values[i] = moved(values[i], g, specs[i]["low"], specs[i]["high"])
        steps += 1
    return {"found": False, "steps": steps, "seconds": time.monotonic() - started, "near": near}


def _named(fn: Any, values: list[Tensor], expected: str) -> Reading | None:
    """The reading of the operation that the subject names, the nearest of several calls."""
    readings = [r for r in observe(fn, values).readings if right(expected, r.site.op, r.site.phase)]
    return min(readings, key=lambda r: float(r.distance.detach().min()), default=None)


def _fails(fn: Any, values: list[Tensor], free: list[int], backward: bool) -> bool:
    leaves = {i: values[i].detach().clone().requires_grad_() for i in free}
    given = [leaves[i].clone() if i in leaves else v for i, v in enumerate(values)]
    out = fn(*given)
    outputs = [t for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, Tensor)]
    if bad(outputs) or not backward:
        return bad(outputs)
    wanted = [*leaves.values(), *(p for p in getattr(fn, "parameters", list)() if p.requires_grad)]
    total = sum(t.sum() for t in outputs)
    assert isinstance(total, Tensor)
    if not total.requires_grad or not wanted:
        return False
    return bad([g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None])
