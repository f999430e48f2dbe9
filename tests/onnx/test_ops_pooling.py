"""Pools: ONNX's own cases, ONNX Runtime on random attributes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from node_checks import Case, check_gradient, check_official, each, numbers
from ops_harness import both, one_node, ours, to_numpy

from nnfuzz.errors import Unsupported

OPS = ("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "MaxUnpool")


@pytest.mark.parametrize("op", OPS)
def test_official(op: str) -> None:
    check_official(op)


@st.composite
def pools(draw: Any) -> tuple[str, int, Case]:
    op, opset = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"])), draw(st.sampled_from([11, 18, 19, 22]))
    n = draw(st.integers(1, 3))
    kernel, dilation, size = each(draw, n, 1, 4), each(draw, n, 1, 2), each(draw, n, 5, 8)
    dilates = opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    if not dilates:
        dilation = [1] * n
    assume(all((k - 1) * d < s for k, d, s in zip(kernel, dilation, size, strict=True)))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": each(draw, n, 1, 3)}
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if mode == "NOTSET":
        attrs["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
        if dilates or op != "LpPool":
            attrs["ceil_mode"] = draw(st.integers(0, 1))
    else:
        attrs["auto_pad"] = mode
        # The runtime refuses a window narrower than its stride here, before opset 22.
        attrs["strides"] = [min(s, k) for s, k in zip(attrs["strides"], kernel, strict=True)]
    if dilates and mode in ("NOTSET", "VALID"):
        attrs["dilations"] = dilation
    if op == "AveragePool":
        attrs["count_include_pad"] = draw(st.integers(0, 1))
    if op == "LpPool":
        attrs["p"] = draw(st.integers(1, 3))
    x = numbers(draw, 2, 2, *size, scale=40)
    if op == "MaxPool" and opset >= 12 and draw(st.booleans()):
        x = x.clip(-128, 127).astype(np.int8)
    return op, opset, ({"x": x}, attrs)


@given(pools())
def test_pools_are_the_runtimes(drawn: tuple[str, int, Case]) -> None:
    op, opset, (inputs, attrs) = drawn
    (ours,), (theirs,) = both(op, inputs, opset=opset, **attrs)
    np.testing.assert_allclose(to_numpy(ours), theirs, rtol=1e-4, atol=1e-3, strict=True)


@given(pools(), st.integers(0, 1))
def test_places_of_the_largest_are_the_runtimes(drawn: tuple[str, int, Case], order: int) -> None:
    op, opset, (inputs, attrs) = drawn
    assume(op == "MaxPool" and inputs["x"] is not None and inputs["x"].dtype == np.float32)
    ours, theirs = both(op, inputs, ("y", "where"), opset=opset, storage_order=order, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(to_numpy(a), b, strict=True)


def test_narrow_windows_skip_what_the_runtime_skips() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        for stride in (2, 3, 4):
            attrs = {"kernel_shape": [1], "strides": [stride], "auto_pad": mode}
            (ours,), (theirs,) = both("AveragePool", {"x": x}, opset=22, **attrs)
            np.testing.assert_array_equal(to_numpy(ours), theirs)


def test_unpooling_undoes_pooling() -> None:
    x = torch.randn(2, 3, 6, 6)
    feeds = {"x": x.numpy()}
    pool = one_node("MaxPool", feeds, ("y", "where"), opset=11, kernel_shape=[2, 2], strides=[2, 2])
    y, where = ours(pool, {"x": x})
    back = one_node("MaxUnpool", {"y": y.numpy(), "where": where.numpy()}, kernel_shape=[2, 2], strides=[2, 2])
    (z,) = ours(back, {"y": y, "where": where})
    assert torch.equal(ours(pool, {"x": torch.where(z == 0, -9.0, z)})[0], y)
    assert torch.equal(z[z != 0], x[z != 0])


@pytest.mark.parametrize(("op", "attrs"), [
    ("MaxPool", {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0]}),
    ("AveragePool", {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0]}),
    ("LpPool", {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0], "p": 3}),
    ("GlobalLpPool", {}),
    ("GlobalMaxPool", {}),
])  # fmt: skip
def test_gradients(op: str, attrs: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 2, 5, 6))
    check_gradient(one_node(op, {"x": x}, opset=18, **attrs), x=x)


def test_norm_of_zeros_has_a_finite_gradient() -> None:
    x = torch.zeros(1, 1, 4, requires_grad=True)
    (y,) = ours(one_node("LpPool", {"x": x.detach().numpy()}, kernel_shape=[2]), {"x": x})
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[0.0] * 4]]


def test_message() -> None:
    x = torch.zeros(1, 1, 2, 2, 2, 2)
    with pytest.raises(Unsupported, match=r"MaxPool of opset 21 \(node .*\): 4 spatial axes, where 1 to 3"):
        ours(one_node("MaxPool", {"x": x.numpy()}, kernel_shape=[1] * 4), {"x": x})
