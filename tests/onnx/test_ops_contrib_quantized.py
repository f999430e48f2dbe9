"""com.microsoft on quantized values: beside ONNX Runtime bit for bit, and the gradients through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, one_node, ours, runtime, to_numpy

import onnx

MS = "com.microsoft"
SEEDS = st.integers(0, 10**6)
EIGHT = st.sampled_from([np.uint8, np.int8])
PAIRS = st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
WEIGHTS = ("b", "bs", "bz")


class Draw:
    """Quantized arrays, scales and zero points by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def of(self, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)

    def weights(self, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
        """Signed ones of seven bits: with eight the runtime's sums saturate on x86 without VNNI."""
        return self.rng.integers(-64, 64, shape).astype(dtype) if dtype == np.int8 else self.of(dtype, *shape)

    def scale(self, *shape: int, times: float = 1.0) -> np.ndarray[Any, Any]:
        """Powers of two now and then, so that there are ties."""
        scale = (
            self.rng.uniform(1e-3, 0.2, shape) if self.rng.random() < 0.5 else 2.0 ** self.rng.integers(-6, -2, shape)
        )
        return np.asarray(scale * times, np.float32)

    def floats(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.normal(size=shape).astype(np.float32)


def same(op: str, feeds: dict[str, Any], constants: tuple[str, ...] = (), **attrs: Any) -> None:
    found, expected = both(op, feeds, domain=MS, constants=constants, **attrs)
    np.testing.assert_array_equal(to_numpy(found[0]), expected[0], strict=True)


def near(op: str, feeds: dict[str, Any], constants: tuple[str, ...] = (), **attrs: Any) -> None:
    """Seldom a step apart: the runtime adds the terms in another order."""
    found, expected = both(op, feeds, domain=MS, constants=constants, **attrs)
    assert to_numpy(found[0]).dtype == expected[0].dtype
    few_steps(to_numpy(found[0]), expected[0])


def few_steps(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """At most one step apart, in one place and one of a hundred more."""
    apart = np.abs(found.astype(int) - expected.astype(int))
    assert apart.max() <= 1
    assert (apart > 0).sum() <= 1 + apart.size // 100


@given(SEEDS, EIGHT, st.sampled_from(["QLinearAdd", "QLinearMul"]))
def test_sums_and_products(seed: int, dtype: Any, op: str) -> None:
    d = Draw(seed)
    shape = tuple(d.rng.integers(1, 9, 3))
    other = tuple(int(n) if d.rng.random() < 0.6 else 1 for n in shape)
    feeds = {"a": d.of(dtype, *shape), "as": d.scale(), "az": d.of(dtype), "b": d.of(dtype, *other), "bs": d.scale()}
    feeds |= {"bz": d.of(dtype), "ys": d.scale(times=1.0 if op == "QLinearAdd" else 30.0), "yz": d.of(dtype)}
    near(op, feeds)


@given(SEEDS, EIGHT)
def test_activations_and_choices(seed: int, dtype: Any) -> None:
    d = Draw(seed)
    shape = tuple(d.rng.integers(1, 9, 3))
    feeds = {"x": d.of(dtype, *shape), "xs": d.scale(), "xz": d.of(dtype)}
    same("QLinearLeakyRelu", {**feeds, "ys": d.scale(), "yz": d.of(dtype)}, alpha=0.1)
    unit = {"ys": np.array(1 / 256, np.float32), "yz": np.array(np.iinfo(dtype).min, dtype)}
    same("QLinearSigmoid", {**feeds, **unit})
    feeds = {"ys": d.scale(), "yz": d.of(dtype), "a": d.of(dtype, 2, 3), "as": d.scale(), "az": d.of(dtype)}
    feeds |= {"b": d.of(dtype, 2, 4), "bs": d.scale(), "bz": d.of(dtype)}
    same("QLinearConcat", feeds, axis=1)
    feeds = {"c": d.rng.random((2, 3)) < 0.5, "a": d.of(dtype, 2, 3), "as": d.scale(), "az": d.of(dtype)}
    feeds |= {"b": d.of(dtype, 1, 3), "bs": d.scale(), "bz": d.of(dtype), "ys": d.scale(), "yz": d.of(dtype)}
    same("QLinearWhere", feeds)


@given(SEEDS, EIGHT, st.sampled_from([12, 13]), st.sampled_from([-1, 1]))
def test_softmax(seed: int, dtype: Any, opset: int, axis: int) -> None:
    d = Draw(seed)
    feeds = {"x": d.of(dtype, 3, 4, 20), "xs": d.scale(times=0.3), "xz": d.of(dtype)}
    feeds |= {"ys": np.array(d.rng.choice([1 / 256, 1 / 255, 0.0031]), np.float32)}
    feeds |= {"yz": np.array(np.iinfo(dtype).min, dtype)}
    model = one_node("QLinearSoftmax", feeds, domain=MS, axis=axis)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    found = ours(model, {name: torch.from_numpy(np.asarray(v)) for name, v in feeds.items()})[0]
    few_steps(to_numpy(found), runtime(model, feeds)[0])


@given(SEEDS, EIGHT, st.booleans(), st.booleans(), st.booleans())
def test_pooling(seed: int, dtype: Any, last: bool, padding_counts: bool, up: bool) -> None:
    d = Draw(seed)
    x = d.of(dtype, 1, 2, 6, 7)
    x = np.moveaxis(x, 1, -1).copy() if last else x
    feeds = {"x": x, "xs": d.scale(), "xz": d.of(dtype), "ys": d.scale(), "yz": d.of(dtype)}
    attrs: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "channels_last": int(last)}
    attrs |= {"ceil_mode": 1} if up else {"pads": [1, 0, 1, 1], "count_include_pad": int(padding_counts)}
    near("QLinearAveragePool", feeds, **attrs)
    near("QLinearGlobalAveragePool", feeds, channels_last=int(last))


@given(SEEDS, PAIRS, st.booleans())
def test_convolution_channels_last(seed: int, types: tuple[Any, Any], by_channel: bool) -> None:
    d = Draw(seed)
    feeds = {
        "x": d.of(types[0], 1, 6, 6, 2), "xs": d.scale(), "xz": d.of(types[0]),
        "b": d.weights(types[1], 4, 2, 3, 3), "bs": d.scale(*((4,) if by_channel else ())),
        "bz": np.zeros((4,) if by_channel else (), types[1]), "ys": d.scale(times=40.0), "yz": d.of(types[0]),
    }  # fmt: skip
    same("QLinearConv", feeds, WEIGHTS, channels_last=1)


@given(SEEDS, PAIRS, st.booleans(), st.booleans(), st.sampled_from([1.0, 0.7]))
def test_products(seed: int, types: tuple[Any, Any], by_column: bool, constant: bool, alpha: float) -> None:
    d = Draw(seed)
    m, k, n = d.rng.integers(1, 40, 3)
    columns = (n,) if by_column else ()
    held = WEIGHTS if constant else ()
    b = {"b": d.weights(types[1], k, n), "bs": d.scale(*columns)}
    zero = {"bz": np.full(columns, d.of(types[1]), types[1])}
    a = {"a": d.of(types[0], m, k), "as": d.scale(), "az": d.of(types[0])}
    bias = {"c": d.rng.integers(-999, 999, n).astype(np.int32)}
    end = {"ys": d.scale(times=10.0 * k), "yz": d.of(types[0])}
    same("QGemm", {**a, **b, **zero, **bias, **end}, held, alpha=alpha)
    swapped = {**a, "a": a["a"].T.copy(), **b, "b": b["b"].T.copy(), **zero}
    same("QGemm", swapped, held, alpha=alpha, transA=1, transB=1)
    feeds = {"a": a["a"], "b": b["b"], "as": a["as"], "bs": b["bs"], "az": a["az"], **zero, "bias": d.floats(n)}
    same("MatMulIntegerToFloat", feeds, held)
    same("DynamicQuantizeMatMul", {"a": d.floats(2, m, k), **b, **zero, "bias": d.floats(n)}, held)
    wide = {name: d.rng.integers(-3000, 3000, s).astype(np.int16) for name, s in (("a", (m, k)), ("b", (k, n)))}
    same("MatMulInteger16", wide)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("more", [False, True])
def test_lstm(dtype: Any, by_column: bool, direction: str, more: bool) -> None:
    d = Draw(0)
    ways, length, batch, size, hidden = 1 + (direction == "bidirectional"), 5, 2, 6, 8
    shape = (ways, 4 * hidden) if by_column else (ways,)
    zero = np.full(shape, 128 * (dtype == np.uint8), dtype)
    feeds = {
        "x": d.floats(length, batch, size), "w": d.weights(dtype, ways, size, 4 * hidden),
        "r": d.weights(dtype, ways, hidden, 4 * hidden), "b": d.floats(ways, 8 * hidden) if more else None, "l": None,
        "h": d.floats(ways, batch, hidden) * 0.5 if more else None,
        "c": d.floats(ways, batch, hidden) if more else None, "p": d.floats(ways, 3 * hidden) * 0.1 if more else None,
        "ws": d.rng.uniform(0.002, 0.004, shape).astype(np.float32), "wz": zero,
        "rs": np.full(shape, 0.004, np.float32), "rz": zero,
    }  # fmt: skip
    held = ("w", "r", "ws", "wz", "rs", "rz")
    attrs = {"hidden_size": hidden, "direction": direction}
    found, expected = both("DynamicQuantizeLSTM", feeds, ["y", "yh", "yc"], domain=MS, constants=held, **attrs)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(f), e, atol=1e-4, strict=True)


def test_a_mean_that_the_runtime_has_for_other_devices_only() -> None:
    x = torch.tensor([[10, 20], [30, 41]], dtype=torch.uint8)
    feeds = {name: np.zeros(()) for name in ("x", "xs", "xz", "ys", "yz")}
    model = one_node("QLinearReduceMean", feeds, domain=MS, axes=[1], keepdims=0)
    half, one, ten = torch.tensor(0.5), torch.tensor(1.0), torch.tensor(10, dtype=torch.uint8)
    assert ours(model, {"x": x, "xs": half, "xz": ten, "ys": one, "yz": ten})[0].tolist() == [12, 23]


def carried_as_stored(op: str, feeds: dict[str, Any], **attrs: Any) -> torch.Tensor:
    """The gradient by the first input, carried by floats; fails unless the values are those in integers."""
    values = {name: torch.from_numpy(np.asarray(v)) for name, v in feeds.items() if v is not None}
    model = one_node(op, feeds, domain=MS, **attrs)
    stored = ours(model, values)[0]
    first = next(name for name in values if name not in ("ys", "yz", "c"))
    values[first] = values[first].to(torch.float32).requires_grad_()
    carried = ours(model, values)[0]
    assert torch.equal(carried.detach().to(stored.dtype), stored)
    carried.sum().backward()
    grad = values[first].grad
    assert grad is not None
    return grad


def test_gradients_go_through() -> None:
    d = Draw(0)
    x = d.rng.integers(100, 150, (2, 6)).astype(np.uint8)
    unit, middle = np.array(0.1, np.float32), np.array(128, np.uint8)
    own, end = {"x": x, "xs": unit, "xz": middle}, {"ys": np.array(0.2, np.float32), "yz": middle}
    torch.testing.assert_close(
        carried_as_stored("QLinearAdd", {**own, "b": x, "bs": unit, "bz": middle, **end}), torch.full((2, 6), 0.5)
    )
    leaky = carried_as_stored("QLinearLeakyRelu", {**own, **end}, alpha=0.5)
    torch.testing.assert_close(leaky, torch.where(torch.from_numpy(x) < 128, 0.25, 0.5))
    joined = {"ys": end["ys"], "yz": middle, "a": x, "as": unit, "az": middle, "b": x, "bs": unit, "bz": middle}
    torch.testing.assert_close(carried_as_stored("QLinearConcat", joined, axis=0), torch.full((2, 6), 0.5))
    weight = d.rng.integers(-9, 9, (6, 3)).astype(np.int8)
    feeds = {"a": x, "b": weight, "as": unit, "bs": unit, "az": middle}
    by_hand = torch.from_numpy(weight).float().sum(1) * 0.01
    torch.testing.assert_close(carried_as_stored("MatMulIntegerToFloat", feeds), by_hand.expand(2, 6))
    gemm = {"a": x, "as": unit, "az": middle, "b": weight, "bs": unit, "bz": np.array(0, np.int8), "c": None, **end}
    torch.testing.assert_close(carried_as_stored("QGemm", gemm, alpha=1.0), by_hand.expand(2, 6) / 0.2)
