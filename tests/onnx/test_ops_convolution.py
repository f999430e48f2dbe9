"""Convolutions: ONNX's own cases, ONNX Runtime on random attributes, gradients, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_checks import Case, check_gradient, check_official, each, numbers
from ops_harness import both, one_node, ours

from nnfuzz.errors import Unsupported


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "DeformConv", "Col2Im"])
def test_official(op: str) -> None:
    check_official(op)


@st.composite
def convolutions(draw: Any) -> Case:
    n, group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    inputs = {
        "x": numbers(draw, 2, 2 * group, *each(draw, n, 5, 8)),
        "w": numbers(draw, 3 * group, 2, *each(draw, n, 1, 3)),
        "b": numbers(draw, 3 * group) if draw(st.booleans()) else None,
    }
    attrs: dict[str, Any] = {"group": group, "strides": each(draw, n, 1, 3)}
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if mode == "NOTSET":
        attrs |= {"pads": each(draw, 2 * n, 0, 2), "dilations": each(draw, n, 1, 2)}
    else:
        attrs["auto_pad"] = mode
    return inputs, attrs


@given(convolutions())
def test_conv_is_the_runtimes(case: Case) -> None:
    inputs, attrs = case
    (ours,), (theirs,) = both("Conv", inputs, opset=11, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@st.composite
def transposed(draw: Any) -> Case:
    """Without an output larger than the convolution reaches, which the runtime does not take in all forms."""
    n, group = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size, kernel, stride = each(draw, n, 3, 4), each(draw, n, 1, 3), each(draw, n, 1, 3)
    dilation = each(draw, n, 1, 2)
    inputs = {
        "x": numbers(draw, 2, 2 * group, *size),
        "w": numbers(draw, 2 * group, 3, *kernel),
        "b": numbers(draw, 3 * group) if draw(st.booleans()) else None,
    }
    extra = [draw(st.integers(0, s - 1)) for s in stride]
    attrs: dict[str, Any] = {"group": group, "strides": stride, "dilations": dilation, "output_padding": extra}
    axes = list(zip(size, stride, kernel, dilation, extra, strict=True))
    whole = [(d - 1) * s + (k - 1) * t + 1 + o for d, s, k, t, o in axes]
    mode = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if draw(st.booleans()):
        attrs |= {"auto_pad": mode, "output_shape": [max(1, w - draw(st.integers(0, 2))) for w in whole]}
    elif mode == "VALID" or (mode != "NOTSET" and all(w >= d * s for w, (d, s, *_) in zip(whole, axes, strict=True))):
        attrs["auto_pad"] = mode
    else:
        attrs["pads"] = each(draw, 2 * n, 0, 1)
    return inputs, attrs


@given(transposed())
def test_transposed_conv_is_the_runtimes(case: Case) -> None:
    inputs, attrs = case
    (ours,), (theirs,) = both("ConvTranspose", inputs, opset=11, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, strict=True)


def test_transposed_conv_beyond_its_reach_holds_the_bias() -> None:
    x, w, b = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 1), np.float32), np.full(1, 7, np.float32)
    model = one_node("ConvTranspose", {"x": x, "w": w, "b": b}, opset=11, strides=[3], auto_pad="SAME_UPPER")
    (y,) = ours(model, {k: torch.as_tensor(v) for k, v in {"x": x, "w": w, "b": b}.items()})
    assert y.tolist() == [[[8, 7, 7, 8, 7, 7]]]


@st.composite
def deformed(draw: Any) -> Case:
    group, offset_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, stride, dilation, pads = each(draw, 2, 1, 3), each(draw, 2, 1, 2), each(draw, 2, 1, 2), each(draw, 4, 0, 2)
    out = [(6 + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in range(2)]
    taps = offset_group * kernel[0] * kernel[1]
    inputs = {
        "x": numbers(draw, 2, 4, 6, 6),
        "w": numbers(draw, 4, 4 // group, *kernel),
        "offset": numbers(draw, 2, taps * 2, *out, scale=1.5),
        "b": numbers(draw, 4) if draw(st.booleans()) else None,
        "mask": numbers(draw, 2, taps, *out) if draw(st.booleans()) else None,
    }
    attrs = {"group": group, "offset_group": offset_group, "strides": stride, "dilations": dilation, "pads": pads}
    return inputs, attrs


@given(deformed())
def test_deformable_conv_is_the_runtimes(case: Case) -> None:
    inputs, attrs = case
    (ours,), (theirs,) = both("DeformConv", inputs, opset=19, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@given(st.data())
def test_col2im_adds_up_what_im2col_takes_apart(data: st.DataObject) -> None:
    """Of three axes, for which the runtime's own sums are wrong: each element comes as often as a window holds it."""
    kernel, stride, dilation = each(data.draw, 3, 1, 3), each(data.draw, 3, 1, 2), each(data.draw, 3, 1, 2)
    pads = each(data.draw, 6, 0, 2)
    size = each(data.draw, 3, 5, 6)
    x = torch.as_tensor(numbers(data.draw, 2, 2, *size))
    wide = torch.nn.functional.pad(x, [p for i in (2, 1, 0) for p in (pads[i], pads[i + 3])])
    for axis in range(3):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        wide = wide.unfold(2 + axis, reach, stride[axis])[..., :: dilation[axis]]
    blocks = wide.permute(0, 1, 5, 6, 7, 2, 3, 4).reshape(2, 2 * kernel[0] * kernel[1] * kernel[2], -1)
    feeds = {"x": blocks, "image": torch.tensor(size), "block": torch.tensor(kernel)}
    attrs = {"strides": stride, "dilations": dilation, "pads": pads}
    model = one_node("Col2Im", {k: v.numpy() for k, v in feeds.items()}, opset=18, **attrs)
    (back,) = ours(model, feeds)
    (times,) = ours(model, {**feeds, "x": (blocks != 0).float()})
    assert torch.allclose(back, x * times, atol=1e-5)


def test_gradients() -> None:
    draw = np.random.default_rng(0).normal
    x, w, b = draw(size=(2, 2, 5, 5)), draw(size=(2, 2, 3, 3)), draw(size=2)
    for op in ("Conv", "ConvTranspose"):
        check_gradient(one_node(op, {"x": x, "w": w, "b": b}, opset=11, pads=[0, 1, 1, 0]), x=x, w=w, b=b)
    offset, mask = draw(size=(2, 18, 3, 3)), draw(size=(2, 9, 3, 3))
    inputs = {"x": x, "w": w, "offset": offset, "b": b, "mask": mask}
    check_gradient(one_node("DeformConv", inputs, opset=19), **inputs)


def test_messages() -> None:
    x, w = torch.zeros(1, 1, 4), torch.zeros(1, 1, 6)
    model = one_node("Conv", {"x": x.numpy(), "w": w.numpy()}, opset=11)
    with pytest.raises(Unsupported, match=r"Conv of opset 11 \(node .*\): a kernel of \[6\] with dilations \[1\]"):
        ours(model, {"x": x, "w": w})
    four = torch.zeros(1, 1, 2, 2, 2, 2)
    with pytest.raises(Unsupported, match="4 spatial axes, where 1 to 3 are written, is not supported"):
        ours(one_node("Conv", {"x": four.numpy(), "w": four.numpy()}, opset=11), {"x": four, "w": four})
