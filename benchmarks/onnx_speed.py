"""ONNX models: a run's inputs/s over what ONNX Runtime alone does, by its own defaults and at its best batch size.

    python benchmarks/onnx_speed.py [MODEL.onnx] [--dim x.2=48 --dim x.3=192] [--repeats 5] [--processor-time]

Without MODEL: the direction classifier that comes with the package ``rapidocr-onnxruntime``. The bare session and the
run take turns; each run's rate is divided by the mean of the two bare rates beside it, and the median of those shares
is told. Twice: as a run is by default, where a graph in which gradients lead nowhere has a few turns of them first,
and with ``--no-gradients``.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

import nnfuzz
import nnfuzz.onnx
from nnfuzz.onnx.seeds import made_seeds

Clock = Callable[[], float]
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def classifier() -> Path:
    """The OCR direction classifier in the installed package."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("install rapidocr-onnxruntime (--no-deps will do), or name a model")
    return Path(spec.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"


class Bare:
    """ONNX Runtime without nnfuzz: one session, NumPy in, NumPy out."""

    def __init__(self, path: Path, seeds: dict[str, Tensor], clock: Clock, seconds: float):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.arrays = {n: t.numpy() for n, t in seeds.items()}
        self.clock, self.seconds = clock, seconds
        self.batch = max(SIZES, key=lambda count: self.rate(count))

    def rate(self, count: int | None = None) -> float:
        """Rows/s at a batch size: the median of slices, so that one interruption does not count."""
        count = count or self.batch
        feeds = {n: np.ascontiguousarray(a[np.arange(count) % len(a)]) for n, a in self.arrays.items()}
        self.session.run(None, feeds)
        rates, until = [], self.clock() + self.seconds
        while self.clock() < until or len(rates) < 3:
            began, done = self.clock(), 0
            while done == 0 or self.clock() - began < 0.1:
                self.session.run(None, feeds)
                done += count
            rates.append(done / (self.clock() - began))
        return statistics.median(rates)


def run_rate(path: Path, seeds: dict[str, Tensor], clock: Clock, inputs: int, gradients: bool) -> float:
    """Inputs/s of one run, everything that it does counted but reading the model."""
    loaded = nnfuzz.onnx.load(path)
    loaded.session()
    began = clock()
    run = nnfuzz.find_nans(loaded, seeds, max_inputs=inputs, max_seconds=None, gradients=gradients)
    return run.stats.inputs / (clock() - began)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=None)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--inputs", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--processor-time", action="store_true", help="for a machine that others use too")
    asked = parser.parse_args(words)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    clock: Clock = time.process_time if asked.processor_time else time.perf_counter
    path = asked.model or classifier()
    dims = {n: int(d) for n, _, d in (word.rpartition("=") for word in asked.dim)}
    if asked.model is None:
        dims = {"x.2": 48, "x.3": 192}
    seeds = made_seeds(nnfuzz.onnx.load(path), 32, dims=dims).batch
    bare = Bare(path, seeds, clock, seconds=1.0)
    print(f"{path.name}: ONNX Runtime alone is best with {bare.batch} rows, {torch.get_num_threads()} thread(s)")
    for gradients in (True, False):
        shares, rates, before = [], [], bare.rate()
        for _ in range(asked.repeats):
            rates.append(run_rate(path, seeds, clock, asked.inputs, gradients))
            after = bare.rate()
            shares.append(rates[-1] / ((before + after) / 2))
            before = after
        print(
            f"  {'gradients on ' if gradients else 'gradients off'}: {statistics.median(rates):8.1f} inputs/s, "
            f"share {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}), bare {before:.1f} rows/s"
        )


if __name__ == "__main__":
    main()
