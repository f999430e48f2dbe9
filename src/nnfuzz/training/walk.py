"""One training from fresh weights, recorded so that it can be run again to the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnfuzz.training.guarded import ProgramFailed
from nnfuzz.training.program import Batch, Program

Phase = Literal["forward", "backward"]
Mode = Literal["train", "eval"]
EXCEPTION = "exception"


@dataclass(frozen=True)
class Failure:
    """A loss or a gradient that is not finite, or that raises.

    phase:   "forward" if it is the loss itself, "backward" if only the gradient of a parameter.
    symptom: "nan", "+inf" or "-inf" of the loss, else of the gradients; or "exception".
    mode:    of the model when it was seen.
    raised:  the exception, with file and line. kind: its type and place alone.
    """

    phase: Phase
    symptom: str
    mode: Mode = "train"
    raised: str = ""
    kind: str = ""

    @classmethod
    def of(cls, phase: Phase, error: ProgramFailed, mode: Mode = "train") -> Failure:
        return cls(phase, EXCEPTION, mode, error.why, error.kind)

    def __str__(self) -> str:
        where = "loss" if self.phase == "forward" else "gradient"
        return f"the {where} raises" if self.symptom == EXCEPTION else f"{self.symptom} in the {where}"

    def is_like(self, other: Failure) -> bool:
        """Whether both are of loss or both of gradients, and both raise the same or neither raises."""
        return (self.phase, self.kind) == (other.phase, other.kind)


@dataclass(frozen=True, eq=False)
class Step:
    """A batch and the seed of torch's global generator before its loss was taken."""

    batch: Batch
    seed: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A walk at one moment. steps: how many it had made."""

    tensors: list[Tensor]
    optimizer: dict[str, Any]
    steps: int


def symptom(tensors: Iterable[Tensor]) -> str:
    """What is not finite in `tensors`: "nan" before "+inf" before "-inf", "" if all is well."""
    bad = [t for t in tensors if t.is_floating_point() and not _finite(t)]
    for name, test in (("nan", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        if any(bool(test(t).any()) for t in bad):
            return name
    return ""


def _finite(t: Tensor) -> bool:
    return math.isfinite(t.item()) if t.numel() == 1 and not t.is_complex() else bool(torch.isfinite(t).all())


def gradient_symptom(gradients: Sequence[Tensor]) -> str:
    """As `symptom`, with one cheap look at all of them first (a norm may overflow, so then it looks closely)."""
    if not gradients:
        return ""
    dense = [g for g in gradients if g.layout is torch.strided]
    if len(dense) == len(gradients) and math.isfinite(torch.stack(torch._foreach_norm(dense, 1)).sum().item()):
        return ""
    return symptom(g if g.layout is torch.strided else g.coalesce().values() for g in gradients)


def seeded(seed: int) -> int:
    """Seeds what a program draws from: torch's global generators.

    Returns the seed. The same as `torch.manual_seed`, which formats three stack traces a call where there is no
    accelerator.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    return seed


def parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in state.items()}


