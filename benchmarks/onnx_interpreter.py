"""ONNX models: rows/s of the interpreter beside ONNX Runtime and, where it exists, beside the torch original.

    pip install --no-deps silero-vad rapidocr-onnxruntime basic-pitch
    python benchmarks/onnx_interpreter.py [--only silero] [--processor-time] [--threads 1]

Each is asked for one row, and for as many as suit it best. The three take turns; of each the median over the turns is
told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import onnxruntime
import torch

import nnfuzz.onnx
from lab import heading, parser, start, table
from onnx_subjects import NAMES, Subject, subject

SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
TURNS = 5
ENOUGH = 0.6
"""A batch size that gives less than this share of the best rate so far ends the search for the best."""
Clock = Callable[[], float]
Runner = Callable[[int], Callable[[], Any]]


def rate(run: Callable[[], Any], rows: int, clock: Clock, seconds: float) -> float:
    run()
    began, done = clock(), 0
    while not done or clock() - began < seconds:
        run()
        done += rows
    return done / (clock() - began)


def runners(of: Subject) -> dict[str, Runner]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(of.path), options, providers=["CPUExecutionProvider"])
    program = nnfuzz.onnx.load(of.path).program

    def bare(rows: int) -> Callable[[], Any]:
        given = {n: t.numpy() for n, t in of.inputs(rows).items()}
        return lambda: session.run(None, given)

    def interpreted(rows: int) -> Callable[[], Any]:
        given = of.inputs(rows)
        return lambda: program(**given)

    found: dict[str, Runner] = {"ONNX Runtime": bare, "interpreter": interpreted}
    original = of.original
    if original is not None:

        def torch_alone(rows: int) -> Callable[[], Any]:
            given = of.inputs(rows)
            return lambda: original(given)

        found["torch"] = torch_alone
    return found


def best_size(runner: Runner, clock: Clock) -> int:
    best, size = 0.0, 1
    for rows in SIZES:
        here = rate(runner(rows), rows, clock, 0.2)
        if here > best:
            best, size = here, rows
        elif here < ENOUGH * best:
            break
    return size


def measured(of: Subject, clock: Clock) -> list[str]:
    each = runners(of)
    sizes = {name: best_size(r, clock) for name, r in each.items()}
    rates: dict[tuple[str, bool], list[float]] = {}
    for _ in range(TURNS):
        for name, runner in each.items():
            for best in (False, True):
                rows = sizes[name] if best else 1
                rates.setdefault((name, best), []).append(rate(runner(rows), rows, clock, 0.3))
    middle = {key: statistics.median(values) for key, values in rates.items()}
    cells = [of.name]
    for best in (False, True):
        mine = middle["interpreter", best]
        for name in ("ONNX Runtime", "torch", "interpreter"):
            told = middle.get((name, best))
            cells.append("–" if told is None else f"{told:,.0f}" + (f" ({sizes[name]})" if best else ""))
        shares = [mine / middle[n, best] if (n, best) in middle else None for n in ("ONNX Runtime", "torch")]
        cells.append(", ".join("–" if s is None else f"{s:.2f}" for s in shares))
    return cells


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    words.add_argument("--processor-time", action="store_true", help="for a machine that others use too")
    given = words.parse_args()
    start(given.threads)
    clock: Clock = time.process_time if given.processor_time else time.perf_counter
    print(heading(given.threads))
    heads = ["model", "ONNX Runtime, 1 row", "torch", "interpreter", "share of each", "best batch: ONNX Runtime",
             "torch", "interpreter", "share of each"]  # fmt: skip
    with torch.inference_mode():
        print(table(heads, [measured(subject(name), clock) for name in given.only]))


if __name__ == "__main__":
    main()
