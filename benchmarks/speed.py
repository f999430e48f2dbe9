"""Proof 4: a run's inputs/s over the bare model's samples/s; the cost of an input with a large corpus; the memory
bound.

    python benchmarks/speed.py [--parts share cost memory] [--repeats 5] [--threads 1 --processor-time] [--profile]

share: for each network the bare model (its best batch size, chosen first), a run, and the bare model again, over
and over; each run's inputs/s is divided by the mean of the two bare rates beside it, and the median of those shares
is told. Default mutators, gradients off, forward only; nothing is found in the networks alone, the unsafe loss and
the pair have hits. cost: seconds an input with 1,000 and with 100,000 corpus entries (filled with mutants of
mutants), the two fuzzers taking turns. memory: a run under a small cap.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import lab
import nnfuzz
from nnfuzz.demo.mnist import UnsafeLoss
from nnfuzz.fuzzer import Fuzzer, Limits
from nnfuzz.report.base import SilentReporter
from nnfuzz.targets.precision import derive

ORIGINAL = {"MLP": 0.015, "MLP, unsafe loss": 0.015, "MLP, float32 / float16": 0.028}
"""The original TensorFuzz on its NaN graph, and on its pair with 1,000 entries (with 10,000: 0.015)."""
REQUIRED = {"MLP": (0.4, 0.7), "ResNet-20, 32×32": (0.85, 0.95)}


Clock = Callable[[], float]


def bare(
    call: Callable[[Tensor], Any],
    seeds: Tensor,
    seconds: float,
    batch: int | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[float, int]:
    """Samples/s of the model alone and its batch size, the best of several unless given. A rate is the median of its
    slices, so that one interruption does not count."""
    best = (0.0, 0)
    sizes = [batch] if batch else [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    with torch.inference_mode():
        for count in sizes:
            x = seeds[torch.arange(count) % len(seeds)].contiguous()
            began = clock()
            call(x)
            if batch is None and best[1] and clock() - began > seconds:
                break  # larger ones would take too long to be measured, and are no faster
            rates, until = [], clock() + seconds
            while clock() < until or len(rates) < 3:
                began, done = clock(), 0
                while done == 0 or clock() - began < 0.05:
                    call(x)
                    done += count
                rates.append(done / (clock() - began))
            best = max(best, (statistics.median(rates), count))
    return best


def subjects(names: list[str] | None = None) -> dict[str, tuple[Callable[[Tensor], Any], Tensor, Callable[..., Any]]]:
    """By name: the bare call, inputs for it, and a run with ``max_inputs``, ``max_seconds``."""
    mlp, _ = lab.classifier()
    images, labels = lab.seed_images([mlp], 10)
    resnet = lab.ResNet().eval().requires_grad_(False)
    pictures = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loss = UnsafeLoss(mlp).eval()
    half = derive(mlp, "fp16", lambda twin: None)
    marks = one_hot(labels, 10).float()
    common: dict[str, Any] = {"gradients": False}
    made: dict[str, tuple[Callable[[Tensor], Any], Tensor, Callable[..., Any]]] = {
        "MLP": (mlp, images, partial(nnfuzz.find_nans, mlp, images, ranges=(-1, 1), phase="forward", **common)),
        "MLP, unsafe loss": (
            lambda x: loss(x, marks[torch.arange(len(x)) % 10]),
            images,
            partial(
                nnfuzz.find_nans, loss, {"image": images, "label": marks}, ranges={"image": (-1, 1)},
                kinds={"label": "onehot"}, fixed=["label"], phase="forward", **common,
            ),
        ),
        "MLP, float32 / float16": (
            lambda x: (mlp(x), half(x)),
            images,
            partial(nnfuzz.diff, mlp, None, images, as_="fp16", ranges=(-1, 1), **common),
        ),
        "ResNet-20, 32×32": (
            resnet,
            pictures,
            partial(nnfuzz.find_nans, resnet, pictures, ranges=(0, 1), phase="forward", **common),
        ),
        "ResNet-20, batches of 64": (
            resnet,
            pictures,
            partial(nnfuzz.find_nans, resnet, pictures, ranges=(0, 1), phase="forward", batch_size=64, **common),
        ),
    }  # fmt: skip
    return {n: s for n, s in made.items() if names is None or n in names}


class Marks(SilentReporter):
    """The clock after the first batch and after the last."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.first: tuple[int, float] | None = None
        self.last = (0, 0.0)

    def update(self, stats: Any, findings: Any) -> None:
        self.last = (stats.inputs, self.clock())
        self.first = self.first or self.last

    @property
    def rate(self) -> float:
        """Inputs a second between the two."""
        assert self.first is not None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