class Walk:
    """A model on its way through training.

    seed:    of the initial weights, from the program's own law.
    initial: state_dict before the first step.
    steps:   what it was trained on, in order.
    """

    def __init__(self, program: Program, seed: int) -> None:
        seeded(seed)
        self.program, self.seed = program, seed
        self.model = program.build(seed)
        self.initial = copied(self.model.state_dict())
        self.optimizer = program.optimizer(self.model)
        self.parameters = parameters(self.model)
        self.steps: list[Step] = []

    @classmethod
    def from_state(cls, program: Program, seed: int, state: dict[str, Tensor]) -> Walk:
        """The same start again: weights are loaded before the optimizer is made."""
        walk = cls.__new__(cls)
        seeded(seed)
        walk.program, walk.seed, walk.initial, walk.steps = program, seed, state, []
        walk.model = program.build(seed)
        walk.model.load_state_dict(state)
        walk.optimizer = program.optimizer(walk.model)
        walk.parameters = parameters(walk.model)
        return walk

    @property
    def returns(self) -> bool:
        """Whether `back` leads to exactly what a new training up to there would give: all that changes is known."""
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_post_hooks or optimizer._optimizer_step_pre_hooks  # a schedule keeps count
        return type(optimizer).__module__.startswith("torch.optim") and not hooks

    def snapshot(self) -> Snapshot:
        """Weights, buffers and optimizer as they are now."""
        tensors = [t.detach().clone() for t in (*self.parameters, *self.model.buffers())]
        return Snapshot(tensors, deepcopy(self.optimizer.state_dict()), len(self.steps))

    def back(self, to: Snapshot) -> int:
        """Be as then, and forget the steps made since; returns how many."""
        with torch.no_grad():
            for t, old in zip((*self.parameters, *self.model.buffers()), to.tensors, strict=True):
                t.copy_(old)
        self.optimizer.load_state_dict(deepcopy(to.optimizer))
        gone = len(self.steps) - to.steps
        del self.steps[to.steps :]
        return gone

    def fresh_step(self, batch: Batch, seed: int | None = None) -> Step:
        """A step with the next seed of this walk, or with one that promises something."""
        return Step(
            batch, seed if seed is not None else (self.seed * 1_000_003 + 7919 * (len(self.steps) + 1)) % (2**31)
        )

    def train(self, batch: Batch, wish: Iterable[Tensor] = ()) -> tuple[Failure | None, list[Tensor | None]]:
        """One training step on `batch`, recorded; no update where it fails.

        wish: tensors of the batch that require a gradient; theirs are returned, at no extra pass.
        """
        step = self.fresh_step({k: v.detach() for k, v in batch.items()})
        wish = list(wish)
        self.steps.append(step)
        failure, gradients = self.look_in_training(batch, step.seed, wish)
        if failure is None:
            self.update()
        return failure, gradients

    def update(self) -> None:
        """The optimizer's step on the gradients at hand."""
        try:
            self.optimizer.step()
        except Exception as error:
            raise ProgramFailed("the step of optimizer(model)", error) from error

    def look_in_training(
        self, batch: Batch, seed: int, wish: Sequence[Tensor] = ()
    ) -> tuple[Failure | None, list[Tensor | None]]:
        """Loss and gradients in training mode; leaves the parameters' in `.grad`. `loss`: nan where it raised."""
        self.model.train()
        seeded(seed)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = math.nan
        try:
            loss = self.program.loss(self.model, batch)
        except ProgramFailed as error:
            return Failure.of("forward", error), [None] * len(wish)
        self.loss = float(loss.detach())
        if bad := symptom([loss.detach()]):
            return Failure("forward", bad), [None] * len(wish)
        try:
            gradients = torch.autograd.grad(loss, [*wish, *self.parameters], allow_unused=True)
        except Exception as error:
            failed = ProgramFailed("the gradient of loss(model, batch)", error, batch)
            return Failure.of("backward", failed), [None] * len(wish)
        own = gradients[len(wish) :]
        for p, g in zip(self.parameters, own, strict=True):
            p.grad = g
        bad = gradient_symptom([g for g in own if g is not None])
        return (Failure("backward", bad) if bad else None), list(gradients[: len(wish)])

    def look_in_eval(self, batch: Batch, seed: int) -> Failure | None:
        """The loss with dropout off."""
        self.model.eval()
        seeded(seed)
        try:
            with torch.no_grad():
                bad = symptom([self.program.loss(self.model, batch)])
        except ProgramFailed as error:
            return Failure.of("forward", error, "eval")
        return Failure("forward", bad, "eval") if bad else None

    def check(self, batch: Batch, seed: int | None = None) -> Failure | None:
        """Would a step on `batch` fail? Nothing is updated, batch-norm statistics are put back."""
        step = self.fresh_step(batch, seed)
        with statistics_kept(self.model):
            if self.program.eval_loss and (failure := self.look_in_eval(batch, step.seed)):
                return failure
            failure, _ = self.look_in_training(batch, step.seed)
        return failure


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Buffers (running means) are as before afterwards."""
    kept = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for b, old in kept:
                b.copy_(old)


@contextmanager
def global_rng_kept() -> Iterator[None]:
    """torch's global CPU generator is as before afterwards: a search leaves no trace in the caller's random numbers."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
