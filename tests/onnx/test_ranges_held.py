"""Ranges with numbers that an input's dtype cannot hold are refused, in one sentence, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import FLOAT, INT64, model, node, value

import nnfuzz
import nnfuzz.onnx
from nnfuzz.errors import UsageError
from nnfuzz.onnx.seeds import made_seeds
from onnx import TensorProto

INT8 = TensorProto.INT8


def copier(dtype: int) -> Any:
    return nnfuzz.onnx.load(
        model([node("Identity", "x", "y", "i")], [value("x", "n", 4, dtype=dtype)], [value("y", "n", 4, dtype=dtype)])
    )


@pytest.mark.parametrize(
    ("dtype", "given", "said"),
    [
        (FLOAT, (1e300, 1e308), r"holds 1e\+300, but float32 holds -3.40282e\+38..3.40282e\+38: give numbers within"),
        (FLOAT, [1.0, 1e300], r"holds 1e\+300, but float32 holds"),
        (FLOAT, (0.0, float("nan")), r"holds nan, but float32 holds"),
        (FLOAT, (0.0, float("inf")), r"holds inf, but float32 holds"),
        (INT8, (0, 300), r"holds 300, but int8 holds -128..127"),
    ],
)
def test_seeds_are_not_made_of_what_the_dtype_cannot_hold(dtype: int, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=r"the range of 'x' " + said):
        made_seeds(copier(dtype), 4, ranges={"x": given})


@pytest.mark.parametrize(("dtype", "given"), [(FLOAT, (-3e38, 3e38)), (INT8, (-128, 127)), (INT64, (0, 7))])
def test_what_it_holds_is_taken(dtype: int, given: Any) -> None:
    assert bool(made_seeds(copier(dtype), 4, ranges={"x": given}).batch["x"].double().isfinite().all())


@pytest.mark.parametrize(("given", "what"), [((0.0, 1e300), "the range of"), ([0.5, 1e300], "the list of choices for")])
def test_a_search_refuses_them_too(given: Any, what: str) -> None:
    with pytest.raises(UsageError, match=rf"{what} 'x' holds 1e\+300, but float32 holds -3.40282e\+38..3.40282e\+38"):
        nnfuzz.find_nans(lambda x: x, torch.full((2, 3), 0.5), ranges={"x": given}, max_inputs=64)


def test_an_infinite_end_still_asks_for_all_of_the_dtype() -> None:
    run = nnfuzz.find_nans(lambda x: x.sqrt(), torch.rand(2, 3), ranges=(-float("inf"), 1.0), max_inputs=300)
    assert run.findings
