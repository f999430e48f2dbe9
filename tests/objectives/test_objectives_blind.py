"""Outputs in which an objective can see nothing: said in one sentence, without warnings, never searched in silence."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import nnfuzz
from nnfuzz.objectives.rows import RowsDiffer
from nnfuzz.report.base import SilentReporter
from nnfuzz.targets.base import Trace

SEEDS = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
QUICK: dict[str, Any] = {"max_inputs": 200, "max_seconds": None}


def empty(x: Tensor) -> Tensor:
    return x[:, :0]


def no_rows(x: Tensor) -> Tensor:
    return x[:0]


def label(x: Tensor) -> Tensor:
    return x.argmax(-1)


def words(x: Tensor) -> dict[str, Any]:
    return {"text": ["a"] * len(x), "none": None, "boxes": x[:, :0], "flags": x > 0.5}


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (empty, "(output float32 without elements)"),
        (no_rows, "(output float32 without elements)"),
        (label, "(output int64)"),
        (words, "(boxes float32 without elements, flags bool)"),
    ],
)
def test_nan_says_that_there_is_nothing_to_see(model: Any, told: str, tmp_path: Any) -> None:
    notes = Notes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = nnfuzz.find_nans(model, SEEDS, reporter=notes, out=tmp_path / "run", **QUICK)
    (note,) = notes.told
    assert note.startswith(f"no output holds a floating-point number {told}, so none can be NaN or Inf: ")
    assert note in run.notes
    nnfuzz.resume(tmp_path / "run", model=model, max_inputs=300, reporter=notes)
    assert notes.told == [note, note]


@pytest.mark.parametrize(
    ("model", "watch"), [(lambda x: (x[:, :0], x.exp()), "outputs"), (lambda x: x.exp()[:, :0], "internal")]
)
def test_where_there_is_something_to_see_nothing_is_said(model: Any, watch: str) -> None:
    notes = Notes()
    nnfuzz.find_nans(model, SEEDS, reporter=notes, phase="forward", watch=watch, **QUICK)
    assert not [n for n in notes.told if n.startswith("no output")]


@pytest.mark.parametrize(
    ("model", "compare"),
    [
        (model, compare)
        for model in (empty, label, words)
        for compare in ("argmax", "topk:2", "threshold:0.5", "allclose", "cosine")
        if model is empty or compare != "argmax"
    ],
)
def test_diff_refuses_what_it_cannot_compare(model: Any, compare: str, refused: Any) -> None:
    told = refused(nnfuzz.diff, model, model, SEEDS, compare=compare, **QUICK)
    assert told.startswith("there is no floating-point number in the outputs to compare (A: ")
    assert "; B: " in told


@pytest.mark.parametrize("compare", ["argmax", "topk:2"])
def test_complex_numbers_have_no_order(compare: str, refused: Any) -> None:
    told = refused(nnfuzz.diff, torch.fft.fft, torch.fft.fft, SEEDS, compare=compare, **QUICK)
    assert told.endswith("asks which number is largest, but the output is complex: use --compare allclose")
    assert not nnfuzz.diff(torch.fft.fft, torch.fft.fft, SEEDS, compare="allclose", **QUICK).findings


def test_rows_without_numbers() -> None:
    notes = Notes()
    assert not nnfuzz.check_rows(empty, SEEDS, reporter=notes, **QUICK).findings
    assert notes.told == ["no output holds a number (output float32 without elements), so no row can differ"]


def test_a_label_that_depends_on_the_batch_is_found() -> None:
    def above_average(x: Tensor) -> Tensor:
        return x > x.mean(0)

    run = nnfuzz.check_rows(above_average, SEEDS, **QUICK)
    assert run.findings[0].cause == "a row differs between its batch and alone"
    assert not nnfuzz.check_rows(label, SEEDS, **QUICK).findings


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 2), (1, 3, 2, 2)])
def test_rows_of_every_type_and_shape_differ_where_they_differ(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    together = torch.zeros(shape).to(dtype)
    alone = together.clone()
    objective = RowsDiffer()
    trace = Trace({"together.output": together, "alone.output": alone})
    assert not objective.judge(trace, {"x": together}).hits[0]
    alone[0, 1] = 1
    assert objective.judge(trace, {"x": together}).hits[0]
    assert objective.cause(trace, {"x": together}).details["row"] == 1
