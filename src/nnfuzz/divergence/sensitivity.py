"""Which single layer, left as it was, makes most of the disagreeing inputs agree again.

Every layer is tried: a copy is made in which it alone stays in the precision of the original, and the disagreeing
inputs are run through it. Where there are many layers they are tried in groups first, and then one by one in the groups
that helped most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.divergence.pool import Pool
from nnfuzz.errors import NnfuzzError, Unsupported, UsageError
from nnfuzz.objectives.base import Objective
from nnfuzz.space import Batch, rows, size
from nnfuzz.store_files import to_json, write_atomically
from nnfuzz.targets import PairTarget, Trace, Want

if TYPE_CHECKING:
    from nnfuzz.jobs import DiffJob

SECONDS = 120.0
"""Time spent on it, unless another is asked for."""
MOST_HITS = 128
ALL_AT_ONCE = 16
"""So few layers are tried one by one without groups."""
ROWS = 64
SHOWN = 12


@dataclass(frozen=True)
class Kept:
    """A layer left in the precision of the original: ``agree`` of the disagreeing inputs agree again."""

    layer: str
    kind: str
    agree: int


@dataclass
class Sensitivity:
    """``inputs``: disagreeing ones that were rerun. ``layers``: tried ones, the most helpful first; ``of``: how many
    layers the copy changes. ``groups``: ``(first, last, layers, agree)`` of those tried together."""

    inputs: int
    of: int
    layers: list[Kept] = field(default_factory=list)
    groups: list[tuple[str, str, int, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> Kept | None:
        return self.layers[0] if self.layers and self.layers[0].agree else None

    def lines(self) -> list[str]:
        """The table."""
        if not self.inputs:
            return ["sensitivity: no disagreeing input to rerun"]
        tried = "all" if len(self.layers) == self.of else f"{len(self.layers)} of {self.of}"
        lines = [
            f"sensitivity: {self.inputs} disagreeing inputs rerun with one layer left as in A, {tried} layers tried in "
            f"{self.seconds:.0f} s"
        ]
        width = min(48, max((len(k.layer) for k in self.layers[:SHOWN]), default=5))
        lines += [f"  {'layer':<{width}}  agree again"]
        for k in self.layers[:SHOWN]:
            lines.append(f"  {k.layer:<{width}}  {100 * k.agree / self.inputs:5.1f} %  ({k.agree})  {k.kind}")
        if len(self.layers) > SHOWN:
            lines.append(f"  and {len(self.layers) - SHOWN} more, at most {self.layers[SHOWN].agree} each")
        if self.groups and len(self.layers) < self.of:
            lines.append("  tried in groups alone, since they help less: " + "; ".join(self._untried()))
        if self.refused:
            lines.append(f"  no copy could be made without: {', '.join(self.refused[:6])}")
        return lines

    def _untried(self) -> list[str]:
        known = {k.layer for k in self.layers}
        left = [g for g in self.groups if g[0] not in known][:4]
        return [f"{a} to {b} ({n}): {100 * agree / self.inputs:.0f} %" for a, b, n, agree in left] or ["none"]

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "layers the copy changes": self.of,
            "layers": [[k.layer, k.kind, k.agree] for k in self.layers],
            "groups": [list(g) for g in self.groups],
            "refused": self.refused,
            "seconds": round(self.seconds, 1),
        }

    def save(self, run: Path) -> None:
        """``RUN/sensitivity.json``."""
        write_atomically(run / "sensitivity.json", to_json(self.to_json()))


def measure(job: DiffJob, objective: Objective, pool: Pool, seconds: float = SECONDS) -> Sensitivity:
    """``job``: prepared, with ``copies``; ``objective`` has seen the seeds.

    Raises:
        UsageError: B is no derived copy, so that no layer of it can be left as in A.
    """
    if job.copies is None or job.pair is None:
        raise UsageError(
            "sensitivity leaves layers of a derived copy as they were, but this run compares two models of its own: "
            "use --as"
        )
    cases = _Cases(job.pair, objective, pool)
    layers = job.copies.layers()
    found = Sensitivity(cases.count, len(layers))
    if not cases.count:
        return found
    began = time.perf_counter()

    def over() -> bool:
        return time.perf_counter() - began > seconds

    def agreeing(names: Sequence[str]) -> int | None:
        try:
            return cases.count - cases.still(job.variant(names))
        except (NnfuzzError, RuntimeError, ValueError) as error:
            if isinstance(error, Unsupported) and len(names) == len(layers):
                return cases.count  # nothing is left to convert: the copy is the model itself
            found.refused += list(names) if len(names) == 1 else []
            return None

    for name in _in_order(list(layers), agreeing, found, over):
        agree = agreeing([name])
        if agree is not None:
            found.layers.append(Kept(name, layers[name], agree))
        if over():
            break
    found.layers.sort(key=lambda k: -k.agree)
    found.seconds = time.perf_counter() - began
    return found


def _in_order(
    names: list[str], agreeing: Callable[[Sequence[str]], int | None], found: Sensitivity, over: Callable[[], bool]
) -> list[str]:
    """Layers of the groups that help most come first."""
    if len(names) <= ALL_AT_ONCE:
        return names
    width = max(2, round(len(names) ** 0.5))
    groups = [names[i : i + width] for i in range(0, len(names), width)]
    scored = []
    for group in groups:
        agree = None if over() else agreeing(group)
        scored.append((agree if agree is not None else -1, group))
        if agree is not None:
            found.groups.append((group[0], group[-1], len(group), agree))
    return [name for _, group in sorted(scored, key=lambda pair: -pair[0]) for name in group]


class _Cases:
    """Disagreeing inputs, with A's answers, which do not change."""

    def __init__(self, pair: PairTarget, objective: Objective, pool: Pool):
        self.objective = objective
        self.parts: list[tuple[Batch, dict[str, Tensor]]] = []
        self.count = 0
        for batch, _ in pool.batches(MOST_HITS):
            for a in range(0, size(batch), ROWS):
                part = {n: t.to(pair.device) for n, t in rows(batch, slice(a, a + ROWS)).items()}
                answers = pair.a.run(part, Want(layers=False)).outputs
                hits = self._hits(pair, part, answers)
                if bool(hits.any()):
                    index = hits.nonzero()[:, 0]
                    self.parts.append((rows(part, index), rows(answers, index)))
                    self.count += len(index)

    def still(self, pair: PairTarget) -> int:
        """How many disagree with this B."""
        return sum(int(self._hits(pair, part, answers).sum()) for part, answers in self.parts)

    def _hits(self, pair: PairTarget, part: Batch, answers: dict[str, Tensor]) -> Tensor:
        theirs = pair.from_b(pair.b.run(pair.for_b(part), Want(layers=False)).outputs)
        trace = Trace(pair.joined(answers, {n: t.to(pair.device) for n, t in theirs.items()}))
        with torch.no_grad():
            return self.objective.judge(trace, part).hits
