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
SET_PART = 0.5
"""Share of the time, on top of it, that the search for a small set of layers may take."""
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
    layers the copy changes. ``groups``: ``(first, last, layers, agree)`` of those tried together. ``together``: where
    no single layer makes half of the inputs agree, a small set that does, with how many agree."""

    inputs: int
    of: int
    layers: list[Kept] = field(default_factory=list)
    groups: list[tuple[str, str, int, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    together: tuple[list[str], int] | None = None
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
        if self.groups:
            told = sorted(self.groups, key=lambda g: -g[3])[:3]
            groups = (f"{a} to {b} ({n} layers) {100 * agree / self.inputs:.0f} %" for a, b, n, agree in told)
            lines.append(f"  neighbours together: {', '.join(groups)}; all other groups less")
        if self.together is not None:
            names, agree = self.together
            share = f"{100 * agree / self.inputs:.0f} %"
            lines.append(f"  no single layer helps half of them; these {len(names)} do ({share}): {', '.join(names)}")
        elif self.best is None or 2 * self.best.agree < self.inputs:
            lines.append("  no layer that was tried helps half of them, and no small set was found that does")
        if self.refused:
            lines.append(f"  no copy could be made without: {', '.join(self.refused[:6])}")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "layers the copy changes": self.of,
            "layers": [[k.layer, k.kind, k.agree] for k in self.layers],
            "groups": [list(g) for g in self.groups],
            "refused": self.refused,
            "together": self.together,
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

    groups = _grouped(list(layers), agreeing, found, over)
    for name in (name for group in groups for name in group):
        agree = agreeing([name])
        if agree is not None:
            found.layers.append(Kept(name, layers[name], agree))
        if over():
            break
    found.layers.sort(key=lambda k: -k.agree)
    if found.best is None or 2 * found.best.agree < cases.count:
        end = time.perf_counter() + SET_PART * seconds
        found.together = _small_set(groups, agreeing, cases.count, lambda: time.perf_counter() > end)
    found.seconds = time.perf_counter() - began
    return found


Agreeing = Callable[[Sequence[str]], int | None]


def _grouped(names: list[str], agreeing: Agreeing, found: Sensitivity, over: Callable[[], bool]) -> list[list[str]]:
    """Neighbours together, the groups that help most first."""
    if len(names) <= ALL_AT_ONCE:
        return [[name] for name in names]
    width = max(2, round(len(names) ** 0.5))
    groups = [names[i : i + width] for i in range(0, len(names), width)]
    scored = []
    for group in groups:
        agree = None if over() else agreeing(group)
        scored.append((agree if agree is not None else -1, group))
        if agree is not None:
            found.groups.append((group[0], group[-1], len(group), agree))
    return [group for _, group in sorted(scored, key=lambda pair: -pair[0])]


def _small_set(
    groups: list[list[str]], agreeing: Agreeing, count: int, over: Callable[[], bool]
) -> tuple[list[str], int] | None:
    """Groups are joined, the most helpful first, until half of the inputs agree; then what is not needed is dropped,
    in ever smaller pieces."""
    names: list[str] = []
    agree = 0
    for group in groups[: max(2, len(groups) // 2)]:
        names = [*names, *group]
        agree = agreeing(names) or 0
        if 2 * agree >= count or over():
            break
    if 2 * agree < count:
        return None
    piece = max(1, len(names) // 2)
    while not over():
        for at in range(0, len(names), piece):
            less = names[:at] + names[at + piece :]
            still = agreeing(less) if less else None
            if still is not None and 2 * still >= count:
                names, agree = less, still
                break
            if over():
                break
        else:
            if piece == 1:
                break
            piece = max(1, piece // 2)
    return names, agree


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
