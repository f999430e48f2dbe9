"""Attention and rotary embedding: ONNX's own cases, ONNX Runtime, masks, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from node_checks import Case, check_gradient, check_official, numbers
from ops_harness import both, one_node, ours


@pytest.mark.parametrize("op", ["Attention", "RotaryEmbedding"])
def test_official(op: str) -> None:
    check_official(op)


@st.composite
def attentions(draw: Any) -> tuple[Case, tuple[str, ...]]:
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    heads, queries, keys, past = (
        kv_heads * group,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 2)),
    )
    q, k, v = (
        numbers(draw, batch, h, n, e) for h, n, e in ((heads, queries, 4), (kv_heads, keys, 4), (kv_heads, keys, 3))
    )
    attrs: dict[str, Any] = {}
    if draw(st.booleans()):
        q, k, v = (t.transpose(0, 2, 1, 3).reshape(batch, t.shape[2], -1) for t in (q, k, v))
        attrs |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v, "mask": None}
    shape = draw(st.sampled_from([(queries,), (1, 1, queries), (batch, 1, queries), (batch, heads, queries)]))
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        inputs["mask"] = numbers(draw, *shape, past + keys)
    if kind == "bool":
        inputs["mask"] = inputs["mask"] > -0.5
    if past:
        inputs |= {"pk": numbers(draw, batch, kv_heads, past, 4), "pv": numbers(draw, batch, kv_heads, past, 3)}
    attrs["is_causal"] = draw(st.integers(0, 1))
    # A single query after a past sees all keys in the runtime, those of its own place and before in ONNX.
    assume(not (attrs["is_causal"] and past and queries == 1))
    if draw(st.booleans()):
        attrs["softcap"] = 2.0
    if draw(st.booleans()):
        attrs["scale"] = 0.3
    attrs["qk_matmul_output_mode"] = draw(st.sampled_from([0, 1, 3]))
    return (inputs, attrs), ("y", "k2" if past else "", "v2" if past else "", "qk")


@given(attentions())
def test_attention_is_the_runtimes(drawn: tuple[Case, tuple[str, ...]]) -> None:
    (inputs, attrs), outputs = drawn
    ours, theirs = both("Attention", inputs, outputs, opset=23, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, strict=True)


def test_a_query_that_may_look_nowhere_gives_zeros_and_finite_gradients() -> None:
    q = torch.randn(1, 1, 2, 4, requires_grad=True)
    mask = torch.tensor([[False, False], [True, False]])
    model = one_node("Attention", {n: q.detach().numpy() for n in "qkv"} | {"mask": mask.numpy()}, opset=23)
    y, *_ = ours(model, {"q": q, "k": q, "v": q, "mask": mask})
    assert y[0, 0, 0].tolist() == [0.0] * 4
    assert torch.equal(y[0, 0, 1], q[0, 0, 0])
    y.sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


@given(st.data())
def test_rotary_embedding_is_the_runtimes(data: st.DataObject) -> None:
    draw = data.draw
    turned = draw(st.sampled_from([0, 4]))
    x, half = numbers(draw, 2, 2, 3, 8), (turned or 8) // 2
    attrs = {"interleaved": draw(st.integers(0, 1)), "rotary_embedding_dim": turned}
    if turned or draw(st.booleans()):
        x, attrs["num_heads"] = x.transpose(0, 2, 1, 3).reshape(2, 3, -1), 2
    inputs = {"x": x, "cos": numbers(draw, 2, 3, half), "sin": numbers(draw, 2, 3, half)}
    if draw(st.booleans()):
        inputs |= {"cos": numbers(draw, 10, half), "sin": numbers(draw, 10, half)}
        inputs["positions"] = np.random.default_rng(0).integers(0, 10, (2, 3))
    (ours,), (theirs,) = both("RotaryEmbedding", inputs, opset=23, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, strict=True)


def test_gradients() -> None:
    draw = np.random.default_rng(0).normal
    inputs = {"q": draw(size=(1, 2, 3, 4)), "k": draw(size=(1, 1, 3, 4)), "v": draw(size=(1, 1, 3, 4))}
    check_gradient(one_node("Attention", inputs, opset=23, is_causal=1, softcap=1.0), **inputs)
    rotary = {"x": draw(size=(1, 2, 3, 4)), "cos": draw(size=(1, 3, 2)), "sin": draw(size=(1, 3, 2))}
    check_gradient(one_node("RotaryEmbedding", rotary, opset=23, interleaved=1), **rotary)
