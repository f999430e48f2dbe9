"""What can be descended on: distances of unsafe operands, and (negated) scores of objectives.

A guide looks at a batch once and names every target that it saw, with one live distance per candidate; at or below 0
the target is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from nnfuzz.objectives.base import Objective, flat, floating
from nnfuzz.objectives.disagreement import Disagreement, sides
from nnfuzz.probe import observe
from nnfuzz.space import Batch, size
from nnfuzz.targets import PairTarget, TorchTarget, Trace, Want
from nnfuzz.targets.outputs import named_outputs

Distances = list[dict[str, Tensor]]
"""Per candidate: target → distance, a 0-dim tensor that carries its autograd graph."""


class Guide(Protocol):
    """One way of measuring how near candidates are to failing."""

    def look(self, leaves: Batch, skip: Callable[[str], bool]) -> Distances:
        """``leaves``: candidates of equal shapes, ``(batch, ...)``; ``skip(target)`` need not be computed."""

    def is_backward(self, target: str) -> bool:
        """Whether reaching the target shows only in gradients."""

    def has_edge(self, target: str) -> bool:
        """Whether distance 0 means something; otherwise the smaller the better, without end."""


class SiteGuide:
    """Every unsafe operation that the model runs, at every place where it runs it.

    Attributes:
        seen: targets met so far, by key, with the site key that a finding there would carry.
    """

    def __init__(self, side: TorchTarget, *, backward: bool = True):
        """``backward``: whether failures of gradients are wanted as well."""
        self.side, self.backward = side, backward
        self.seen: dict[str, str] = {}
        self._backward: set[str] = set()

    def look(self, leaves: Batch, skip: Callable[[str], bool]) -> Distances:
        joined = self.side.joined(leaves)
        if joined is not None:
            return self._look_at(joined, size(leaves), skip)
        each = []
        for i in range(size(leaves)):
            each += self._look_at({n: t[i] for n, t in leaves.items()}, None, skip)
        return each

    def is_backward(self, target: str) -> bool:
        return target in self._backward

    def has_edge(self, target: str) -> bool:
        return True

    def _look_at(self, inputs: Batch, rows: int | None, skip: Callable[[str], bool]) -> Distances:
        args, kwargs = self.side.form.bind(inputs)

        def wanted(site: Any, hazard: Any) -> bool:
            return (self.backward or site.phase != "backward") and not skip(f"{site.key}!{hazard.id}")

        with torch.inference_mode(False), torch.enable_grad():
            seen = observe(self.side.model, args, kwargs, rows=rows, select=wanted)
        self.side.observed(inputs, seen.outputs)
        count = rows or 1
        found: Distances = [{} for _ in range(count)]
        for key, reading in seen.nearest().items():
            self.seen[key] = reading.site.key
            if reading.site.phase == "backward":
                self._backward.add(key)
            per_row = reading.distance if len(reading.distance) == count else reading.distance.expand(count)
            for slot, distance in zip(found, per_row.unbind(0), strict=True):
                slot[key] = distance
        return found


class ScoreGuide:
    """The objective's own score, where it is differentiable; for a pair also the difference between the sides."""

    def __init__(self, target: TorchTarget | PairTarget, objective: Objective):
        self.target, self.objective = target, objective
        self._blind: list[TorchTarget] = []
        if isinstance(target, PairTarget):
            self._blind += [side for side in (target.a, target.b) if side not in target.traced]

    def is_backward(self, target: str) -> bool:
        return False

    def has_edge(self, target: str) -> bool:
        """A pair's score is minus a margin, which ends at 0; other scores are open."""
        return target == "score" and isinstance(self.objective, Disagreement) and self.objective.has_margin

    def look(self, leaves: Batch, skip: Callable[[str], bool]) -> Distances:
        trace = self._live_trace(leaves)
        count = size(leaves)
        found: Distances = [{} for _ in range(count)]
        score = self.objective.judge(trace, leaves).score
        if score is not None and score.requires_grad:
            for slot, value in zip(found, score.unbind(0), strict=True):
                slot["score"] = -value
        if isinstance(self.target, PairTarget):
            a, b = sides(trace)
            gap = _difference(a, b)
            if gap is not None and gap.requires_grad:
                for slot, value in zip(found, gap.unbind(0), strict=True):
                    slot["difference"] = -value
        return found

    def _live_trace(self, leaves: Batch) -> Trace:
        if isinstance(self.target, TorchTarget):
            return Trace(_live(self.target, leaves))
        pair = self.target
        first, second = self._side(pair.a, leaves), self._side(pair.b, pair.for_b(leaves))
        return Trace(pair.joined(first, pair.from_b(second)))

    def _side(self, side: TorchTarget, leaves: Batch) -> dict[str, Tensor]:
        """Of a side that cannot be differentiated the values alone: it judges, and the other one leads."""
        if side not in self._blind:
            try:
                return _live(side, leaves)
            except Exception:
                self._blind.append(side)
                if len(self._blind) > 1:
                    raise
        with torch.no_grad():
            found = side.run({n: t.detach() for n, t in leaves.items()}, Want(layers=False)).outputs
        return {n: t.clone() for n, t in found.items()}  # out of inference mode


def _live(side: TorchTarget, leaves: Batch) -> dict[str, Tensor]:
    """Outputs with their graph, ``(batch, ...)``; their values are those of the runtime that the side stands for."""
    if side.unit == "sample":
        return side.as_answered(leaves, named_outputs(side.form.call(side.model, leaves)))
    each = []
    for i in range(size(leaves)):
        one = {n: t[i] for n, t in leaves.items()}
        each.append(side.as_answered(one, named_outputs(side.form.call(side.model, one))))
    return {n: torch.stack([e[n] for e in each]) for n in each[0] if all(n in e for e in each)}


def _difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor | None:
    """Relative growth of the gap between the sides, as the logarithm of its mean square: ``(batch,)``."""
    total = None
    for x, y in zip(floating(a).values(), floating(b).values(), strict=False):
        if x.shape != y.shape:
            return None
        gap = (flat(x).float() - flat(y).float()).square().mean(1)
        total = gap if total is None else total + gap
    return None if total is None else (total + 1e-30).log()
