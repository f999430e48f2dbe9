"""Overflows of a copy in half precision that ONNX Runtime's CPU kernels, which compute wider, do not show."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import constant, model, node, value

import nnfuzz
import onnx
from nnfuzz.divergence.narrow import LOOKED_AT, Overflows
from nnfuzz.onnx import load

SEEDS = torch.rand(40, 4, generator=torch.Generator().manual_seed(0)) + 0.5
TOLD = "in half precision as the graph says it"


def normalised(size: float, rows: int | str = "n", mask: bool = False) -> onnx.ModelProto:
    """x / (‖s·x‖ + 1): the square overflows float16 where s·x is beyond 256. ``mask``: −inf by design beside it."""
    nodes = [
        node("Mul", "x size", "h", "scale"),
        node("Mul", "h h", "q", "square"),
        node("ReduceSum", "q axes", "s", "sum", keepdims=1),
        node("Sqrt", "s", "r", "root"),
        node("Add", "r one", "d", "plus"),
        node("Div", "h d", "u" if mask else "y", "divide"),
    ]
    if mask:
        nodes += [node("Sub", "x x", "z", "zero"), node("Log", "z", "l", "none"), node("Max", "u l", "y", "over")]
    held = {"size": np.float32(size), "axes": np.array([1], np.int64), "one": np.float32(1)}
    return model(nodes, [value("x", rows, 4)], [value("y", rows, 4)], [constant(n, a) for n, a in held.items()])


def notes(proto: onnx.ModelProto, seeds: Any = SEEDS, **more: Any) -> list[str]:
    run = nnfuzz.diff(load(proto), None, seeds, as_="fp16", compare="allclose:1e9", max_inputs=200, **more)
    assert not run.findings, "nothing in what ONNX Runtime answers"
    return [n for n in run.notes if TOLD in n]


def test_an_overflow_is_said_though_the_runtime_computes_wider(tmp_path: Path) -> None:
    (said,) = notes(normalised(600.0), ranges=(0.5, 1.5), out=tmp_path / "run")
    assert f"square (Mul) gives inf or nan on {LOOKED_AT} of {LOOKED_AT} inputs" in said
    assert "hardware with true float16 will not" in said
    assert f"nnfuzz nan {tmp_path}/run/copy.onnx --watch internal" in said


@pytest.mark.parametrize("mask", [False, True])
def test_what_half_precision_holds_is_not_said(mask: bool) -> None:
    assert notes(normalised(3.0, mask=mask), ranges=(0.5, 1.5)) == []


def test_candidates_of_several_rows() -> None:
    (said,) = notes(normalised(600.0, rows=2), ranges=(0.5, 1.5))
    assert "square (Mul)" in said


def test_other_copies_are_not_looked_at() -> None:
    run = nnfuzz.diff(
        load(normalised(600.0)), load(normalised(600.0)), SEEDS, compare="allclose:1e9", max_inputs=100, ranges=(0, 2)
    )
    assert not any(TOLD in n for n in run.notes)


def test_words() -> None:
    assert Overflows(64, Counter()).line("") == ""
    two = Counter({("a", "Exp"): 2, ("b", "Mul"): 1})
    assert (
        "a (Exp) gives inf or nan on 2 of 9 inputs of this run on which the original is finite, others on 1 more"
        in (Overflows(9, two).line(""))
    )
    assert Overflows(9, two, vanishes=3).line("").endswith("before the output: nnfuzz nan COPY.onnx --watch internal")
