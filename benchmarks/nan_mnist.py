"""Proof 1: a NaN in a digit classifier whose softmax and cross-entropy are written out.

    python benchmarks/nan_mnist.py [--anchors [FOLDER]] [--runs 10] [--max-inputs 200000] [--plot FILE.png]

784-200-100-10, uniform ±0.25, trained on 4,000 digits; inputs in [-1, 1], one seed image a run, the label fixed; a
hit is any non-finite number in logits, probabilities or loss. Each run has its own seed image and its own random
seed, and ends at its first hit; shrinking is off, so that seconds are those of the search and of confirming the
hit. With --anchors the same on the weights and seeds on which the original TensorFuzz was measured.

Modes: coverage-guided without gradients; coverage alone (no scores, as TensorFuzz's); scores alone; random search
(always the seed, nothing is kept) with all mutators and with white noise only; gradients on. "flushed": subnormals
count as zero, as TensorFlow runs: p is 0 beyond a logit gap of 87, else of 104.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import lab
import nnfuzz
from nnfuzz.demo.mnist import UnsafeLoss

MODES: dict[str, dict[str, Any]] = {
    "coverage-guided": {"gradients": False},
    "coverage alone": {"gradients": False, "mask": True},
    "scores alone": {"gradients": False, "radius": 1e9},
    "random, all mutators": {"gradients": False, "coverage": "none"},
    "random, white noise": {"gradients": False, "coverage": "none", "mutators": ["noise"]},
    "with gradients": {"gradients": True},
}
"""``mask``: the objective only says hit or no hit, so that no score leads the search. A radius that nothing reaches
leaves the scores alone."""
NOT_FLUSHED = ("coverage-guided", "with gradients")
ORIGINAL = {"found": 10, "median": 22_391, "least": 10_214, "most": 42_379, "seconds": 4.0, "rate": 5_881}


def not_finite(outputs: tuple[Tensor, ...], inputs: Any) -> Tensor:
    """Per candidate: a non-finite number in any output."""
    return torch.stack([~o.flatten(1).isfinite().all(1) if o.dim() > 1 else ~o.isfinite() for o in outputs]).any(0)


def series(mode: str, flush: bool, runs: int, most: int, threads: int, anchors: Path | None) -> list[dict[str, Any]]:
    """All runs of one mode, in a process of their own, after a short one, not counted, that wakes threads and pools."""
    lab.start(threads)
    if flush and not torch.set_flush_denormal(True):
        raise SystemExit("this processor cannot flush subnormals")
    if anchors is None:
        model, _ = lab.classifier()
        images, labels = lab.seed_images([model], runs)
    else:
        model, images, labels = lab.anchor("nan", anchors)
    subject = UnsafeLoss(model).eval()
    once(subject, images[:1], labels[:1], mode, flush, 999, 4096)
    return [once(subject, images[i : i + 1], labels[i : i + 1], mode, flush, i, most) for i in range(runs)]


def once(
    subject: torch.nn.Module, image: Tensor, label: Tensor, mode: str, flush: bool, seed: int, most: int
) -> dict[str, Any]:
    """One run from one seed image."""
    settings = dict(MODES[mode])
    curve = lab.Curve()
    seeds = {"image": image, "label": one_hot(label, 10).float()}
    common: dict[str, Any] = {
        "ranges": {"image": (-1, 1)}, "kinds": {"label": "onehot"}, "fixed": ["label"], "stop_on_first": True,
        "max_inputs": most, "max_seconds": None, "seed": seed, "flush_denormal": flush, "max_shrink": 0,
        "reporter": curve,
    }  # fmt: skip
    if settings.pop("mask", False):
        row = lab.timed(lambda: nnfuzz.fuzz(subject, seeds, objective=not_finite, **common, **settings))
    else:
        row = lab.timed(lambda: nnfuzz.find_nans(subject, seeds, phase="forward", **common, **settings))
    row["curve"] = [point[:3] for point in curve.points]
    return row


def line(name: str, flush: bool, rows: list[dict[str, Any]], against: list[dict[str, Any]] | None) -> list[str]:
    """One row of the table."""
    hits = [r for r in rows if r["found"]]
    versus = lab.effect(rows, against) if against is not None else None
    return [
        name,
        "yes" if flush else "no",
        f"{len(hits)}/{len(rows)}",
        lab.show(lab.middle(hits, "inputs")),
        lab.show(max((r["inputs"] for r in hits), default=None)),
        lab.show(lab.middle(hits, "seconds"), 2),
        lab.show(lab.middle([{"rate": r["tried"] / r["run_seconds"]} for r in rows], "rate")),
        "–" if versus is None else f"{versus['a12']:.2f} ({versus['p']:.1g})",
    ]


def plot(path: Path, rows: dict[str, list[dict[str, Any]]], title: str) -> None:
    """Corpus growth up to the first hit, and the best score beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for at, (name, colour) in enumerate((("coverage-guided", "tab:blue"), ("coverage alone", "tab:orange"))):
        for i, row in enumerate(rows[name]):
            inputs = [p[0] for p in row["curve"]]
            label = name if i == 0 else None
            left.plot(inputs, [p[1] for p in row["curve"]], color=colour, linewidth=1, alpha=0.8, label=label)
            if row["found"]:
                left.plot(inputs[-1], row["curve"][-1][1], "*", color=colour, markersize=9)
            if at == 0:
                right.plot(inputs, [p[2] for p in row["curve"]], color=colour, linewidth=1, alpha=0.8, label=label)
    for i, row in enumerate(rows["scores alone"]):
        label = "scores alone" if i == 0 else None
        points = row["curve"]
        right.plot([p[0] for p in points], [p[2] for p in points], color="tab:green", lw=1, alpha=0.6, label=label)
    left.set(xlabel="inputs", ylabel="corpus entries", title="corpus growth (star: the first hit)", xscale="log")
    right.set(xlabel="inputs", ylabel="best score (1: at the dtype's edge)", title="nearness to failing", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def measure(
    runs: int = 10, most: int = 200_000, threads: int = 2, anchors: Path | None = None, modes: list[str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Rows by mode; the modes whose name ends in ", kept" ran without flushing subnormals."""
    found = {}
    for mode in modes or list(MODES):
        found[mode] = lab.isolated(series, mode, True, runs, most, threads, anchors)
        if mode in NOT_FLUSHED:
            found[f"{mode}, kept"] = lab.isolated(series, mode, False, runs, most, threads, anchors)
    return found


def main() -> None:
    """Measures, prints the table, saves raw data and the plot."""
    parser = lab.parser(__doc__)
    parser.add_argument("--anchors", type=Path, nargs="?", const=lab.ANCHORS, help=f"default folder: {lab.ANCHORS}")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--max-inputs", type=int, default=200_000)
    parser.add_argument("--modes", nargs="+", choices=list(MODES))
    parser.add_argument("--plot", type=Path, help="write the growth curves here")
    options = parser.parse_args()
    lab.start(options.threads)
    print(lab.heading(options.threads))
    share = None
    if options.anchors is None:
        share = lab.classifier()[1]
        print(f"classifier: {share:.1%} of 1,000 held-out digits named right\n")
    rows = measure(options.runs, options.max_inputs, options.threads, options.anchors, options.modes)
    against = rows.get("random, white noise")
    lines = [line(n.removesuffix(", kept"), not n.endswith(", kept"), r, against) for n, r in rows.items()]
    o = ORIGINAL
    lines += [
        ["*original TensorFuzz*", "yes", f"{o['found']}/10", f"{o['median']:,}", f"{o['most']:,}",
         f"{o['seconds']:.1f}", f"{o['rate']:,}", "–"],
        ["*original, random*", "yes", "0/10", "–", "–", "–", "–", "–"],
    ]  # fmt: skip
    heads = ["mode", "flushed", "found", "inputs, median", "inputs, most", "seconds, median", "inputs/s", "A12 (p)"]
    print(lab.table(heads, lines))
    print("\nA12: against random search with white noise; 1 is always better.")
    name = "nan_mnist" if options.anchors is None else "nan_mnist_anchors"
    path = lab.save(options.results, name, options.threads, {"accuracy": share, "original": o, "rows": rows})
    print(f"raw data: {path}")
    if options.plot:
        plot(options.plot, rows, "NaN search in a 784-200-100-10 classifier, no gradients, one seed image a run")
        print(f"plot: {options.plot}")


if __name__ == "__main__":
    main()
