"""Gather, Scatter and their kin: official cases, NumPy and ONNX Runtime beside them, gradients, bad indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, check_case, official_cases, one_node, ours, to_numpy

OPS = (
    "Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "TensorScatter",
    "ArrayFeatureExtractor",
)  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_official_cases(op: str) -> None:
    cases = official_cases(op)
    assert cases
    for case in cases:
        check_case(case)


def indices(rng: np.random.Generator, size: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.integers(-size, size, shape)


@given(st.integers(0, 10**6), st.integers(0, 3), st.sampled_from(["f", "e", "H", "l", "?"]))
def test_gather_as_the_runtime(seed: int, rank: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, 3))
    data = rng.integers(0, 2, shape).astype(dtype)
    axis = int(rng.integers(-3, 3))
    where = indices(rng, shape[axis], tuple(rng.integers(1, 4, rank)))
    found, expected = both("Gather", {"data": data, "i": where}, axis=axis, opset=13)
    np.testing.assert_array_equal(to_numpy(found[0]), expected[0], strict=True)


@given(st.integers(0, 10**6), st.integers(0, 2), st.integers(1, 3))
def test_gather_nd_as_the_runtime(seed: int, batch_dims: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, batch_dims + depth + 1))
    data = rng.normal(size=shape).astype(np.float32)
    columns = [indices(rng, n, (*shape[:batch_dims], 3)) for n in shape[batch_dims : batch_dims + depth]]
    found, expected = both("GatherND", {"data": data, "i": np.stack(columns, -1)}, batch_dims=batch_dims, opset=13)
    np.testing.assert_array_equal(to_numpy(found[0]), expected[0], strict=True)


@given(st.integers(0, 10**6), st.sampled_from(["none", "add", "mul", "max", "min"]), st.sampled_from(["f", "d", "i"]))
def test_scatters_as_the_runtime(seed: int, reduction: str, kind: str) -> None:
    rng = np.random.default_rng(seed)
    data = (rng.normal(size=(4, 5)) * 3).astype(kind)
    rows = np.stack([rng.permutation(4)[:3] for _ in range(5)], 1) - 4 * rng.integers(0, 2)
    updates = (rng.normal(size=(3, 5)) * 3).astype(kind)
    feeds = {"data": data, "i": rows, "u": updates}
    found, expected = both("ScatterElements", feeds, axis=0, reduction=reduction, opset=18)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], rtol=1e-3, strict=True)
    feeds = {"data": data, "i": rows[:, :1], "u": updates}
    found, expected = both("ScatterND", feeds, reduction=reduction, opset=18)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], rtol=1e-3, strict=True)


def test_scatter_of_truth_values() -> None:
    data, rows = np.array([True, False, True]), np.array([0, 1, 2])
    updates = np.array([False, True, False])
    for reduction, wanted in (("add", data | updates), ("mul", data & updates)):
        model = one_node("ScatterElements", {"d": data, "i": rows, "u": updates}, reduction=reduction)
        feeds = {"d": torch.from_numpy(data), "i": torch.from_numpy(rows), "u": torch.from_numpy(updates)}
        assert ours(model, feeds)[0].tolist() == wanted.tolist()


def test_indices_outside_an_axis_are_errors() -> None:
    data = np.zeros((2, 3), np.float32)
    for op, bad in (("Gather", [2]), ("Gather", [-3]), ("GatherND", [[1, 3]]), ("GatherND", [[0, -4]])):
        model = one_node(op, {"d": data, "i": np.array(bad)})
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            ours(model, {"d": torch.from_numpy(data), "i": torch.tensor(bad)})
    model = one_node("ScatterND", {"d": data, "i": np.array([[0, 3]]), "u": np.zeros(1, np.float32)})
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        ours(model, {"d": torch.from_numpy(data), "i": torch.tensor([[0, 3]]), "u": torch.zeros(1)})


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
def test_gathers_are_differentiable(op: str) -> None:
    where = np.array([[0, 1], [-1, 0]])
    model = one_node(op, {"d": np.zeros((2, 2)), "i": where})
    data = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: ours(model, {"d": d, "i": torch.from_numpy(where)})[0], data)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_scatters_are_differentiable(op: str, reduction: str) -> None:
    where = torch.tensor([[0, 1]])
    values = {"d": np.zeros((2, 2)), "i": where.numpy(), "u": np.zeros((1, 2) if op == "ScatterElements" else (1,))}
    model = one_node(op, values, reduction=reduction)
    data = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    updates = torch.rand(values["u"].shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d, u: ours(model, {"d": d, "i": where, "u": u})[0], (data, updates))


def test_batches_under_vmap() -> None:
    where = torch.tensor([[1, 0], [0, -1]])
    data = torch.rand(5, 2, 2)
    for op in ("Gather", "GatherElements", "GatherND"):
        model = one_node(op, {"d": np.zeros((2, 2), np.float32), "i": where.numpy()})

        def run(d: torch.Tensor, model: Any = model) -> torch.Tensor:
            return ours(model, {"d": d, "i": where})[0]

        torch.testing.assert_close(torch.func.vmap(run)(data), torch.stack([run(d) for d in data]))


def test_an_unknown_reduction_is_said() -> None:
    model = one_node(
        "ScatterND", {"d": np.zeros(2), "i": np.zeros((1, 1), np.int64), "u": np.zeros(1)}, reduction="xor"
    )
    with pytest.raises(ValueError, match=r"ScatterND of opset 21 \(node .*\): the reduction 'xor' is not supported"):
        ours(model, {"d": torch.zeros(2), "i": torch.zeros(1, 1, dtype=torch.int64), "u": torch.zeros(1)})
