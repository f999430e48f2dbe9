"""Which operation fails: the failing step of a retraced walk, looked into."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.probe import BadOp, Site, first_bad
from nnfuzz.probe.raised import raised_at
from nnfuzz.training.program import Program
from nnfuzz.training.replay import Retraced
from nnfuzz.training.walk import parameters, seeded


def failing_step(program: Program, seen: Retraced) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(function, arguments) of the loss that fails, at the weights just before it, with its random numbers.

    A failing gradient is that by the parameters: the batch is held by the function, so that none is taken by it.
    """
    walk, last = seen.walk, seen.steps[-1]
    loss = inspect.unwrap(program.loss)  # the user's own: what it raises has their lines
    walk.model.train(seen.failure.mode == "train")
    batch = {k: v.detach().clone() for k, v in last.batch.items()}

    def step(model: Any, given: Any = batch) -> Any:
        seeded(last.seed)
        try:
            return loss(model, dict(given))
        except SystemExit as error:  # which would end this process
            raise RuntimeError(f"sys.exit({error.code!r})").with_traceback(error.__traceback__) from error

    return step, (walk.model, batch) if seen.failure.phase == "forward" else (walk.model,)


def first_bad_op(program: Program, seen: Retraced) -> BadOp | None:
    step, args = failing_step(program, seen)
    backward = seen.failure.phase == "backward"
    try:  # what raises may only have noticed a number that an earlier operation had made
        return first_bad(step, args, backward=backward)
    except Exception:
        return raised_at(_differentiated(step) if backward else step, args)


def _differentiated(step: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(model: Any) -> None:
        torch.autograd.grad(step(model), parameters(model), allow_unused=True)

    return gradient


def named(program: Program, seen: Retraced) -> tuple[Site | None, str]:
    """(first bad operation, in words with its operands and the chain back to the inputs)."""
    bad = first_bad_op(program, seen)
    told = f"{seen.failure.raised}\n" * bool(seen.failure.raised)
    if bad is None:
        return None, f"{told}the operation could not be found"
    return bad.site, f"{told}{bad}"
