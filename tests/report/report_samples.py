"""A run and its findings, made up, for looking at reports."""

from __future__ import annotations

import io
from typing import Any

import torch
from rich.console import Console

from nnfuzz.findings.finding import Finding
from nnfuzz.probe.sites import Site
from nnfuzz.report import InputRow, RunInfo
from nnfuzz.stats import MutatorYield, Stats

SITE = Site("log", "head.softmax", "/models/mnist.py", 41, "loss = -(y * p.log()).sum(1)", "forward")


def finding(number: int = 1, **facts: Any) -> Finding:
    candidate = {"x": torch.zeros(1, 784)}
    made: dict[str, Any] = {
        "id": f"F{number:04d}", "objective": "nonfinite", "symptom": "nan", "cause": "nan at log", "inputs": candidate,
        "outputs": {"output": torch.tensor([[float("nan")]])}, "seed": candidate, "seed_index": 3, "lineage": [],
        "distance": {"linf": 0.3123, "l2": 1.21, "l0": 14.0}, "inputs_tried": 5120, "seconds": 0.91, "site": SITE,
        "count": 37,
    }  # fmt: skip
    return Finding(**(made | facts))


def disagreement() -> Finding:
    return finding(
        2, objective="disagreement", symptom="disagreement", cause="A says 3, B says 5", site=None, severity=0.8,
        count=1, notes=["in float64 the referee is nearer to A"],
    )  # fmt: skip


def batch_only() -> Finding:
    far = dict.fromkeys(("linf", "l2", "l0"), float("inf"))
    return finding(3, phase="backward", status="batch-only", distance=far)


def info(**facts: Any) -> RunInfo:
    made: dict[str, Any] = {
        "title": "nnfuzz nan", "target": "mnist.py:loss", "unit": "sample", "why": "rows agree alone and together",
        "inputs": [
            InputRow("x", (784,), "float32", "real", "-1..1", "given", eps=0.4),
            InputRow("y", (10,), "float32", "onehot", "", "given", fixed=True),
            InputRow("image", ("n", 3, 32, 32), "float32", "real", "0.013..0.98", "seeds"),
        ],
        "out": "nnfuzz-runs/nan-mnist-loss-1", "notes": ["the model has dropout, which is off in eval mode"],
        "searched": "NaN and Inf in outputs", "max_seconds": 60.0,
    }  # fmt: skip
    return RunInfo(**(made | facts))


def stats(**facts: Any) -> Stats:
    earned = [("noise", 31200, 120, 3), ("splice", 9000, 40, 0), ("extremes", 8000, 30, 1)]
    earned += [(f"other-{i}", 10, 1, 0) for i in range(5)]
    made: dict[str, Any] = {
        "inputs": 71200, "seconds": 12.04, "raw_rate": 8330.0, "corpus": 231, "radius": 0.1423, "best_score": -3.21,
        "last_novel": 11.6, "yields": {n: MutatorYield(n, *rest) for n, *rest in earned},
    }  # fmt: skip
    return Stats(**(made | facts))


def console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None, highlight=False)


def text_of(a: Console) -> str:
    assert isinstance(a.file, io.StringIO)
    return a.file.getvalue()
