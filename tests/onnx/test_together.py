"""Results of parts, one behind the other."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.memory import LARGE, Reused
from nnfuzz.onnx import together as module
from nnfuzz.onnx.together import Together


@given(count=st.integers(1, 40), at_once=st.integers(1, 12), waiting=st.sampled_from([1, 300, 1 << 20]))
def test_parts_come_out_as_they_went_in(count: int, at_once: int, waiting: int) -> None:
    y, z = np.random.default_rng(count).random((count, 3, 5)), np.arange(count)
    both = Together(count, at_once, defaultdict(Reused))
    before, module.WAITING = module.WAITING, waiting
    try:
        for i in range(0, count, at_once):
            assert both.take(["y", "z"], [y[i : i + at_once], z[i : i + at_once]])
    finally:
        module.WAITING = before
    got = both.results()
    assert torch.equal(got["y"], torch.from_numpy(y))
    assert torch.equal(got["z"], torch.from_numpy(z))


@pytest.mark.parametrize(
    "part",
    [
        np.zeros((3, 4), np.float32),  # a row too many
        np.zeros((2, 5), np.float32),
        np.zeros((2, 4), np.float64),
        np.float32(1.0),
        np.array(["a", "b"]),
        [np.zeros((2, 4), np.float32)],
    ],
)
def test_what_does_not_fit_is_said(part: object) -> None:
    both = Together(4, 2, defaultdict(Reused))
    assert both.take(["y"], [np.zeros((2, 4), np.float32)])
    assert not both.take(["y"], [part])


def test_results_that_somebody_holds_outlive_the_next_batch() -> None:
    """A large batch's memory serves the next one, but for what is still in use."""
    blocks: defaultdict[str, Reused] = defaultdict(Reused)

    def batch(value: float) -> torch.Tensor:
        one = Together(2, 1, blocks)
        for _ in range(2):
            assert one.take(["y"], [np.full((1, LARGE // 4), value, np.float32)])
        return one.results()["y"]

    held = batch(1.0)[1:]
    place = batch(2.0).data_ptr()
    assert bool((held == 1).all())
    assert batch(3.0).data_ptr() == place
