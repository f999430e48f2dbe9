"""Outputs whose shapes and names follow the data: compared, searched, and never a reason to break down."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nnfuzz
from nnfuzz.objectives.alike import alike, axes_apart

SEEDS = torch.full((4, 3), 0.5)
QUICK: dict[str, Any] = {"max_inputs": 400, "max_seconds": None, "ranges": (-1, 1)}


def boxes(level: float) -> Any:
    def model(x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[x.sum(-1) > level]])

    return model


@pytest.mark.parametrize("compare", ["argmax", "topk:2", "threshold:0.1", "allclose", "cosine"])
def test_so_many_boxes(compare: str) -> None:
    run = nnfuzz.diff(boxes(0.9), boxes(1.0), [s[None] for s in SEEDS], compare=compare, max_shrink=50, **QUICK)
    causes = {f.cause for f in run.findings}
    assert "the outputs have other shapes" in causes
    finding = next(f for f in run.findings if f.cause == "the outputs have other shapes")
    assert finding.details["shapes_a"] != finding.details["shapes_b"]
    assert finding.confirmed


@pytest.mark.parametrize("compare", ["argmax", "topk:2", "threshold:0.1", "allclose", "cosine"])
def test_what_differs_on_the_seeds_is_refused_in_words(compare: str, refused: Any) -> None:
    told = refused(nnfuzz.diff, boxes(1.4), boxes(1.6), [s[None] for s in SEEDS], compare=compare, **QUICK)
    assert f"{compare.partition(':')[0]} compares equal shapes, but A gives (" in told
    assert told.endswith("use --compare detection for boxes, else file.py:fn")


def test_other_numbers_of_classes_are_no_shape(refused: Any) -> None:
    few, many = torch.nn.Linear(3, 3), torch.nn.Linear(3, 5)
    run = nnfuzz.diff(few, many, SEEDS, **QUICK)
    assert all(f.cause.startswith("A says") for f in run.findings)
    assert "cosine compares equal shapes" in refused(nnfuzz.diff, few, many, SEEDS, compare="cosine", **QUICK)


def sometimes_nothing(x: Tensor) -> Any:
    return x.log() if float(x.sum()) > 0 else None


def sometimes_other(x: Tensor) -> Any:
    return {"a": x.log()} if float(x.sum()) > 0 else {"b": x.log()}


def as_many_as_fit(x: Tensor) -> Any:
    return [row.log() for row in x if float(row.sum()) > 0]


@pytest.mark.parametrize("model", [sometimes_nothing, sometimes_other, as_many_as_fit])
@pytest.mark.parametrize("unit", ["auto", "batch"])
def test_results_without_a_name_in_common(model: Any, unit: str) -> None:
    run = nnfuzz.find_nans(model, SEEDS, unit=unit, phase="forward", max_shrink=50, **QUICK)
    assert run.stats.inputs == 400
    assert {f.symptom for f in run.findings} & {"nan", "-inf"}
    assert not [f for f in run.findings if f.symptom == "exception"]
    pair = nnfuzz.diff(model, model, SEEDS, unit=unit, compare="allclose", **QUICK)
    assert pair.stats.inputs == 400
    assert not pair.findings


@pytest.mark.parametrize("model", [sometimes_nothing, sometimes_other])
def test_rows_without_a_name_in_common(model: Any) -> None:
    run = nnfuzz.check_rows(model, SEEDS, **QUICK)
    assert run.stats.inputs == 400
    assert not [f for f in run.findings if f.symptom == "exception"]


lengths = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=3), st.data())
def test_alike_outputs_are(shapes: list[tuple[list[int], list[int]]], data: st.DataObject) -> None:
    a = {str(i): torch.ones(2, *p) for i, (p, _) in enumerate(shapes)}
    b = {f"b{i}": torch.ones(2, *q) for i, (_, q) in enumerate(shapes)}
    usual = [set(data.draw(st.sets(st.integers(1, 3)))) for _ in shapes]
    x, y, unlike = alike(a, b, usual)
    assert unlike == any(
        apart - known for (p, q), apart, known in zip(shapes, axes_apart(a, b), usual, strict=True) if len(p) == len(q)
    )
    for (n, before), (m, other), known in zip(a.items(), b.items(), usual, strict=True):
        assert float(x[n].sum()) == float(before.sum())  # nothing is added but zeros
        assert float(y[m].sum()) == float(other.sum())
        if before.dim() == other.dim():
            assert all(x[n].shape[d] == y[m].shape[d] for d in range(before.dim()) if d not in known)