def share(
    name: str,
    repeats: int,
    inputs: int,
    seconds: float,
    threads: int,
    patience: float = 1.0,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Bare, run, bare, run, …, bare. A run's rate is that from its first batch to its last."""
    lab.start(threads)
    call, seeds, run = subjects([name])[name]
    run(max_inputs=10_000, max_seconds=2.0)  # wakes threads and pools
    _, batch = bare(call, seeds, patience / 3, clock=clock)
    rates, rows = [bare(call, seeds, patience, batch, clock)[0]], []
    for seed in range(repeats):
        marks, began = Marks(clock), clock()
        done = run(max_inputs=inputs, max_seconds=seconds, seed=seed, reporter=marks)
        whole = clock() - began
        rates.append(bare(call, seeds, patience, batch, clock)[0])
        beside = (rates[-2] + rates[-1]) / 2
        rows.append(
            {
                "share": marks.rate / beside, "share_whole": done.stats.inputs / whole / beside,
                "rate": marks.rate, "inputs": done.stats.inputs, "corpus": len(done.corpus),
                "model_seconds": done.stats.model_seconds, "seconds": done.stats.seconds, "hits": done.stats.hits,
                "batch": done.stats.batch_size,
            }
        )  # fmt: skip
    return {"bare": rates, "batch": batch, "runs": rows}


def cost(
    repeats: int, sizes: tuple[int, int], threads: int, inputs: int = 40_000, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds an input by corpus size; two fuzzers at full batch size take turns."""
    lab.start(threads)
    mlp, _ = lab.classifier()
    images, _ = lab.seed_images([mlp], 10)
    found: dict[str, list[float]] = {}
    settings: dict[str, Any] = {"ranges": (-1, 1), "max_corpus": 4 * max(sizes)}
    with lab.fuzzer_of(mlp, images, **settings) as small, lab.fuzzer_of(mlp, images, **settings) as large:
        for fuzzer, entries in zip((small, large), sizes, strict=True):
            lab.prefill(fuzzer, entries)
            fuzzer.stats.batches = 100_000  # batches have grown to their full size
            go_on(fuzzer, inputs, clock)
        for _ in range(repeats):
            for fuzzer, entries in zip((small, large), sizes, strict=True):
                found.setdefault(str(entries), []).append(go_on(fuzzer, inputs, clock))
        found["entries at the end"] = [len(small.corpus), len(large.corpus)]
    return found


def go_on(fuzzer: Fuzzer, inputs: int, clock: Clock) -> float:
    """Seconds an input over so many more inputs."""
    before, began = fuzzer.stats.inputs, clock()
    fuzzer.loop(Limits(max_inputs=before + inputs), lambda: None)
    return (clock() - began) / (fuzzer.stats.inputs - before)


def memory(cap: int, inputs: int, threads: int) -> dict[str, Any]:
    """A run under a cap: most bytes that the corpus held after a batch, entries evicted, the process's growth."""
    lab.start(threads)
    mlp, _ = lab.classifier()
    images, _ = lab.seed_images([mlp], 10)
    most = [0, 0]

    class Watch(lab.Curve):
        def update(self, stats: Any, findings: Any) -> None:
            most[0], most[1] = max(most[0], stats.corpus_bytes), max(most[1], stats.corpus)

    settings: dict[str, Any] = {"ranges": (-1, 1), "gradients": False, "phase": "forward", "max_seconds": None}
    nnfuzz.find_nans(mlp, images, max_inputs=200_000, max_corpus_bytes=cap, **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = nnfuzz.find_nans(mlp, images, max_inputs=inputs, max_corpus_bytes=cap, reporter=Watch(), **settings)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cap": cap, "most_bytes": most[0], "most_entries": most[1], "evicted": run.stats.evicted,
        "inputs": run.stats.inputs, "growth_mib": (after - before) / 1024, "peak_mib": after / 1024,
    }  # fmt: skip


def profile(name: str, inputs: int, threads: int) -> None:
    """Where the time of a run goes."""
    lab.start(threads)
    _, _, run = subjects([name])[name]
    run(max_inputs=10_000, max_seconds=2.0)
    recorder = cProfile.Profile()
    recorder.enable()
    done = run(max_inputs=inputs, max_seconds=20.0)
    recorder.disable()
    print(f"{name}: {done.stats.rate:,.0f} inputs/s, {done.stats.model_seconds / done.stats.seconds:.0%} in the model")
    pstats.Stats(recorder).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Measures, prints the tables, saves raw data."""
    parser = lab.parser(__doc__)
    parser.add_argument("--parts", nargs="+", default=["share", "cost", "memory"], choices=["share", "cost", "memory"])
    parser.add_argument("--networks", nargs="+", help="only these (as the table names them)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=2_000_000, help="of each run")
    parser.add_argument("--seconds", type=float, default=12.0, help="at most, of each run")
    parser.add_argument("--sizes", type=int, nargs=2, default=[1000, 100_000], help="corpus entries compared")
    parser.add_argument("--cap", type=int, default=2 << 20, help="bytes, for the memory bound")
    parser.add_argument(
        "--processor-time", action="store_true", help="count the process's own time: for a busy machine, on one thread"
    )
    parser.add_argument("--profile", action="store_true", help="profile a run of each network instead")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    if options.processor_time and options.threads != 1:
        parser.error("--processor-time counts the time of all threads together: add --threads 1")
    lab.start(options.threads)
    print(lab.heading(options.threads))
    names = options.networks or list(subjects())
    if options.profile:
        for name in names:
            profile(name, options.inputs, options.threads)
        return
    data: dict[str, Any] = {}
    if "share" in options.parts:
        data["share"] = {
            n: share(n, options.repeats, options.inputs, options.seconds, options.threads, clock=clock) for n in names
        }
        lines = []
        for name, got in data["share"].items():
            shares = [r["share"] for r in got["runs"]]
            least, aim = REQUIRED.get(name, (None, None))
            lines.append(
                [
                    name,
                    f"{statistics.median(got['bare']):,.0f} ({got['batch']})",
                    lab.show(lab.middle(got["runs"], "rate")),
                    f"{statistics.median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})",
                    lab.show(lab.middle(got["runs"], "share_whole"), 2),
                    "–" if least is None else f"{least} (aim {aim})",
                    lab.show(ORIGINAL.get(name), 3),
                ]
            )
        heads = ["network", "bare samples/s (batch)", "run's inputs/s", "share, median (range)", "with set-up",
                 "required", "original"]  # fmt: skip
        print(lab.table(heads, lines) + "\n")
    if "cost" in options.parts:
        small, large = options.sizes
        data["cost"] = cost(max(5, options.repeats), (small, large), options.threads, clock=clock)
        micro = [1e6 * statistics.median(data["cost"][str(n)]) for n in (small, large)]
        lines = [[f"{n:,}", f"{m:.2f}", f"{m / micro[0]:.2f}"] for n, m in zip(options.sizes, micro, strict=True)]
        print(lab.table(["corpus entries", "µs an input", "ratio (required: at most 1.5)"], lines) + "\n")
    if "memory" in options.parts:
        m = data["memory"] = memory(options.cap, options.inputs, options.threads)
        heads = ["cap, bytes", "most held after a batch", "most entries", "evicted", "inputs", "process growth, MiB"]
        row = [f"{m[k]:,}" for k in ("cap", "most_bytes", "most_entries", "evicted", "inputs")]
        print(lab.table(heads, [[*row, f"{m['growth_mib']:.1f}"]]) + "\n")
    print(f"raw data: {lab.save(options.results, 'speed', options.threads, data)}")


if __name__ == "__main__":
    main()
