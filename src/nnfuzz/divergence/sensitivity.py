"""Which single layer, left as it was, makes most of the disagreeing inputs agree again.

Every layer is tried: it alone stays in the precision of the original, and the disagreeing inputs are run through that
copy. Where a copy takes long to make, the layer's quantization is taken out of the finished one, and only the layers
that help most are confirmed with copies made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.divergence.pool import Pool
from nnfuzz.errors import NnfuzzError, Unsupported, UsageError
from nnfuzz.objectives.base import Objective
from nnfuzz.space import Batch, rows, size
from nnfuzz.store_files import to_json, write_atomically
from nnfuzz.targets import PairTarget, Trace, Want
from nnfuzz.targets.copies import Block

if TYPE_CHECKING:
    from nnfuzz.jobs import DiffJob

SECONDS = 120.0
"""Time spent on it, unless another is asked for."""
SET_PART = 0.5
"""Share of the time, on top of it, that the search for a small set of layers may take."""
MOST_HITS = 128
REMADE = 3
"""Layers, the most helpful by their graph, whose copies are made anew before they are blamed."""
MOST_TOGETHER = 6
"""Layers of a small set; beyond that nobody would keep them."""
JOINING = 10
"""Layers, the most helpful by themselves, that are tried as the next of a set."""
NOTABLE = 0.2
"""Share of the inputs that the median layer helps, from which on it is said."""
ROWS = 64
SHOWN = 12


@dataclass(frozen=True)
class Kept:
    """A layer left in the precision of the original: ``agree`` of the disagreeing inputs agree again. ``remade``: with
    a copy that was made anew without it; else its quantization was taken out of the finished copy."""

    layer: str
    kind: str
    agree: int
    remade: bool = True


@dataclass
class Sensitivity:
    """``inputs``: disagreeing ones that were rerun. ``layers``: tried ones, the most helpful first; ``of``: how many
    layers the copy changes. ``together``: where no single layer makes half of the inputs agree, the smallest set found
    that does, with how many agree."""

    inputs: int
    of: int
    layers: list[Kept] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    together: tuple[list[str], int] | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Kept | None:
        return self.layers[0] if self.layers and self.layers[0].agree else None

    @property
    def usual(self) -> float:
        """The median over the layers that were tried of how many inputs agree again."""
        return median([k.agree for k in self.layers]) if self.layers else 0.0

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
        if len(self.layers) > REMADE and self.usual >= NOTABLE * self.inputs:
            share = f"{100 * self.usual / self.inputs:.0f} %"
            lines.append(f"  the median layer helps {share} of them, which lie so near a decision that any change may")
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
            "layers": [[k.layer, k.kind, k.agree, k.remade] for k in self.layers],
            "median": self.usual,
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
    blocks = job.copies.blocks()
    found = Sensitivity(cases.count, len(blocks))
    if not cases.count:
        return found
    began = time.perf_counter()
    trial = _Trial(job, cases, blocks, found)
    for name in blocks:
        agree = trial.agreeing([name])
        if agree is not None:
            found.layers.append(Kept(name, blocks[name].kind, agree, not job.copies.quick))
        if time.perf_counter() - began > seconds:
            break
    found.layers.sort(key=lambda k: -k.agree)
    if job.copies.quick:
        found.layers[:REMADE] = [trial.remade(k) for k in found.layers[:REMADE]]
        found.layers.sort(key=lambda k: (-k.agree, not k.remade))
        while found.best is not None and not found.best.remade:
            found.layers[0] = trial.remade(found.layers[0])
            found.layers.sort(key=lambda k: (-k.agree, not k.remade))
    if found.best is None or 2 * found.best.agree < cases.count:
        end = time.perf_counter() + SET_PART * seconds
        found.together = _small_set(found.layers, trial, lambda: time.perf_counter() > end)
    found.seconds = time.perf_counter() - began
    return found


@dataclass
class _Trial:
    """Copies with some layers left as in A, and what they make of the disagreeing inputs."""

    job: DiffJob
    cases: _Cases
    blocks: Mapping[str, Block]
    found: Sensitivity

    def agreeing(self, layers: Sequence[str], *, anew: bool = False) -> int | None:
        """How many inputs agree; None where no such copy can be made."""
        assert self.job.copies is not None
        parts = [part for name in layers for part in self.blocks[name].parts]
        try:
            return self.cases.count - self.cases.still(self.job.variant(parts, quick=not anew))
        except (NnfuzzError, RuntimeError, ValueError) as error:
            if isinstance(error, Unsupported) and len(layers) == len(self.blocks):
                return self.cases.count  # nothing is left to convert: the copy is the model itself
            self.found.refused += list(layers) if len(layers) == 1 else []
            return None

    def remade(self, kept: Kept) -> Kept:
        agree = self.agreeing([kept.layer], anew=True)
        return Kept(kept.layer, kept.kind, kept.agree if agree is None else agree)


def _small_set(ranked: list[Kept], trial: _Trial, over: Callable[[], bool]) -> tuple[list[str], int] | None:
    """The layer is added that helps most beside those chosen, until half of the inputs agree; then those are dropped
    without which half still do; then the copy is made anew."""
    half, chosen, agree = trial.cases.count / 2, [k.layer for k in ranked[:1]], 0
    if not chosen:
        return None
    while agree < half and len(chosen) < MOST_TOGETHER and not over():
        scored = []
        for kept in ranked[:JOINING]:
            if kept.layer not in chosen and not over():
                scored.append((trial.agreeing([*chosen, kept.layer]) or 0, kept.layer))
                if scored[-1][0] >= half:
                    break
        if not scored:
            break
        agree, best = max(scored, key=lambda pair: pair[0])
        chosen.append(best)
    if agree < half:
        chosen = []
        for kept in ranked[: 2 * JOINING]:  # each alone hardly helps: all of the best at once may
            chosen.append(kept.layer)
            if len(chosen) > 1 and (agree := trial.agreeing(chosen) or 0) >= half:
                break
            if over():
                return None
    for name in chosen[::-1]:  # those that help least by themselves go first
        less = [n for n in chosen if n != name]
        still = trial.agreeing(less) if len(less) > 1 and not over() else None
        if still is not None and still >= half:
            chosen, agree = less, still
    confirmed = trial.agreeing(chosen, anew=True)
    agree = agree if confirmed is None else confirmed
    return (chosen, agree) if agree >= half else None


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
