"""com.microsoft's attention in all its forms, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, one_node, ours, to_numpy

MS = "com.microsoft"
B, S, N, SIZE, PAST, KEYS = 2, 4, 3, 16, 5, 6
WIDTH = N * SIZE
Feeds = dict[str, Any]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(list(shape)).normal(size=shape).astype(np.float32)


def ones_and_zeros(*shape: int) -> np.ndarray[Any, Any]:
    mask = rng().integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def agree(op: str, feeds: Feeds, outputs: tuple[str, ...] = ("y",), atol: float = 1e-5, **attrs: Any) -> None:
    found, expected = both(op, feeds, outputs, domain=MS, **attrs)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(f), e, rtol=1e-4, atol=atol, strict=True)


MASKS: dict[str, Any] = {
    "none": None,
    "lengths": np.array([3, 2], np.int32),
    "ends and beginnings": np.array([3, 4, 1, 0], np.int32),
    "keys": np.array([[1, 1, 1, 0], [0, 1, 1, 1]], np.int32),
    "pairs": ones_and_zeros(B, S, S),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("extra", [False, True])
def test_self_attention(mask: str, ahead: int, extra: bool) -> None:
    feeds = {"x": normal(B, S, 10), "w": normal(10, 3 * WIDTH) * 0.3, "b": normal(3 * WIDTH), "m": MASKS[mask]}
    feeds |= {"past": None, "extra": normal(B, N, S, S)} if extra else {}
    # The filter value of −10000 leaves three digits where nothing but masked keys is left.
    agree("Attention", feeds, num_heads=N, unidirectional=ahead, atol=2e-3 if mask == "pairs" else 1e-5)


@pytest.mark.parametrize("ahead", [0, 1])
def test_self_attention_with_a_past(ahead: int) -> None:
    feeds = {"x": normal(B, S, 10), "w": normal(10, 3 * WIDTH) * 0.3, "b": normal(3 * WIDTH)}
    past = normal(2, B, N, PAST, SIZE)
    outputs = ("y", "present")
    agree("Attention", {**feeds, "m": None, "p": past}, outputs, num_heads=N, unidirectional=ahead)
    mask = ones_and_zeros(B, PAST + S)
    agree("Attention", {**feeds, "m": mask, "p": past}, outputs, num_heads=N, unidirectional=ahead, scale=0.3)
    sizes = [WIDTH, WIDTH, N * 6]
    feeds = {"x": normal(B, S, 10), "w": normal(10, sum(sizes)) * 0.3, "b": normal(sum(sizes))}
    agree("Attention", feeds, num_heads=N, unidirectional=ahead, qkv_hidden_sizes=sizes)


@pytest.mark.parametrize("weights", [np.uint8, np.int8])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_quantized_attention(weights: Any, by_column: bool, past: bool) -> None:
    shape = (3 * WIDTH,) if by_column else ()
    feeds = {
        "x": rng().integers(0, 256, (B, S, 10)).astype(np.uint8),
        "w": rng().integers(-64 if weights == np.int8 else 0, 64, (10, 3 * WIDTH)).astype(weights),
        "b": normal(3 * WIDTH),
        "xs": np.array(0.01, np.float32),
        "ws": np.full(shape, 0.01, np.float32),
        "m": np.array([3, 2], np.int32) if past else None,
        "xz": np.array(100, np.uint8),
        "wz": np.full(shape, 3, weights),
        "p": normal(2, B, N, PAST, SIZE) if past else None,
    }
    agree("QAttention", feeds, ("y", "present") if past else ("y",), atol=1e-4, num_heads=N)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"b": normal(2 * WIDTH + N * 6)},
        {"b": None, "m": np.array([4, 6], np.int32)},
        {"b": None, "m": ones_and_zeros(B, KEYS)},
        {"b": None, "m": ones_and_zeros(B, S, KEYS), "e": normal(1, N, S, KEYS)},
    ],
    ids=["plain", "bias", "lengths", "keys", "pairs"],
)
def test_multi_head_attention(case: Feeds) -> None:
    feeds = {"q": normal(B, S, WIDTH), "k": normal(B, KEYS, WIDTH), "v": normal(B, KEYS, N * 6), **case}
    agree("MultiHeadAttention", feeds, num_heads=N)


@pytest.mark.parametrize("ahead", [0, 1])
def test_multi_head_attention_with_a_past_or_another_text(ahead: int) -> None:
    feeds = {name: normal(B, S, WIDTH) for name in "qkv"}
    feeds |= {"b": normal(3 * WIDTH), "m": ones_and_zeros(B, PAST + S), "e": None}
    feeds |= {"pk": normal(B, N, PAST, SIZE), "pv": normal(B, N, PAST, SIZE)}
    agree("MultiHeadAttention", feeds, ("y", "k2", "v2"), num_heads=N, unidirectional=ahead)
    feeds = {"q": normal(B, S, WIDTH), "k": normal(B, N, KEYS, SIZE), "v": normal(B, N, KEYS, SIZE)}
    agree("MultiHeadAttention", {**feeds, "b": normal(3 * WIDTH)}, num_heads=N)


def test_packed_forms_are_the_plain_one() -> None:
    """ONNX Runtime has them for other devices only."""
    q, k, v = (torch.randn(B, S, WIDTH) for _ in range(3))
    model = one_node("MultiHeadAttention", dict.fromkeys("qkv", normal(1)), domain=MS, num_heads=N)
    plain = ours(model, {"q": q, "k": k, "v": v})[0]
    apart = [t.unflatten(2, (N, SIZE)) for t in (q, k, v)]
    model = one_node("MultiHeadAttention", {"q": normal(1)}, domain=MS, num_heads=N)
    torch.testing.assert_close(ours(model, {"q": torch.stack(apart, 3)})[0], plain)
    model = one_node("MultiHeadAttention", {"q": normal(1), "k": normal(1)}, domain=MS, num_heads=N)
    torch.testing.assert_close(ours(model, {"q": q, "k": torch.stack(apart[1:], 3)})[0], plain)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    cos, sin = normal(20, SIZE // 2), normal(20, SIZE // 2) + 1
    places = rng().integers(0, 9, (B, S))
    attrs = {"interleaved": interleaved}
    agree("RotaryEmbedding", {"x": normal(B, N, S, SIZE), "p": np.array([3]), "c": cos, "s": sin}, **attrs)
    agree("RotaryEmbedding", {"x": normal(B, S, WIDTH), "p": places, "c": cos, "s": sin}, **attrs)
    part = {"num_heads": N, "rotary_embedding_dim": 4, **attrs}
    agree("RotaryEmbedding", {"x": normal(B, S, WIDTH), "p": places, "c": cos[:, :2], "s": sin[:, :2]}, **part)


@given(
    st.sampled_from(["prompt", "packed", "decode", "chunk"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["no", "halves", "neighbours"]),
    st.sampled_from([-1, 2]),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from(["none", "smooth", "sink"]),
)
def test_group_query_attention(stage: str, groups: int, rotary: str, window: int, cap: float, share: str) -> None:
    heads = 4
    batch, steps = (1 if stage == "chunk" else 2), (1 if stage == "decode" else 4)
    total = {"decode": 7, "chunk": 7}.get(stage, steps)
    cached = {"decode": 6, "chunk": 3}.get(stage)
    width = groups * SIZE
    feeds: Feeds = {"q": normal(batch, steps, heads * SIZE), "k": normal(batch, steps, width)}
    feeds["v"] = normal(batch, steps, width) + 1
    if stage == "packed":
        feeds = {"q": normal(batch, steps, heads * SIZE + 2 * width), "k": None, "v": None}
    feeds |= {"pk": None if cached is None else normal(batch, groups, cached, SIZE)}
    feeds |= {"pv": None if cached is None else normal(batch, groups, cached, SIZE) + 1}
    feeds |= {"l": np.array([6, 4] if stage == "decode" else [total - 1] * batch, np.int32)}
    feeds |= {"t": np.array(total, np.int32)}
    tables = rotary != "no"
    feeds |= {"c": normal(20, SIZE // 2) if tables else None, "s": normal(20, SIZE // 2) + 1 if tables else None}
    if share == "sink":
        feeds |= {"places": None, "e": None, "sink": normal(heads)}
    attrs = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": int(tables), "local_window_size": window}
    attrs |= {"softcap": cap, "smooth_softmax": int(share == "smooth"), "rotary_interleaved": int(rotary[0] == "n")}
    found, expected = both("GroupQueryAttention", feeds, ("y", "k2", "v2"), domain=MS, **attrs)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], rtol=1e-4, atol=1e-5, strict=True)
    for f, e in zip(found[1:], expected[1:], strict=True):
        for row, last in enumerate(feeds["l"]):  # what lies behind is nobody's
            valid = slice(None), slice(0, last + 1)
            np.testing.assert_allclose(to_numpy(f)[row][valid], e[row][valid], rtol=1e-4, atol=1e-5)


def test_what_is_not_built_is_said() -> None:
    feeds = {"x": normal(B, S, 10), "w": normal(10, 3 * WIDTH)}
    model = one_node("Attention", feeds, domain=MS, num_heads=N, do_rotary=1)
    with pytest.raises(ValueError, match=r"com.microsoft.Attention of opset 1 \(node .*\): a rotary embedding inside"):
        ours(model, {k: torch.from_numpy(v) for k, v in feeds.items()})
    model = one_node("Attention", {**feeds, "b": None, "m": np.zeros(3, np.int32)}, domain=MS, num_heads=N)
    values = {k: torch.from_numpy(v) for k, v in feeds.items()}
    with pytest.raises(ValueError, match=r"a mask of 3 numbers for a batch of 2 is not supported"):
        ours(model, {**values, "m": torch.zeros(3, dtype=torch.int32)})


def test_gradients_reach_queries_keys_and_values() -> None:
    feeds = {name: np.zeros((1, 2, 4)) for name in "qkv"}
    model = one_node("MultiHeadAttention", feeds, domain=MS, num_heads=2, unidirectional=1)
    values = [torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True) for _ in feeds]
    assert torch.autograd.gradcheck(lambda *v: ours(model, dict(zip("qkv", v, strict=True)))[0], values)
