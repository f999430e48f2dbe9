"""Proof 2: images on which a digit classifier and its lower-precision copy answer differently.

    python benchmarks/quantization.py [--anchors [FOLDER]] [--as fp16 int8] [--eps 1.0 0.4] [--max-inputs 100000]

784-200-100-10 trained with the safe loss; 30 seed images, one run each, inside the L∞ ball round the seed; a hit is
another label that is no tie, confirmed alone. Modes: coverage-guided without gradients; random search (always the
seed, nothing is kept), with all mutators and with white noise only; with gradients (3,000 inputs each, then the
least distance after shrinking is told). With --anchors the same on the weights and seeds on which the original
TensorFuzz was measured; there also against a copy that computes as TensorFlow's CPU half precision does (sums in
float32, rounded, then bias and ReLU in float16).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import lab
import nnfuzz
from nnfuzz.demo.mnist import digits
from nnfuzz.targets.precision import derive

MODES: dict[str, dict[str, Any]] = {
    "coverage-guided": {"gradients": False},
    "random, all mutators": {"gradients": False, "coverage": "none"},
    "random, white noise": {"gradients": False, "coverage": "none", "mutators": ["noise"]},
    "with gradients": {"gradients": True},
}
GRADIENT_INPUTS = 3000
ORIGINAL = {1.0: ("28/30", 12_496, 2_500, "2/30"), 0.4: ("6/30", 6_675, 5_000, "3/30")}
"""By eps: found, median of the found, inputs/s, random search."""


class HalfAsTensorFlow(nn.Module):
    """The classifier in half precision as the original ran it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.weights = [(m.weight.half().float().T.contiguous(), m.bias.half()) for m in layers]

    def forward(self, image: Tensor) -> Tensor:
        """image (batch, 784) → float16 logits (batch, 10)"""
        h = image.half()
        for i, (weight, bias) in enumerate(self.weights):
            h = (h.float() @ weight).half() + bias
            h = h.relu() if i < len(self.weights) - 1 else h
        return h


def copy_of(model: nn.Module, as_: str) -> nn.Module:
    """fp16, bf16, int8 (activation ranges from 1,000 training images), or fp16-tf."""
    if as_ == "fp16-tf":
        return HalfAsTensorFlow(model)
    return derive(model, as_, lambda twin: twin(digits()[0][:1000])).requires_grad_(False)


def series(mode: str, as_: str, eps: float, count: int, most: int, threads: int, anchors: Path | None) -> list[Any]:
    """One run a seed image."""
    lab.start(threads)
    if anchors is None:
        model, _ = lab.classifier()
        images, _ = lab.seed_images([model], count)
    else:
        model, images, _ = lab.anchor("quant", anchors)
    other = copy_of(model, as_)
    climbs = mode == "with gradients"
    settings: dict[str, Any] = {
        "ranges": (-1, 1), "eps": eps, "max_inputs": GRADIENT_INPUTS if climbs else most, "max_seconds": None,
        "stop_on_first": not climbs, "max_shrink": 4000 if climbs else 0, **MODES[mode],
    }  # fmt: skip
    nnfuzz.diff(model, other, images[:1], seed=999, **{**settings, "max_inputs": 4096})  # wakes threads and pools
    rows = []
    for i, image in enumerate(images[:count]):
        rows.append(lab.timed(lambda i=i, image=image: nnfuzz.diff(model, other, image[None], seed=i, **settings)))
    return rows


def spread(rows: list[dict[str, Any]], key: str) -> list[float]:
    """Least, quartiles and most over the runs that found something."""
    values = [r[key] for r in rows if r["found"]]
    return np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist() if values else []


def line(mode: str, rows: list[dict[str, Any]], against: list[dict[str, Any]] | None) -> list[str]:
    """One row of the table."""
    hits = [r for r in rows if r["found"]]
    rate = lab.middle([{"rate": r["tried"] / r["run_seconds"]} for r in rows], "rate")
    far = spread(rows, "linf") if mode == "with gradients" else []
    versus = lab.effect(rows, against) if against is not None else None
    return [
        mode,
        f"{len(hits)}/{len(rows)}",
        lab.show(lab.middle(hits, "inputs")),
        lab.show(max((r["inputs"] for r in hits), default=None)),
        lab.show(rate),
        " / ".join(f"{v:.3f}" for v in far) or "–",
        "–" if versus is None else f"{versus['a12']:.2f} ({versus['p']:.1g})",
    ]


def measure(
    as_: list[str], eps: list[float], count: int = 30, most: int = 100_000, threads: int = 2,
    anchors: Path | None = None, modes: list[str] | None = None,
) -> dict[str, dict[str, list[Any]]]:  # fmt: skip
    """Rows by "precision, eps", then by mode."""
    return {
        f"{name}, eps {radius:g}": {
            mode: series(mode, name, radius, count, most, threads, anchors) for mode in modes or list(MODES)
        }
        for name in as_
        for radius in eps
    }


def main() -> None:
    """Measures, prints a table for each precision and radius, saves raw data."""
    parser = lab.parser(__doc__)
    parser.add_argument("--anchors", type=Path, nargs="?", const=lab.ANCHORS, help=f"default folder: {lab.ANCHORS}")
    parser.add_argument("--as", dest="as_", nargs="+", default=["fp16"], choices=["fp16", "fp16-tf", "bf16", "int8"])
    parser.add_argument("--eps", type=float, nargs="+", default=[1.0, 0.4])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--max-inputs", type=int, default=100_000)
    parser.add_argument("--modes", nargs="+", choices=list(MODES))
    options = parser.parse_args()
    lab.start(options.threads)
    print(lab.heading(options.threads))
    rows = measure(
        options.as_, options.eps, options.seeds, options.max_inputs, options.threads, options.anchors, options.modes
    )
    heads = ["mode", "found", "inputs, median", "inputs, most", "inputs/s",
             "least L∞ after shrinking (least / quartiles / most)", "A12 (p)"]  # fmt: skip
    for title, by_mode in rows.items():
        against = by_mode.get("random, white noise")
        lines = [line(mode, r, against) for mode, r in by_mode.items()]
        original = ORIGINAL.get(float(title.rpartition(" ")[2]))
        if original is not None and title.startswith("fp16"):
            lines.append(["*original TensorFuzz*", original[0], f"{original[1]:,}", "–", f"{original[2]:,}", "–", "–"])
            lines.append(["*original, random*", original[3], "–", "–", "–", "–", "–"])
        print(f"### float32 against {title}{' (anchors)' if options.anchors else ''}\n")
        print(lab.table(heads, lines) + "\n")
    name = f"quantization{'_anchors' if options.anchors else ''}_{'_'.join(options.as_)}"
    print(f"raw data: {lab.save(options.results, name, options.threads, {'rows': rows})}")


if __name__ == "__main__":
    main()
