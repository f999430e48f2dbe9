"""Running a recorded training again, and finding the fewest steps that still fail."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from nnfuzz.training.program import Program
from nnfuzz.training.walk import Failure, Mode, Step, Walk, statistics_kept

State = dict[str, Tensor]

TRIES = 48  # times that the failing batch is tried on the way of a walk


def replay(program: Program, seed: int, state: State, steps: list[Step], mode: Mode = "train") -> Failure | None:
    """Train from `state` on all steps but the last, then take loss and gradients of the last.

    The failure there, or one that came before it (then the sequence is longer than needed, and this is None unless
    it is at the last step: see `first_failure`).
    """
    index, failure = first_failure(program, seed, state, steps, mode)
    return failure if index == len(steps) - 1 else None


def first_failure(
    program: Program, seed: int, state: State, steps: list[Step], mode: Mode = "train"
) -> tuple[int, Failure | None]:
    """(index of the step that fails, failure), or (len(steps), None)."""
    seen = retrace(program, seed, state, steps, mode, tries=0)
    return (len(steps), None) if seen is None else (len(seen.steps) - 1, seen.failure)


def evaluate(walk: Walk, step: Step, mode: Mode, update: bool) -> Failure | None:
    """Loss (and in training mode gradients) of one step; the weights follow if asked and all is finite."""
    if mode == "eval":
        return walk.look_in_eval(dict(step.batch), step.seed)
    failure, _ = walk.look_in_training(dict(step.batch), step.seed)
    if failure is None and update:
        walk.update()
    return failure


@dataclass(frozen=True, eq=False)
class Retraced:
    """A failure seen again. steps: those that led to it, the failing one last. walk: stands just before that one."""

    steps: list[Step]
    failure: Failure
    walk: Walk
    made: int  # passes that it took


def retrace(
    program: Program, seed: int, state: State, steps: list[Step], mode: Mode = "train", tries: int = TRIES
) -> Retraced | None:
    """Train from `state` along `steps` up to the first failure, of the failing batch or of any step; None if all goes
    well.

    tries: how often, at equal distances, the last batch is tried before its turn: trouble grows with training, and so
    the way to it is often longer than need be. One run both confirms a failure and shortens it.
    """
    walk, made = Walk.from_state(program, seed, state), 0
    last, every = steps[-1], -(-len(steps) // tries) if tries else 0
    for i, step in enumerate(steps[:-1]):
        if every and i % every == 0:
            made += 1
            if failure := _would(walk, last, mode):
                return Retraced([*steps[:i], last], failure, walk, made)
        made += 1
        if evaluate(walk, step, "train", update=True) is not None:
            # Earlier than recorded. Once more up to there, so that the walk stands before it and not within it.
            sooner = retrace(program, seed, state, steps[: i + 1], "train", tries=0)
            return None if sooner is None else replace(sooner, made=made + sooner.made)
    seen = _would(walk, last, mode)
    return None if seen is None else Retraced(steps, seen, walk, made + 1)


def _would(walk: Walk, step: Step, mode: Mode) -> Failure | None:
    with statistics_kept(walk.model):
        return evaluate(walk, step, mode, update=False)


def shorten(
    program: Program, seed: int, state: State, steps: list[Step], failure: Failure, budget: float
) -> list[Step]:
    """The fewest steps found that still fail alike. Every answer was itself run.

    Runs of steps are left out, halves before quarters, and so on to single ones. budget: passes to spend on it (a
    number and not seconds, so that the same search gives the same answer).
    """
    made = 0
    width = (len(steps) - 1) // 2
    while width >= 1 and made < budget:
        i = 0
        while i < len(steps) - 1 and made < budget:
            kept = steps[:i] + steps[min(i + width, len(steps) - 1) :]
            seen = retrace(program, seed, state, kept, failure.mode)
            made += len(kept) if seen is None else seen.made
            if seen is not None and seen.failure.is_like(failure):
                steps = seen.steps
            else:
                i += width
        width = min(width // 2, (len(steps) - 1) // 2) if width > 1 else 0
    return steps
