"""The least disturbance: for every seed the smallest L∞ distance at which the two sides were found to disagree.

Bisection on what the search has found, all cases together: each is drawn toward its seed along the straight line, and
by clipping its changes to a smaller and smaller box. The smallest distance that *exists* may be smaller still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.divergence.pool import Pool
from nnfuzz.kinds import KINDS
from nnfuzz.space import Batch, InputSpace, cat, rows, signature, size
from nnfuzz.store_files import to_json, write_atomically

SHARES, ROUNDS = 12, 3
"""Distances tried in a round; three rounds place the edge within 1/1,700 of the way."""
ROWS = 96
"""Candidates run together."""
PART = 0.1
"""Share of the run's own inputs that is spent on it unless more is asked for, and at least ``AT_LEAST``."""
AT_LEAST = 500
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)

Fails = Callable[[Batch], Tensor]


@dataclass
class Least:
    """``distances``: L∞ by the seed's index, of seeds on which a disagreement was found. ``seeds``: how many there are.
    ``looked``: of how many the distance is as small as bisection makes it (the others have that of the hit); 0, of a
    seed that disagrees as it is, counts among them."""

    distances: dict[int, float]
    seeds: int
    looked: int
    tried: int
    candidates: dict[int, Batch] = field(default_factory=dict)

    def quantiles(self) -> dict[str, float]:
        """Of the distances, linearly interpolated; empty where there are none."""
        values = torch.tensor(sorted(self.distances.values()), dtype=torch.float64)
        return {f"{q:g}": float(values.quantile(q)) for q in QUANTILES} if len(values) else {}

    def line(self) -> str:
        """One sentence for the summary."""
        if not self.distances:
            return "least disturbance: no seed has a disagreement within reach"
        q = self.quantiles()
        some = "" if self.looked == len(self.distances) else f" ({self.looked} of them bisected: --least does all)"
        share = f"{len(self.distances)} of {self.seeds} seeds"
        unchanged = sum(d == 0 for d in self.distances.values())
        share += f" ({unchanged} as {'it is' if unchanged == 1 else 'they are'})" if unchanged else ""
        if len(self.distances) == 1:
            return f"least disturbance: around {share} there is a disagreement, from L∞ {q['0.5']:.3g} on{some}"
        return (
            f"least disturbance: around {share} there are disagreements{some}, from L∞ {q['0']:.3g} on; "
            f"median {q['0.5']:.3g}, nine in ten by {q['0.9']:.3g}, all by {q['1']:.3g}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "disagreeing": len(self.distances),
            "bisected": self.looked,
            "inputs": self.tried,
            "quantiles": self.quantiles(),
            "linf": {str(i): d for i, d in sorted(self.distances.items())},
        }

    def save(self, run: Path) -> list[str]:
        """``RUN/least.json`` and, where matplotlib is installed, ``RUN/least.png``; returns their names."""
        write_atomically(run / "least.json", to_json(self.to_json()))
        return ["least.json", *(["least.png"] if self.distances and draw(self, run / "least.png") else [])]


@dataclass
class _Way:
    """One case on its way to its seed: ``low`` agrees (or is the seed), ``high`` disagrees, as shares of the way."""

    index: int
    hit: Batch
    anchor: Batch
    clip: bool
    low: float = 0.0
    high: float = 1.0


def least(
    pool: Pool, seeds: dict[int, Batch], space: InputSpace, fails: Fails, total: int, budget: int | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Least:  # fmt: skip
    """Bisects the nearest hits.

    Args:
        pool: hits, and the seeds that disagree as they are, at distance 0.
        seeds: by index, candidates with a leading axis of 1. total: how many seeds the run had.
        fails: which of a batch disagree. budget: most candidates to run; None for no limit.
    """
    found = Least({}, total, 0, 0)
    at_once = sorted(pool.unchanged & seeds.keys())
    found.distances, found.candidates = dict.fromkeys(at_once, 0.0), {i: seeds[i] for i in at_once}
    ways: list[_Way] = []
    cost = SHARES * ROUNDS
    for index, distance, hit in sorted(pool.nearest(), key=lambda entry: entry[1]):
        if not math.isfinite(distance) or index not in seeds or index in pool.unchanged:
            continue
        found.distances[index], found.candidates[index] = distance, hit
        if distance == 0:
            continue
        if signature(hit) != signature(seeds[index]):
            continue
        for clip in (False, True):
            if budget is None or cost * (len(ways) + 1) <= budget:
                ways.append(_Way(index, hit, seeds[index], clip))
    found.looked = len({w.index for w in ways}) + sum(d == 0 for d in found.distances.values())
    for _ in range(ROUNDS):
        for group in _grouped(ways):
            for part in (group[i : i + max(1, ROWS // SHARES)] for i in range(0, len(group), max(1, ROWS // SHARES))):
                if late():
                    return found
                _round(part, space, fails, found)
    return found


def _grouped(ways: Sequence[_Way]) -> list[list[_Way]]:
    groups: dict[Any, list[_Way]] = {}
    for way in ways:
        groups.setdefault(signature(way.hit), []).append(way)
    return list(groups.values())


def _round(ways: Sequence[_Way], space: InputSpace, fails: Fails, found: Least) -> None:
    """Tries ``SHARES`` distances for each and keeps the first that disagrees."""
    shares = [way.low + (way.high - way.low) * (k + 1) / SHARES for way in ways for k in range(SHARES)]
    made = cat([_at(way, shares[i * SHARES + k], space) for i, way in enumerate(ways) for k in range(SHARES)])
    failing = fails(made)
    found.tried += size(made)
    for i, way in enumerate(ways):
        mine = slice(i * SHARES, (i + 1) * SHARES)
        struck = failing[mine].nonzero()[:, 0].tolist()
        if not struck:
            continue
        first = struck[0]
        way.high = shares[i * SHARES + first]
        way.low = shares[i * SHARES + first - 1] if first else way.low
        candidate = rows(made, slice(i * SHARES + first, i * SHARES + first + 1))
        distance = linf(candidate, way.anchor)
        if distance < found.distances[way.index]:
            lone = fails(candidate)  # a batch may round otherwise
            found.tried += 1
            if bool(lone[0]):
                found.distances[way.index], found.candidates[way.index] = distance, candidate


def _at(way: _Way, share: float, space: InputSpace) -> Batch:
    """The case so far from its seed, made legal."""
    made = {}
    for spec in space:
        x, seed = way.hit[spec.name], way.anchor[spec.name]
        if spec.fixed or KINDS[spec.kind].discrete or not x.is_floating_point():
            made[spec.name] = x
            continue
        change = x.double() - seed.double()
        if way.clip:
            edge = share * float(change.abs().max()) if change.numel() else 0.0
            change = change.clamp(-edge, edge)
        else:
            change = share * change
        made[spec.name] = (seed.double() + change).to(x.dtype)
    return space.project(made, space.anchors(way.anchor))


def linf(a: Batch, b: Batch) -> float:
    """The largest change over all inputs."""
    gaps = [(a[n].double() - b[n].double()).abs().max() for n in a if a[n].numel() and not a[n].is_complex()]
    return max((float(g) for g in gaps), default=0.0)


def draw(least: Least, path: Path) -> bool:
    """The share of seeds that disagree within a distance. False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(4.2, 2.8), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    values = sorted(least.distances.values())
    steps = [100 * (i + 1) / least.seeds for i in range(len(values))]
    axes.step([0.0, *values], [0.0, *steps], where="post", color="#b03a2e")
    axes.set_xlabel("L∞ distance from the seed")
    axes.set_ylabel("% of seeds that disagree")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    return True
