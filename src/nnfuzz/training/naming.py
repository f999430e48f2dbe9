"""Which operation fails: the failing step of a retraced walk, looked into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnfuzz.probe import BadOp, Site, first_bad
from nnfuzz.training.program import Program
from nnfuzz.training.replay import Retraced
from nnfuzz.training.walk import seeded


def failing_step(program: Program, seen: Retraced) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(function, arguments) of the loss that fails, at the weights just before it, with its random numbers.

    A failing gradient is that by the parameters: the batch is held by the function, so that none is taken by it.
    """
    walk, last = seen.walk, seen.steps[-1]
    walk.model.train(seen.failure.mode == "train")
    batch = {k: v.detach().clone() for k, v in last.batch.items()}

    def step(model: Any, given: Any = batch) -> Any:
        seeded(last.seed)
        return program.loss(model, dict(given))

    return step, (walk.model, batch) if seen.failure.phase == "forward" else (walk.model,)


def first_bad_op(program: Program, seen: Retraced) -> BadOp | None:
    step, args = failing_step(program, seen)
    return first_bad(step, args, backward=seen.failure.phase == "backward")


def named(program: Program, seen: Retraced) -> tuple[Site | None, str]:
    """(first bad operation, in words with its operands and the chain back to the inputs)."""
    bad = first_bad_op(program, seen)
    return (None, "the operation could not be found") if bad is None else (bad.site, str(bad))
