"""What a run can tell about itself at any moment: the numbers behind the status line, stats.json and plot_data.csv."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

PLOT_COLUMNS = (
    "relative_time",
    "execs_done",
    "execs_per_sec",
    "corpus_count",
    "radius",
    "best_score",
    "saved_crashes",
    "max_depth",
)
"""Columns of plot_data.csv, named as AFL++ names them where it has them."""


@dataclass
class MutatorYield:
    """What one mutator has earned."""

    name: str
    tried: int = 0
    novel: int = 0
    hits: int = 0


@dataclass
class Stats:
    """Counters of one run (all of its sessions together).

    Attributes:
        inputs: candidates run while fuzzing (shrinking and confirming are counted in ``extra_inputs``).
        seconds: time spent, over all sessions of the run.
        raw_rate: the bare model's candidates per second at its best batch size, or None before it is measured.
        radius: the novelty radius in force (NaN without coverage).
        best_score: highest objective score seen, −inf before the first.
        last_novel, last_finding: ``seconds`` at that moment.
        stopped: why the run ended ("max-inputs", "max-time", "first-finding", "interrupted");
            "" while running.
    """

    seed: int = 0
    target: str = ""
    unit: str = ""
    inputs: int = 0
    extra_inputs: int = 0
    batches: int = 0
    batch_size: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    raw_rate: float | None = None
    corpus: int = 0
    corpus_bytes: int = 0
    evicted: int = 0
    max_depth: int = 0
    radius: float = math.nan
    best_score: float = -math.inf
    last_novel: float = 0.0
    last_finding: float = 0.0
    hits: int = 0
    findings: int = 0
    yields: dict[str, MutatorYield] = field(default_factory=dict)
    stopped: str = ""

    @property
    def rate(self) -> float:
        """Candidates per second of the run's whole time."""
        return self.inputs / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float | None:
        """``rate`` as a share of the model's own raw speed."""
        return self.rate / self.raw_rate if self.raw_rate else None

    def plot_row(self) -> dict[str, float]:
        """One row of plot_data.csv."""
        return {
            "relative_time": round(self.seconds, 3),
            "execs_done": self.inputs,
            "execs_per_sec": round(self.rate, 1),
            "corpus_count": self.corpus,
            "radius": self.radius,
            "best_score": self.best_score,
            "saved_crashes": self.findings,
            "max_depth": self.max_depth,
        }

    def to_json(self) -> dict[str, Any]:
        """For stats.json: the AFL++ keys that apply, then nnfuzz's own."""
        return {
            "run_time": round(self.seconds, 3),
            "execs_done": self.inputs,
            "execs_per_sec": round(self.rate, 1),
            "corpus_count": self.corpus,
            "max_depth": self.max_depth,
            "saved_crashes": self.findings,
            "last_find": round(self.last_novel, 3),
            "last_crash": round(self.last_finding, 3),
            "target": self.target,
            "unit": self.unit,
            "seed": self.seed,
            "batches": self.batches,
            "batch_size": self.batch_size,
            "extra_inputs": self.extra_inputs,
            "raw_execs_per_sec": self.raw_rate,
            "share_of_raw_speed": self.share,
            "corpus_bytes": self.corpus_bytes,
            "evicted": self.evicted,
            "radius": None if math.isnan(self.radius) else self.radius,
            "best_score": self.best_score if math.isfinite(self.best_score) else None,
            "hits": self.hits,
            "stopped": self.stopped,
            "yields": {y.name: [y.tried, y.novel, y.hits] for y in self.yields.values()},
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> Stats:
        """What ``to_json`` has written; what it does not hold has its default."""
        kept = {
            name: document[key]
            for key, name in _NAMES.items()
            if isinstance(document.get(key), str if name in ("target", "unit", "stopped") else int | float)
        }
        yields = document.get("yields")
        made = {n: MutatorYield(n, *counts) for n, counts in (yields if isinstance(yields, dict) else {}).items()}
        return Stats(**kept, yields=made)


_NAMES = {
    "run_time": "seconds",
    "execs_done": "inputs",
    "corpus_count": "corpus",
    "saved_crashes": "findings",
    "last_find": "last_novel",
    "last_crash": "last_finding",
    "raw_execs_per_sec": "raw_rate",
} | {
    name: name
    for name in (
        "max_depth", "target", "unit", "seed", "batches", "batch_size", "extra_inputs", "corpus_bytes", "evicted",
        "radius", "best_score", "hits", "stopped",
    )
}  # fmt: skip
