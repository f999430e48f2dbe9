"""The seam for mutators: a plugin writes ``mutate``; legality is enforced in the final ``__call__``, nowhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch

from nnfuzz.mutators.pool import NoisePool
from nnfuzz.registry import Registry
from nnfuzz.space import Anchors, Batch, InputSpace, InputSpec


@dataclass
class Context:
    """What a mutator may use besides the parents.

    Attributes:
        space: what is legal.
        rng: for the few cheap choices of a group (which inputs, which strength); seeded per batch.
        generator: for tensors of random numbers, on the batch's device; seeded per batch.
        pool: pre-drawn normal noise, far cheaper than drawing (``pool.normal(shape, dtype)``).
        anchors: the seed each row descends from, shape of the seeds.
        partners: draws one other corpus entry per row, of the same shapes (for splicing).
    """

    space: InputSpace
    rng: np.random.Generator
    generator: torch.Generator
    pool: NoisePool
    anchors: Anchors
    partners: Callable[[], Batch]

    def pick(self, specs: list[InputSpec]) -> list[InputSpec]:
        """A random non-empty subset, order kept: half the time all of them, else one or a few."""
        if len(specs) <= 1 or self.rng.random() < 0.5:
            return specs
        chosen = set(self.rng.choice(len(specs), size=int(self.rng.integers(1, len(specs))), replace=False).tolist())
        return [s for i, s in enumerate(specs) if i in chosen]

    def log_uniform(self, low: float, high: float) -> float:
        """A strength drawn evenly over orders of magnitude."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))


class Mutator(ABC):
    """Turns parents into mutants.

    A plugin sets ``name``, narrows ``targets`` (the inputs it can change) and writes ``mutate``.
    """

    name: ClassVar[str]
    reshapes: ClassVar[bool] = False
    """True when mutants may have other shapes than their parents (free dimensions)."""
    keeps_finite: ClassVar[bool] = False
    """True when ``mutate`` cannot yield NaN from finite parents, so the NaN sweep is skipped."""

    cheap: ClassVar[bool] = False
    """True when ``mutate`` is one pass over the batch: full batches are mostly made by such mutators."""

    def targets(self, space: InputSpace) -> list[InputSpec]:
        """The inputs this mutator can change in this space; an empty list takes it out of the run."""
        return list(space.mutable)

    @abstractmethod
    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        """Changes ``batch[spec.name]`` for the given specs: in place, or by putting a new tensor there.

        ``batch`` holds every input, ``(rows, *shape)``, and is owned by this call; only the given inputs may be
        touched (reshaping mutators also touch those that share a free dimension). Values may leave the legal
        space: they are projected back afterwards.
        """

    @final
    def __call__(self, batch: Batch, ctx: Context) -> Batch:
        """``batch``: copies of the parents, ``(rows, *shape)``, may be overwritten. Returns legal mutants."""
        specs = ctx.pick(self.targets(ctx.space))
        dtypes = {n: t.dtype for n, t in batch.items()}
        self.mutate(batch, specs, ctx)
        for name, dtype in dtypes.items():
            if batch[name].dtype != dtype:
                batch[name] = batch[name].to(dtype)
        return ctx.space.project(batch, ctx.anchors, maybe_nan=not self.keeps_finite)


MUTATORS: Registry[type[Mutator]] = Registry("mutator")


def register(cls: type[Mutator]) -> type[Mutator]:
    """Class decorator: makes the mutator known under its ``name``."""
    return MUTATORS.register(cls.name)(cls)
