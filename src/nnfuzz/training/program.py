"""A training program as the user gives it: how weights, loss, batches and optimizer are made, and what is legal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnfuzz.errors import UsageError
from nnfuzz.training.guarded import building, feeding, losing, optimizing, taking

Batch = dict[str, Tensor]
Role = Literal["data", "label", "noise"]

_KNOWN = frozenset({"low", "high", "kind", "choices", "fixed", "role"})


@dataclass(frozen=True)
class Input:
    """What may be done with one tensor of the batch.

    role:      "data" is searched, "label" stays with its row, "noise" is drawn anew from the stream for every step.
    low, high: inclusive range, None where there is none. choices: all legal values, where they are few.
               Data with neither stays as it is drawn.
    """

    name: str
    role: Role
    low: float | None = None
    high: float | None = None
    choices: tuple[float, ...] = ()

    @property
    def ranged(self) -> bool:
        """Whether it is said what is legal."""
        return self.low is not None or bool(self.choices)

    def constants(self) -> tuple[float, ...]:
        """Legal values that a whole tensor may have: the choices, or zero and the ends of the range."""
        if self.low is None or self.high is None:
            return self.choices
        return tuple(dict.fromkeys(([0.0] if self.low <= 0 <= self.high else []) + [self.low, self.high]))

    def holds(self, value: Tensor) -> bool:
        """Whether all of a tensor is legal."""
        if self.low is not None and self.high is not None:
            return bool(((value >= self.low) & (value <= self.high)).all())
        return bool(torch.isin(value, torch.tensor(self.choices, dtype=value.dtype)).all()) if self.choices else False

    def movable(self, value: Tensor, noise: bool = False) -> bool:
        """Whether gradient steps may change it; noise, which has a range, only on request."""
        searched = self.role == "data" or (noise and self.role == "noise")
        return searched and self.low is not None and value.is_floating_point()


@dataclass(frozen=True, eq=False)
class Program:
    """Everything that the search runs.

    build(seed) -> module. loss(model, batch) -> scalar. batches(seed) -> iterator of dicts of tensors, all with the
    batch as first axis (those of another length are shared by all rows). optimizer(model) -> optimizer.
    eval_loss: the loss counts in eval mode too (dropout off), not only in the training step.
    path: the file it was read from, if any.
    """

    build: Callable[[int], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    batches: Callable[[int], Iterator[Batch]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    inputs: Mapping[str, Input]
    eval_loss: bool = False
    path: Path | None = None

    def movable(self, batch: Batch, noise: bool = False) -> list[str]:
        """Names of the inputs that gradient steps may change, in the batch's order."""
        return [k for k, v in batch.items() if self.inputs[k].movable(v, noise)]

    def role(self, name: str) -> Role:
        return self.inputs[name].role

    def bounds(self, name: str) -> tuple[float, float]:
        about = self.inputs[name]
        assert about.low is not None
        assert about.high is not None
        return about.low, about.high

    def with_loss(self, loss: Callable[[nn.Module, Batch], Tensor]) -> Program:
        """The same training with another loss."""
        return replace(self, loss=loss)

    def rows(self, batch: Batch) -> int:
        """Length of the batch axis: that of the first data tensor."""
        first = next((k for k in batch if self.role(k) == "data"), next(iter(batch)))
        return batch[first].shape[0] if batch[first].dim() else 1


def make_program(
    build: Any,
    loss: Any,
    batches: Any,
    optimizer: Any,
    inputs: Mapping[str, Mapping[str, Any]],
    eval_loss: bool = False,
    path: Path | None = None,
) -> Program:
    """A Program from what the user gave; UsageError where something cannot be right."""
    for name, value in (("build", build), ("loss", loss), ("batches", batches), ("optimizer", optimizer)):
        taking(name, value)
    word = "inputs" if path is None else "INPUTS"  # an argument in Python, a name in a file
    if not isinstance(inputs, Mapping) or not inputs:
        raise UsageError(
            f"{word} is {inputs!r}, but must name the tensors of a batch: for example {{'x': dict(low=0, high=1)}}"
        )
    about = {k: _input(f"{word}[{k!r}]", k, v) for k, v in inputs.items()}
    return Program(building(build), losing(loss), feeding(batches), optimizing(optimizer), about, eval_loss, path)


def _input(told: str, name: str, rules: Any) -> Input:
    """``told``: what the user calls these rules."""
    if isinstance(rules, tuple | list) and len(rules) == 2:
        rules = {"low": rules[0], "high": rules[1]}
    if not isinstance(rules, Mapping):
        raise UsageError(f"{told} is {rules!r}, but must be a dict: write dict(low=0, high=1) or dict(fixed=True)")
    if unknown := sorted(set(rules) - _KNOWN):
        raise UsageError(
            f"{told} has {', '.join(unknown)}, but only {', '.join(sorted(_KNOWN))} are known: correct the name"
        )
    low, high = rules.get("low"), rules.get("high")
    if (low is None) != (high is None):
        raise UsageError(f"{told} has only one of low and high, but a range needs both: give the other")
    if low is not None and not low < high:
        raise UsageError(f"{told} has low {low} and high {high}, but low must be below high: exchange them")
    # A label may have a range; it still stays with its row. Discrete inputs have no gradient to follow.
    role: Any = rules.get("role") or ("label" if rules.get("fixed") or low is None else "data")
    if role not in ("data", "label", "noise"):
        raise UsageError(f"{told} has the role {role!r}, but data, label and noise are known: choose one")
    if rules.get("fixed") and role == "data":
        role = "label"
    choices = rules.get("choices", ())
    if not isinstance(choices, list | tuple) or not all(isinstance(c, int | float) for c in choices):
        raise UsageError(f"{told} has choices {choices!r}, but they are a list of numbers: write choices=[0, 1]")
    low, high = (None if end is None else float(end) for end in (low, high))
    return Input(name, role, low, high, tuple(map(float, choices)))
