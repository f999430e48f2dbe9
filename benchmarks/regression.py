"""Proof 3: two training runs of one network: where version 2 answers otherwise near images that both name right.

    python benchmarks/regression.py [--seeds 50] [--eps 0.1 0.2] [--max-inputs 20000]

784-200-100-10 trained twice, with seeds 0 and 1 (weights, order of the images, shifts). Seeds are held-out digits
that both versions name right. First one run over all of them (every pair of labels is a finding; the nearest case
is kept), then one run a seed, ended at its first hit, for how many seeds have a difference within the ball and how
near it is after shrinking. The first with gradients and without; the second also as random search (always the seed,
nothing kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

import lab
import nnfuzz

MODES: dict[str, dict[str, Any]] = {
    "coverage-guided": {"gradients": False},
    "with gradients": {"gradients": True},
    "random search": {"gradients": False, "coverage": "none"},
}


def together(a: nn.Module, b: nn.Module, images: Any, eps: float, most: int, mode: str) -> dict[str, Any]:
    """One run over all seeds."""
    run = nnfuzz.diff(a, b, images, ranges=(-1, 1), eps=eps, max_inputs=most, max_seconds=None, **MODES[mode])
    kinds = [
        {
            "labels": [f.details.get("answer_a"), f.details.get("answer_b")],
            "linf": f.distance["linf"], "l0": f.distance["l0"], "count": f.count, "inputs": f.inputs_tried,
            "seed": f.seed_index, "severity": f.severity,
        }
        for f in run.findings if f.confirmed
    ]  # fmt: skip
    return {"kinds": kinds, "hits": run.stats.hits, "inputs": run.stats.inputs, "seconds": run.stats.seconds}


def alone(a: nn.Module, b: nn.Module, images: Any, eps: float, most: int, mode: str) -> list[dict[str, Any]]:
    """One run a seed, to its first hit."""
    return [
        lab.timed(
            lambda i=i, image=image: nnfuzz.diff(
                a, b, image[None], ranges=(-1, 1), eps=eps, max_inputs=most, max_seconds=None, stop_on_first=True,
                seed=i, **MODES[mode],
            )
        )
        for i, image in enumerate(images)
    ]  # fmt: skip


def spread(values: list[float]) -> str:
    """Least, median and most."""
    return " / ".join(f"{v:.3f}" for v in np.quantile(values, [0, 0.5, 1])) if values else "–"


def measure(count: int = 50, eps: Sequence[float] = (0.1, 0.2), most: int = 20_000, threads: int = 2) -> dict[str, Any]:
    """Accuracies, and rows by eps and mode."""
    lab.start(threads)
    (a, share_a), (b, share_b) = lab.classifier(0), lab.classifier(1)
    images, _ = lab.seed_images([a, b], count)
    return {
        "accuracy": [share_a, share_b],
        "together": {f"{m}, {e:g}": together(a, b, images, e, 5 * most, m) for e in eps for m in MODES},
        "alone": {f"{m}, {e:g}": alone(a, b, images, e, most, m) for e in eps for m in MODES},
    }


def main() -> None:
    """Measures, prints the tables, saves raw data."""
    parser = lab.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--max-inputs", type=int, default=20_000, help="a run; five times that over all seeds")
    options = parser.parse_args()
    lab.start(options.threads)
    print(lab.heading(options.threads))
    data = measure(options.seeds, options.eps, options.max_inputs, options.threads)
    share = data["accuracy"]
    print(f"held-out digits named right: version 1 {share[0]:.1%}, version 2 {share[1]:.1%}\n")
    lines = []
    for mode, got in data["together"].items():
        near = spread([k["linf"] for k in got["kinds"]])
        lines.append([mode, lab.show(got["inputs"]), lab.show(len(got["kinds"])), lab.show(got["hits"]), near])
    heads = ["one run over all seeds, eps", "inputs", "pairs of labels", "hits", "L∞ (least / median / most)"]
    print(lab.table(heads, lines) + "\n")
    lines = []
    for mode, rows in data["alone"].items():
        hits = [r for r in rows if r["found"]]
        middle, most = lab.middle(hits, "inputs"), max((r["inputs"] for r in hits), default=None)
        near = spread([r["linf"] for r in hits])
        lines.append([mode, f"{len(hits)}/{len(rows)}", lab.show(middle), lab.show(most), near])
    heads = ["one run a seed, eps", "found", "inputs, median", "inputs, most", "L∞ (least / median / most)"]
    print(lab.table(heads, lines))
    print(f"\nraw data: {lab.save(options.results, 'regression', options.threads, data)}")


if __name__ == "__main__":
    main()
