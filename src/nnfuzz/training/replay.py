"""Running a recorded training again, and finding the fewest steps that still fail."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nnfuzz.training.program import Program
from nnfuzz.training.walk import Failure, Mode, Step, Walk

State = dict[str, Tensor]


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
    walk = Walk.from_state(program, seed, state)
    for i, step in enumerate(steps):
        last = i == len(steps) - 1
        failure = evaluate(walk, step, mode if last else "train", update=not last)
        if failure is not None:
            return i, failure
    return len(steps), None


def evaluate(walk: Walk, step: Step, mode: Mode, update: bool) -> Failure | None:
    """Loss (and in training mode gradients) of one step; the weights follow if asked and all is finite."""
    if mode == "eval":
        return walk.look_in_eval(dict(step.batch), step.seed)
    failure, _ = walk.look_in_training(dict(step.batch), step.seed)
    if failure is None and update:
        walk.optimizer.step()
    return failure


def shorten(
    program: Program, seed: int, state: State, steps: list[Step], failure: Failure, budget: float
) -> list[Step]:
    """The fewest steps found that still fail in the same phase. Every answer was itself run.

    Trouble grows with training, so first the number of steps before the failing batch is bisected; then runs of
    steps are left out, halves before quarters, and so on to single ones. budget: training steps to spend on it (a
    number of steps and not of seconds, so that the same search gives the same answer).
    """
    made = 0

    def spent() -> bool:
        return made >= budget

    def fails(candidate: list[Step]) -> list[Step] | None:
        nonlocal made
        made += len(candidate)
        index, seen = first_failure(program, seed, state, candidate, failure.mode)
        if seen is None or seen.phase != failure.phase:
            return None
        return candidate[: index + 1]

    return _left_out(_bisected(steps, fails, spent), fails, spent)


def _bisected(
    steps: list[Step], fails: Callable[[list[Step]], list[Step] | None], spent: Callable[[], bool]
) -> list[Step]:
    """Least k so that the first k steps and the failing batch fail."""
    best, low, high = steps, 0, len(steps) - 1
    while low < high and not spent():
        middle = (low + high) // 2
        if found := fails([*steps[:middle], steps[-1]]):
            best, high = found, min(middle, len(found) - 1)
        else:
            low = middle + 1
    return best


def _left_out(
    best: list[Step], fails: Callable[[list[Step]], list[Step] | None], spent: Callable[[], bool]
) -> list[Step]:
    """Leave out runs of steps, never the last."""
    width = (len(best) - 1) // 2
    while width >= 1 and not spent():
        i = 0
        while i < len(best) - 1 and not spent():
            kept = best[:i] + best[min(i + width, len(best) - 1) :]
            if found := fails(kept):
                best = found
            else:
                i += width
        width //= 2
    return best
