"""GRIST's own rule, for comparison: it is told the operand, and moves the batch by the sign of the gradient of its
smallest entry.

x moves by 0.15 of its range toward the edge, then one training step; every 100 iterations 5 % of the rows are replaced
(Yan et al., ESEC/FSE 2021, as `check.py` of the subjects states it). This is the only place that reads a subject's
`operand`.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

STEP, REPLACED, EVERY = 0.15, 0.05, 100


def bad(tensors: list[Tensor]) -> bool:
    return any(not bool(torch.isfinite(t).all()) for t in tensors)


def smallest(subject: ModuleType, model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """What GRIST descends on: the operand's smallest absolute value, for exp minus its largest."""
    operand: Tensor = subject.operand(model, batch)
    return -operand.max() if subject.EXPECT["op"] == "exp" else operand.abs().min()


def grist(subject: ModuleType, seconds: float, seed: int = 0) -> dict[str, Any]:
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
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if noise and steps:
            fresh = next(stream)
            batch.update({k: fresh[k] for k in noise})
        model.train(not getattr(subject, "CHECK_EVAL", False))
        with torch.no_grad():
            if bad([subject.loss(model, batch)]):
                break
        leaves = [batch[k].requires_grad_() for k in data]
        value = smallest(subject, model, batch)
        near = float(value.detach())
        for name, x, g in zip(data, leaves, torch.autograd.grad(value, leaves, allow_unused=True), strict=True):
            low, high = subject.INPUTS[name]["low"], subject.INPUTS[name]["high"]
            move = 0 if g is None else STEP * (high - low) * g.nan_to_num(0).sign()
            batch[name] = (x.detach() - move).clamp(low, high)
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
        return {"found": False, "steps": steps, "seconds": time.monotonic() - started, "near": near}
    return {"found": True, "steps": steps, "seconds": time.monotonic() - started, "near": near}
