"""ONNX models: a run's inputs/s over what ONNX Runtime alone does, by its own defaults and at its best batch size.

    python benchmarks/onnx_speed.py [MODEL.onnx] [--dim x.2=48 --dim x.3=192] [--repeats 3] [--processor-time]

Without MODEL: the direction classifier that comes with the package ``rapidocr-onnxruntime``. Whenever the run has
worked for five seconds the bare session works for as long, so the share does not depend on what else the machine does.
The second after such a pause is not counted: a run that nobody interrupts never finds its memory left for so long.
The run's start and its first batch, which come once, are told apart; the share of each quarter of the run is shown
too, since batches are small at first. Twice: with gradients, and with ``--no-gradients``.
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
from nnfuzz.findings.finding import Finding
from nnfuzz.onnx.seeds import made_seeds
from nnfuzz.report.base import SilentReporter
from nnfuzz.stats import Stats

Clock = Callable[[], float]
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
TURN = 5.0
"""Seconds of the run before the bare session works: shorter turns cool the caches that a run has to itself."""
SETTLE = 1.0


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
        self.batch = max(SIZES, key=self.rate)

    def feeds(self, count: int) -> dict[str, np.ndarray]:
        return {n: np.ascontiguousarray(a[np.arange(count) % len(a)]) for n, a in self.arrays.items()}

    def rate(self, count: int) -> float:
        """Rows/s at a batch size: the median of slices, so that one interruption does not count."""
        feeds = self.feeds(count)
        self.session.run(None, feeds)
        until = self.clock() + self.seconds
        rates: list[float] = []
        while self.clock() < until or len(rates) < 3:
            began, done = self.clock(), 0
            while done == 0 or self.clock() - began < 0.1:
                self.session.run(None, feeds)
                done += count
            rates.append(done / (self.clock() - began))
        return statistics.median(rates)

    def work(self, seconds: float) -> int:
        """Rows that were run at the best batch size in so long a time, one call at least."""
        feeds, done, until = self.feeds(self.batch), 0, self.clock() + seconds
        while done == 0 or self.clock() < until:
            self.session.run(None, feeds)
            done += self.batch
        return done


class Alternating(SilentReporter):
    """Watches a run and lets the bare session work in turn with it: whatever else the machine does meets both alike.
    The run's start (reading the graph, seeds, the first look) ends with its first batch.

    Attributes:
        took, beside: seconds of the run and of the session since then; the start itself took ``first_took``.
    """

    def __init__(self, bare: Bare, clock: Clock):
        self.speed, self.clock = bare, clock
        self.begun = self.went = clock()
        self.first_took = self.took = self.beside = 0.0
        self.inputs = self.first = self.rows = 0
        self.turns: list[tuple[int, float, int, float]] = []
        self.counted = 0
        """Inputs when the present turn began."""
        self.paused = False

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        now = self.clock()
        if not self.first:
            self.first_took, self.first = now - self.begun, stats.inputs
        elif self.paused and now - self.went < SETTLE:
            return
        elif self.paused:
            self.paused = False
        elif now - self.went < TURN:
            return
        else:
            self._swap(stats, now)
        self.went, self.counted = self.clock(), stats.inputs

    def end(self, stats: Stats, findings: Sequence[Finding], out: object) -> None:
        self._swap(stats, self.clock())

    def _swap(self, stats: Stats, now: float) -> None:
        took, inputs = now - self.went, stats.inputs - self.counted
        if self.paused or not inputs:
            return
        self.paused = True
        rows = self.speed.work(took)
        beside = self.clock() - now
        self.turns.append((inputs, took, rows, beside))
        self.inputs, self.took = self.inputs + inputs, self.took + took
        self.rows, self.beside = self.rows + rows, self.beside + beside

    @property
    def share(self) -> float:
        """Inputs/s of the run over rows/s of the bare session."""
        return (self.inputs / self.took) / (self.rows / self.beside)

    @property
    def quarters(self) -> list[float]:
        """The share in each quarter of the run's turns."""
        parts = [self.turns[len(self.turns) * i // 4 : len(self.turns) * (i + 1) // 4] for i in range(4)]
        sums = [[sum(column) for column in zip(*part, strict=True)] for part in parts if part]
        return [(inputs / took) / (rows / beside) for inputs, took, rows, beside in sums]

    @property
    def whole(self) -> float:
        """The same, the start counted."""
        return (self.inputs + self.first) / (self.first_took + self.took) / (self.rows / self.beside)


def watched(
    path: Path, seeds: dict[str, Tensor], bare: Bare, clock: Clock, inputs: int, gradients: bool
) -> Alternating:
    """One run of so many inputs."""
    watch = Alternating(bare, clock)
    loaded = nnfuzz.onnx.load(path)
    nnfuzz.find_nans(loaded, seeds, max_inputs=inputs, max_seconds=None, gradients=gradients, reporter=watch)
    return watch


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=None)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--inputs", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
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
        runs = [watched(path, seeds, bare, clock, asked.inputs, gradients) for _ in range(asked.repeats)]
        shares = [r.share for r in runs]
        last = runs[-1]
        which = "gradients on " if gradients else "gradients off"
        print(
            f"  {which}: share {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}), "
            f"by quarters {', '.join(f'{q:.2f}' for q in last.quarters)}, "
            f"with the start {statistics.median(r.whole for r in runs):.2f}; the last: {last.first} inputs in "
            f"{last.first_took:.1f} s, then {last.inputs:,} at {last.inputs / last.took:.1f}/s beside "
            f"{last.rows / last.beside:.1f} bare rows/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
