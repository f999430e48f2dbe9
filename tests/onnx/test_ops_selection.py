"""TopK and Unique: official cases, ONNX Runtime beside them, ties, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, check_case, official_cases, one_node, ours, to_numpy


@pytest.mark.parametrize("op", ["TopK", "Unique"])
def test_official_cases(op: str) -> None:
    cases = official_cases(op)
    assert cases
    for case in cases:
        check_case(case)


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([np.float32, np.int64, np.int32]))
def test_top_k_as_the_runtime_ties_included(seed: int, largest: bool, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 3, rng.integers(2, 6, 3)).astype(dtype)
    axis = int(rng.integers(-3, 3))
    k = np.array([rng.integers(1, x.shape[axis] + 1)])
    found, expected = both("TopK", {"x": x, "k": k}, ["v", "i"], axis=axis, largest=int(largest), opset=11)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)


def test_top_k_before_it_took_k_as_an_input() -> None:
    x = np.array([[3.0, 1, 2]], np.float32)
    found, expected = both("TopK", {"x": x}, ["v", "i"], k=2, opset=9)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)


def test_top_k_of_large_unsigned_integers() -> None:
    x = np.array([1, 2**64 - 1, 2**63], np.uint64)
    model = one_node("TopK", {"x": x, "k": np.array([2])}, ["v", "i"])
    values, places = ours(model, {"x": torch.from_numpy(x), "k": torch.tensor([2])})
    assert values.tolist() == [2**64 - 1, 2**63]
    assert places.tolist() == [1, 2]


@given(st.integers(0, 10**6), st.sampled_from([None, 0, 1, -1]), st.booleans())
def test_unique_as_the_runtime(seed: int, axis: int | None, by_value: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (4, 3) if axis == 0 else (2, 5)).astype(np.float32)
    attrs = {} if axis is None else {"axis": axis}
    found, expected = both("Unique", {"x": x}, ["y", "f", "i", "c"], sorted=int(by_value), opset=11, **attrs)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=9))
def test_unique_of_onnx_runtime_as_the_runtime(numbers: list[int]) -> None:
    x = np.array(numbers, np.float32)
    found, expected = both("Unique", {"x": x}, ["y", "i", "c"], domain="com.microsoft")
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)


def test_gradients_reach_what_was_chosen() -> None:
    x = torch.tensor([2.0, 5, 1, 5], requires_grad=True)
    model = one_node("TopK", {"x": x.detach().numpy(), "k": np.array([2])}, ["v", "i"])
    ours(model, {"x": x, "k": torch.tensor([2])})[0].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 0, 1]
    x.grad = None
    model = one_node("Unique", {"x": x.detach().numpy()}, ["y"])
    ours(model, {"x": x})[0].sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0]  # of the two fives the first stands for both
