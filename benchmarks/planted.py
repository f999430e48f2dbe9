"""Proof 5: the planted network, with coverage and without, at equal inputs: ``python benchmarks/planted.py``."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))

from planted import BUDGET, search

for coverage in ("auto", "none"):
    runs = [search(seed, coverage, BUDGET) for seed in range(10)]
    found = sum(bool(run.findings) for run in runs)
    middle = statistics.median(run.stats.inputs for run in runs)
    print(f"coverage={coverage}: found {found} of 10, median inputs {middle:,.0f} of at most {BUDGET:,}")
