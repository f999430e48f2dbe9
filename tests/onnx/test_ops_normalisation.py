"""Normalisations and losses: ONNX's own cases, ONNX Runtime on random attributes, gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_checks import check_gradient, check_official, each, numbers
from ops_harness import both, one_node, ours

from nnfuzz.errors import Unsupported

OPS = (
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization",
    "LRN", "LpNormalization", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
)  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_official(op: str) -> None:
    check_official(op)


@given(st.data(), st.sampled_from([7, 9, 14, 15]))
def test_batch_normalisation_is_the_runtimes(data: st.DataObject, opset: int) -> None:
    draw = data.draw
    x = numbers(draw, 2, 3, *each(draw, draw(st.integers(0, 3)), 1, 4))
    inputs = {"x": x, "scale": numbers(draw, 3), "b": numbers(draw, 3), "mean": numbers(draw, 3)}
    inputs["var"] = np.abs(numbers(draw, 3))
    training = opset >= 14 and draw(st.booleans())
    attrs = {"training_mode": 1, "momentum": 0.7} if training else {}
    outputs = ("y", "mean2", "var2") if training else ("y",)
    ours, theirs = both("BatchNormalization", inputs, outputs, opset=opset, epsilon=1e-3, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, strict=True)


def test_batch_normalisation_before_opset_14() -> None:
    """Training is told by the outputs that are wanted; opset 7 may have statistics for every element."""
    x, three = torch.randn(2, 3, 4), torch.rand(3)
    names = ("x", "scale", "b", "mean", "var")
    feeds = dict(zip(names, (x, three, three, three, three), strict=True))
    arrays: dict[str, Any] = {k: v.numpy() for k, v in feeds.items()}
    model = one_node("BatchNormalization", arrays, ("y", "m", "v", "sm", "sv"), opset=9, momentum=0.5)
    y, mean, var, saved_mean, saved_var = ours(model, feeds)
    assert torch.allclose(y.mean((0, 2)), three, atol=1e-5)
    assert torch.allclose(mean, three / 2 + saved_mean / 2)
    assert torch.allclose(var, three / 2 + saved_var / 2)
    assert torch.allclose(saved_var, x.var((0, 2), correction=0))
    each_one = torch.rand(3, 4)
    feeds |= dict.fromkeys(names[1:], each_one)
    (y,) = ours(one_node("BatchNormalization", arrays, opset=7, spatial=0), feeds)
    assert torch.allclose(y, (x - each_one) / (each_one + 1e-5).sqrt() * each_one + each_one, atol=1e-5)
    with pytest.raises(Unsupported, match="spatial=0 in training is not supported"):
        ours(one_node("BatchNormalization", arrays, ("y", "m", "v"), opset=7, spatial=0), feeds)


@given(st.data())
def test_others_are_the_runtimes(data: st.DataObject) -> None:
    draw = data.draw
    op = draw(st.sampled_from(["LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization",
                               "LpNormalization", "LRN", "MeanVarianceNormalization"]))  # fmt: skip
    inputs, attrs, opset, outputs = {"x": numbers(draw, 2, 4, 3, 2)}, {}, 11, ("y",)
    match op:
        case "LayerNormalization" | "RMSNormalization":
            opset, attrs["axis"] = 23, draw(st.sampled_from([-1, 1, 2, -2]))
            inputs["scale"] = numbers(draw, *inputs["x"].shape[attrs["axis"] :])
            outputs = ("y", "mean", "inverse") if op == "LayerNormalization" else ("y",)
        case "GroupNormalization":
            opset, attrs["num_groups"] = draw(st.sampled_from([18, 21])), 2
            inputs |= {k: numbers(draw, 2 if opset == 18 else 4) for k in ("scale", "b")}
        case "InstanceNormalization":
            inputs |= {k: numbers(draw, 4) for k in ("scale", "b")}
        case "LpNormalization":
            attrs |= {"axis": draw(st.sampled_from([0, 1, -1])), "p": draw(st.integers(1, 2))}
        case "LRN":
            attrs |= {"size": draw(st.sampled_from([1, 3, 5])), "alpha": 0.5, "beta": 0.6, "bias": 0.7}
    ours, theirs = both(op, inputs, outputs, opset=opset, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, strict=True)


def test_constant_channel_is_nan_as_in_the_runtime() -> None:
    x = np.full((1, 1, 2, 2), 0.5, np.float32)
    (found,), (theirs,) = both("MeanVarianceNormalization", {"x": x}, opset=13)
    assert math.isnan(theirs.flat[0])
    assert bool(found.isnan().all())


def test_even_region_of_lrn_reaches_one_further_up() -> None:
    """The runtime takes odd sizes only."""
    x = torch.tensor([1.0, 2, 4, 8]).reshape(1, 4, 1)
    (y,) = ours(one_node("LRN", {"x": x.numpy()}, size=2, alpha=2.0, beta=1.0, bias=0.0), {"x": x})
    assert y.flatten().tolist() == pytest.approx([1 / 5, 2 / 20, 4 / 80, 8 / 64])


@given(st.data(), st.sampled_from(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]))
def test_losses_are_the_runtimes(data: st.DataObject, op: str) -> None:
    draw, classes = data.draw, 3
    shape = [draw(st.integers(1, 3)), *each(draw, draw(st.integers(0, 2)), 1, 3)]
    target = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=math.prod(shape), max_size=math.prod(shape))))
    attrs: dict[str, Any] = {"reduction": draw(st.sampled_from(["none", "sum", "mean"]))}
    if draw(st.booleans()):
        attrs["ignore_index"] = draw(st.sampled_from([0, 1, -1, 5]))
        target[:: draw(st.integers(1, 3))] = attrs["ignore_index"]
    inputs = {"x": numbers(draw, shape[0], classes, *shape[1:]), "target": target.reshape(shape)}
    if draw(st.booleans()):
        inputs["weight"] = np.abs(numbers(draw, classes))
    outputs = ("y", "log_prob") if op == "SoftmaxCrossEntropyLoss" else ("y",)
    ours, theirs = both(op, inputs, outputs, opset=13, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    draw = np.random.default_rng(0).normal
    x, four, last = draw(size=(2, 4, 3)), draw(size=4), draw(size=3)
    bn = {"x": x, "scale": four, "b": four, "mean": four, "var": four**2}
    check_gradient(one_node("BatchNormalization", bn, opset=15), **bn)
    check_gradient(one_node("BatchNormalization", bn, ("y", "m", "v"), opset=15, training_mode=1), **bn)
    affine = {"x": x, "scale": four, "b": four}
    check_gradient(one_node("InstanceNormalization", affine), **affine)
    check_gradient(one_node("GroupNormalization", affine, num_groups=2), **affine)
    check_gradient(one_node("LayerNormalization", {"x": x, "scale": last}), x=x, scale=last)
    check_gradient(one_node("RMSNormalization", {"x": x, "scale": last}, opset=23), x=x, scale=last)
    for op, attrs in (("LRN", {"size": 3}), ("LpNormalization", {}), ("MeanVarianceNormalization", {"axes": [0, 2]})):
        check_gradient(one_node(op, {"x": x}, **attrs), x=x)
    target = np.array([[0, 1, 2], [3, 3, 0]])
    check_gradient(one_node("SoftmaxCrossEntropyLoss", {"x": x, "t": target}), x=x, t=target)


def test_half_precision_takes_statistics_in_single() -> None:
    x, scale = torch.full((1, 4), 300.0).half() * torch.tensor([1, 1, -1, 1]).half(), torch.ones(4).half()
    for op in ("LayerNormalization", "RMSNormalization"):
        (y, *_) = ours(one_node(op, {"x": x.numpy(), "scale": scale.numpy()}, opset=23), {"x": x, "scale": scale})
        assert y.dtype == torch.float16
        assert bool(y.isfinite().all())  # 300² is beyond float16


def test_a_vector_of_zeros_stays_one_and_has_a_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    (y,) = ours(one_node("LpNormalization", {"x": x.detach().numpy()}), {"x": x})
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
