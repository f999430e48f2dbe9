"""A training program as the user gives it: how weights, loss, batches and optimizer are made, and what is legal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.errors import UsageError
from nnfuzz.training.guarded import building, feeding, losing, optimizing, taking
from nnfuzz.training.rules import Input as Input
from nnfuzz.training.rules import Role, read_input

Batch = dict[str, Tensor]


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
    about = {k: read_input(f"{word}[{k!r}]", k, v) for k, v in inputs.items()}
    return Program(building(build), losing(loss), feeding(batches), optimizing(optimizer), about, eval_loss, path)
