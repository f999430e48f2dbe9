"""Legal inputs besides the seeds, on which a repaired program must say what the program said.

Seeds show one side of an edge only: a denominator that is positive on all of them may be negative on other legal
inputs, and a guard of one side changes every answer there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nnfuzz.advice.search import ranges_of, starts
from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.finding import Finding
from nnfuzz.inputs import build_space
from nnfuzz.space import Anchors, Batch, InputSpace, InputSpec, cat, rows, size

if TYPE_CHECKING:
    from nnfuzz.jobs import Job

DRAWN = 48
"""Inputs drawn from the whole range."""
STEPS = (-1.0, -0.25, 0.25, 0.5, 0.75, 0.9, 0.99, 1.01, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Where on the line from the seed (0) through the failing input (1) and beyond."""
NEAR = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3)
"""Sizes of steps off the failing input, in widths of the range; two steps of each."""


def other_inputs(finding: Finding, job: Job) -> list[Batch]:
    """Model inputs from the range that was searched: drawn evenly, on the line through the failing input, and round it;
    in an order in which any first few are of all kinds. None where nothing legal can be drawn."""
    whole = finding.details.get("run", {}).get("unit") == "batch"
    groups = starts(finding, job, failing=True).groups
    seed, failing = rows(groups[0].batch, slice(0, 1)), rows(groups[-1].batch, slice(-1, None))
    settings, generator = job.settings, torch.Generator().manual_seed(0)
    try:
        space = build_space(
            starts(finding, job, failing=True), ranges=ranges_of(finding, job), kinds=settings.kinds,
            fixed=settings.fixed, eps=settings.eps, constraint=job.constraint(),
        )  # fmt: skip
        made = [_drawn(space, seed, generator)]
        if all(seed[n].shape == t.shape for n, t in failing.items()):
            made += [_on_the_line(space, seed, failing), _round(space, failing, generator)]
        made = [_legal(space, batch, seed) for batch in made]
    except (NnfuzzError, RuntimeError):  # a range that does not fit another shape, a space in which nothing can change
        return []
    every = cat(made)
    order = torch.randperm(size(every), generator=generator).tolist()
    return [{n: (t[i] if whole else t[i : i + 1]) for n, t in every.items()} for i in order]


def _legal(space: InputSpace, batch: Batch, seed: Batch) -> Batch:
    """Projected onto what is legal; what does not become so is left out."""
    anchors = _anchors(space, seed, size(batch))
    batch = space.project(batch, anchors)
    return rows(batch, space.legal(batch, anchors).nonzero()[:, 0])


def _anchors(space: InputSpace, seed: Batch, count: int) -> Anchors:
    return space.anchors({n: t.expand(count, *t.shape[1:]) for n, t in seed.items()})


def _many(seed: Batch, count: int) -> Batch:
    return {n: t.expand(count, *t.shape[1:]).clone() for n, t in seed.items()}


def _drawn(space: InputSpace, seed: Batch, generator: torch.Generator) -> Batch:
    """Even in the range, element by element; every other one keeps some of the inputs as the seed has them."""
    batch = _many(seed, DRAWN)
    for spec in space.mutable:
        x = batch[spec.name]
        new = _even(x, spec, generator)
        kept = (torch.rand(DRAWN, generator=generator) < 0.5) & (torch.arange(DRAWN) % 2 == 1)
        batch[spec.name] = torch.where(kept.view(-1, *[1] * (x.dim() - 1)), x, new)
    return batch


def _even(x: Tensor, spec: InputSpec, generator: torch.Generator) -> Tensor:
    share = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    if spec.dtype == torch.bool:
        return share < 0.5
    if spec.choices is not None:
        return spec.choices[(share * len(spec.choices)).long().clamp(max=len(spec.choices) - 1)].to(x.dtype)
    low, high = spec.low.double(), spec.high.double()
    value = low * (1 - share) + high * share  # high - low may be beyond float64
    return (value if x.is_floating_point() else value.round()).to(x.dtype)


def _on_the_line(space: InputSpace, seed: Batch, failing: Batch) -> Batch:
    batch, share = _many(seed, len(STEPS)), torch.tensor(STEPS, dtype=torch.float64)
    for spec in space.mutable:
        x = batch[spec.name]
        if spec.dtype == torch.bool:
            continue
        a, b = x.double(), failing[spec.name].double()
        value = a + share.view(-1, *[1] * (x.dim() - 1)) * (b - a)
        batch[spec.name] = (value if x.is_floating_point() else value.round()).to(x.dtype)
    return batch


def _round(space: InputSpace, failing: Batch, generator: torch.Generator) -> Batch:
    scale = torch.tensor(NEAR, dtype=torch.float64).repeat(2)
    batch = _many(failing, len(scale))
    for spec in space.mutable:
        x = batch[spec.name]
        if not spec.is_real:
            continue
        step = torch.randn(x.shape, generator=generator, dtype=torch.float64) * spec.width
        batch[spec.name] = (x.double() + scale.view(-1, *[1] * (x.dim() - 1)) * step).to(x.dtype)
    return batch
