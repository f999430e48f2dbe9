"""The seam for targets: something that runs a batch of candidates and says what it saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.ragged import joined, rows_that_have


@dataclass
class Trace:
    """What one run of a batch showed.

    Attributes:
        outputs: by output name, ``(batch, ...)`` each, in the order of the model's output.
        layers: activations by module path, ``(batch, ...)``: what the coverage asked for.
        watched: further activations by module path that an objective asked for.
        gradients: by input name (and ``parameters``), ``(batch, ...)``, when a backward pass was asked for.
        present: of outputs that only some of the candidates have, bool ``(batch,)``: which; the others hold zeros.
    """

    outputs: dict[str, Tensor]
    layers: dict[str, Tensor] = field(default_factory=dict)
    watched: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    present: dict[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Tensor | slice | list[int]) -> Trace:
        """The same for some of the candidates."""
        parts = (self.outputs, self.layers, self.watched, self.gradients, self.present)
        return Trace(*(rows(part, index) for part in parts))

    @staticmethod
    def cat(traces: list[Trace], counts: Sequence[int]) -> Trace:
        """Traces of so many candidates each, one behind the other; what some lack is zeros there."""
        if len(traces) == 1:
            return traces[0]
        found = Trace({})
        for get in ("outputs", "layers", "watched", "gradients"):
            tensors, lacking = joined([getattr(t, get) for t in traces], counts)
            setattr(found, get, tensors)
            if get == "outputs":
                found.present = lacking
        for name in {n for t in traces for n in t.present}:
            found.present[name] = torch.cat(
                [rows_that_have(t.present, t.outputs, name, n) for t, n in zip(traces, counts, strict=True)]
            ).to(found.outputs[name].device)
        return found

    @property
    def count(self) -> int:
        """Candidates that this is a trace of; 0 when it holds nothing at all."""
        parts = (self.outputs, self.layers, self.watched, self.gradients)
        return next((len(t) for part in parts for t in part.values()), 0)

    def lone(self, row: int) -> dict[str, Tensor]:
        """The outputs of one candidate, without the axis of candidates: those that it has."""
        lacking = {n for n, mark in self.present.items() if not bool(mark[row])}
        return {n: t[row] for n, t in self.outputs.items() if n not in lacking}


@dataclass(frozen=True)
class Want:
    """What a run should record besides outputs."""

    layers: bool = True
    watched: bool = False
    backward: bool = False
    internal: bool = False
    """Mark candidates with a non-finite number anywhere inside, as ``watched["inside"]`` (NaN where marked)."""


class Target(ABC):
    """A model, or a pair of them, that takes batches of candidates.

    ``unit`` is "sample" (the first axis of every input holds independent candidates) or "batch" (a candidate is a
    whole input). ``why`` says in one sentence how that was found.
    """

    name: str
    unit: str
    why: str
    device: torch.device
    most_rows: ClassVar[int] = 2048

    @abstractmethod
    def run(self, batch: Batch, want: Want) -> Trace:
        """Runs candidates of equal shapes together. Raises whatever the model raises."""

    @abstractmethod
    def model_input(self, candidate: Batch) -> Batch:
        """One candidate (leading axis of 1 as in a batch) in the form in which the model takes it."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the run's header."""

    def stacked(self, traces: list[Trace], counts: Sequence[int]) -> Trace:
        """What it showed of parts of a batch, as of the whole."""
        return Trace.cat(traces, counts)

    def layer_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What ``Trace.layers`` will hold, for the header; empty when unknown."""
        return {}


def run_alone(target: Target, candidate: Batch, want: Want) -> Trace:
    """One candidate by itself; ``candidate`` has a leading axis of 1."""
    assert size(candidate) == 1
    return target.run(candidate, want)
