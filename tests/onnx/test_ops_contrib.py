"""com.microsoft, in floats: every operator beside ONNX Runtime, where its processor kernels have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, node_call, one_node, ours, to_numpy

from nnfuzz.onnx.ops import Call, find_operator

MS = "com.microsoft"
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(dtype)


def agree(
    op: str, feeds: dict[str, Any], outputs: tuple[str, ...] = ("y",), atol: float = 1e-5, **rest: Any
) -> list[torch.Tensor]:
    found, expected = both(op, feeds, outputs, **{"domain": MS, **rest})
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(f), e, rtol=1e-4, atol=atol, strict=True)
    return found


@given(*[st.booleans()] * 4)
def test_fused_matmul(flip_a: bool, flip_b: bool, first_a: bool, first_b: bool) -> None:
    a, b = [2, 3, 4, 5], [2, 3, 5, 6]
    a = [2, 3, 5, 4] if flip_a else a
    b = [2, 3, 6, 5] if flip_b else b
    a = [a[2], a[0], a[1], a[3]] if first_a else a
    b = [b[2], b[0], b[1], b[3]] if first_b else b
    flips = {"transA": int(flip_a), "transB": int(flip_b), "transBatchA": int(first_a), "transBatchB": int(first_b)}
    agree("FusedMatMul", {"a": normal(*a), "b": normal(*b)}, alpha=0.5, **flips)


def test_older_names_and_vectors() -> None:
    agree("TransposeMatMul", {"a": normal(2, 5, 3), "b": normal(2, 4, 5)}, transA=1, transB=1)
    agree("FusedMatMul", {"a": normal(5), "b": normal(5, 4)}, transA=1)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]),
        ("Softplus", []), ("Softsign", []), ("ThresholdedRelu", [0.3]), ("Clip", [-0.5, 0.5]), ("HardSwish", []),
    ],
)  # fmt: skip
def test_activations_fused(activation: str, parameters: list[float]) -> None:
    if activation not in ("Clip", "HardSwish"):
        named = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
        feeds = {"a": normal(3, 4), "b": normal(4, 5), "c": normal(5)}
        agree("FusedGemm", feeds, activation=activation, alpha=0.5, beta=0.25, **named)
    if activation not in ("Softplus", "Softsign", "ThresholdedRelu"):
        attrs: dict[str, Any] = {"activation_params": parameters} if parameters else {}
        feeds = {"x": normal(1, 4, 6, 6), "w": normal(2, 2, 3, 3), "b": normal(2)}
        agree("FusedConv", feeds, activation=activation, group=2, pads=[1, 1, 1, 0], **attrs)
        feeds = {"x": normal(1, 2, 6, 6), "w": normal(2, 2, 3, 3), "b": normal(2), "z": normal(1, 2, 4, 4)}
        agree("FusedConv", feeds, activation=activation, **attrs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_activations_and_normalisation(dtype: Any) -> None:
    atol = 1e-5 if dtype == np.float32 else 5e-3

    def n(*shape: int) -> np.ndarray[Any, Any]:
        return normal(*shape, dtype=dtype)

    agree("Gelu", {"x": n(3, 40) * 3}, atol=atol)
    agree("BiasGelu", {"x": n(3, 4), "b": n(4)}, atol=atol)
    agree("FastGelu", {"x": n(3, 4), "b": n(4)}, atol=atol)
    agree("FastGelu", {"x": n(3, 4)}, atol=atol)
    agree("QuickGelu", {"x": n(3, 4)}, alpha=1.5, atol=atol)
    x, skip, gamma, beta, bias = n(2, 3, 8), n(2, 3, 8), n(8), n(8), n(8)
    feeds = {"x": x, "s": skip, "g": gamma, "b": beta, "bias": bias}
    agree("SkipLayerNormalization", feeds, ("y", "mean", "inverse", "sum"), epsilon=1e-5, atol=atol)
    agree("SkipLayerNormalization", {"x": x, "s": skip[0], "g": gamma}, epsilon=1e-5, atol=atol)
    feeds = {"x": x, "s": skip, "g": gamma, "bias": bias}
    agree("SkipSimplifiedLayerNormalization", feeds, ("y", "", "", "sum"), epsilon=1e-5, atol=atol)
    for domain, axis, scale in (("", -1, gamma), ("", 1, n(3, 8))):
        feeds = {"x": x, "g": scale}
        agree("SimplifiedLayerNormalization", feeds, ("y", "i"), domain=domain, epsilon=1e-5, axis=axis, atol=atol)


def test_embeddings() -> None:
    words, segments = RNG.integers(0, 9, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    tables = {"wt": normal(9, 8), "pt": normal(6, 8), "st": normal(2, 8), "g": normal(8), "b": normal(8)}
    agree("EmbedLayerNormalization", {"w": words, "s": segments, **tables, "m": mask}, ("y", "lengths", "sum"))
    feeds = {"w": words, "s": None, **tables, "st": None, "m": None, "p": RNG.integers(0, 5, (2, 5)).astype(np.int32)}
    agree("EmbedLayerNormalization", feeds, ("y", "lengths"))
    for dtype in (np.uint8, np.int8):
        held = {name: RNG.integers(0, 120, t.shape).astype(dtype) for name, t in tables.items()}
        scales = {f"s{i}": np.array(0.01 + i / 100, np.float32) for i in range(5)}
        zeros = {f"z{i}": np.array(i + 50, dtype) for i in range(5)}
        feeds = {"w": words, "s": segments, **held, "m": mask, **scales, **zeros}
        agree("QEmbedLayerNormalization", feeds, ("y", "lengths"))


def test_plain_operators() -> None:
    agree(
        "NhwcMaxPool", {"x": RNG.integers(0, 255, (1, 6, 6, 3)).astype(np.uint8)}, kernel_shape=[2, 2], strides=[2, 2]
    )
    agree("NhwcMaxPool", {"x": RNG.integers(-99, 99, (1, 6, 6, 3)).astype(np.int8)}, kernel_shape=[3, 3], pads=[1] * 4)
    agree("Inverse", {"x": normal(2, 4, 4)}, atol=1e-3)
    agree("Trilu", {"x": normal(4, 5), "k": np.array(1)}, upper=0)
    agree("ExpandDims", {"x": normal(4, 5), "axis": np.array(1, np.int32)})
    agree("Range", {"a": np.array([1]), "b": np.array([5])})
    agree("GatherND", {"x": normal(4, 5), "i": np.array([[1, 2], [3, 0]])})
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            grid = np.clip(normal(1, 4, 4, 2) * 0.7, -1.3, 1.3)
            agree("GridSample", {"x": normal(1, 2, 5, 6), "g": grid}, mode=mode, padding_mode=padding)
    for metric in ("euclidean", "sqeuclidean"):
        agree("CDist", {"a": normal(4, 5), "b": normal(6, 5)}, metric=metric)
    for mode in ("constant", "reflect", "edge"):
        agree("Pad", {"x": normal(4, 5), "p": np.array([1, 1, 2, 1])}, mode=mode)
        agree("Pad", {"x": normal(4, 5), "p": np.array([[1, -1, 2, 1]]), "v": np.float32(3)}, mode=mode)


def run(op: str, *values: torch.Tensor, **attrs: Any) -> torch.Tensor:
    function = find_operator(MS, op)
    assert function is not None
    result = function(Call(op, MS, 1, attrs), *values)
    assert isinstance(result, torch.Tensor)
    return result


def test_operators_that_only_other_devices_have() -> None:
    """By their formulas, since ONNX Runtime has no kernels of them for processors."""
    x, bias, skip = torch.randn(2, 3, 8), torch.randn(8), torch.randn(2, 3, 8)
    torch.testing.assert_close(run("BiasAdd", x, bias, skip), x + bias + skip)
    left, right = (x + bias)[..., :4], (x + bias)[..., 4:]
    torch.testing.assert_close(run("BiasSplitGelu", x, bias), left * right * torch.special.ndtr(right))
    e = torch.exp(x + bias)
    torch.testing.assert_close(run("BiasSoftmax", x, bias, axis=2, is_inner_broadcast=0), e / e.sum(2, keepdim=True))
    torch.testing.assert_close(run("BiasSoftmax", x, bias, axis=1), e / e.sum((1, 2), keepdim=True))
    spectrum = run("Rfft", x, onesided=1, normalized=0, signal_ndim=1)
    n, k = torch.arange(8.0), torch.arange(5.0)[:, None]
    torch.testing.assert_close(spectrum[..., 0], x @ torch.cos(2 * torch.pi * n * k / 8).T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run("Irfft", spectrum, onesided=1, normalized=0, signal_ndim=1), x)
    assert run("IsAllFinite", x, bias).item()
    assert not run("IsAllFinite", x, bias / 0).item()
    assert run("IsAllFinite", bias / 0, isnan_only=1).item()
    image, weight = torch.randn(1, 5, 5, 2), torch.randn(3, 2, 3, 3)
    plain = torch.relu(torch.conv2d(image.movedim(-1, 1), weight)).movedim(1, -1)
    torch.testing.assert_close(run("NhwcFusedConv", image, weight, activation="Relu"), plain)


def test_settings_that_are_not_built_are_said() -> None:
    x = torch.randn(2, 4)
    for op, values, attrs, told in (
        ("CDist", (x, x), {"metric": "cosine"}, "the metric 'cosine' is not supported"),
        ("FusedMatMul", (x, x.T), {"activation": "Gumbel"}, "the activation 'gumbel' is not supported"),
        ("Rfft", (x,), {"onesided": 0}, "a transform that is normalized or not one-sided is not supported"),
    ):
        with pytest.raises(ValueError, match=f"com.microsoft.{op} of opset 1 \\(node .*\\): {told}"):
            run(op, *values, **attrs)


WEIGHTS = st.sampled_from([2, 4, 8])


@given(WEIGHTS, st.sampled_from([(32, 16), (40, 16), (64, 32), (50, 32)]), st.sampled_from(["none", "packed", "plain"]))
def test_weights_in_blocks(bits: int, sizes: tuple[int, int], zeros: str) -> None:
    rng = np.random.default_rng(0)
    depth, block = sizes
    blocks = -(-depth // block)
    zero = {
        "none": None,
        "packed": rng.integers(0, 256, (5, -(-blocks * bits // 8))).astype(np.uint8),
        "plain": rng.normal(size=(5, blocks)).astype(np.float32) if bits < 8 else None,
    }[zeros]
    feeds = {
        "a": rng.normal(size=(2, 3, depth)).astype(np.float32),
        "b": rng.integers(0, 256, (5, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(1e-3, 0.2, (5, blocks)).astype(np.float32),
        "z": zero,
        "g": None,
        "bias": np.ones(5, np.float32),
    }
    attrs = {"K": depth, "N": 5, "bits": bits, "block_size": block}
    agree("MatMulNBits", feeds, atol=1e-3 if bits == 8 else 1e-4, **attrs)
    agree("MatMulNBits", feeds, atol=1e-3, accuracy_level=4, constants=("b", "s", "z", "bias"), **attrs)


@given(WEIGHTS, st.booleans(), st.booleans())
def test_rows_of_quantized_tables(bits: int, zeros: bool, outside: bool) -> None:
    rng = np.random.default_rng(0)
    blocks = 64 * 8 // bits // 16
    feeds = {
        "x": rng.integers(0, 256, (10, 64)).astype(np.uint8),
        "i": np.array([[1, -2], [12 if outside else 9, 0]]),
        "s": rng.uniform(1e-3, 0.2, (10, blocks)).astype(np.float32),
        "z": rng.integers(0, 256, (10, blocks * bits // 8)).astype(np.uint8) if zeros else None,
    }
    agree("GatherBlockQuantized", feeds, bits=bits, block_size=16, gather_axis=0, quantize_axis=1)


def test_an_unsigned_table_of_four_bits_is_told_from_bytes_by_its_onnx_type() -> None:
    import ml_dtypes

    for dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        for gathered, blocked in ((0, 1), (1, 0), (0, 0)):
            shape = [32, 32]
            shape[blocked] = 2
            feeds = {
                "x": RNG.integers(0, 8, (32, 32)).astype(dtype), "i": np.array([[1, -2], [9, 0]]),
                "s": RNG.uniform(1e-3, 0.2, shape).astype(np.float32), "z": RNG.integers(0, 8, shape).astype(dtype),
            }  # fmt: skip
            attrs = {"block_size": 16, "gather_axis": gathered, "quantize_axis": blocked}
            agree("GatherBlockQuantized", feeds, constants=("x", "s", "z"), **attrs)


def test_gradients_reach_the_operand_of_quantized_weights() -> None:
    feeds = {
        "a": np.zeros((2, 32), np.float32), "b": RNG.integers(0, 256, (5, 2, 8)).astype(np.uint8),
        "s": np.full((5, 2), 0.1, np.float32),
    }  # fmt: skip
    for level in (0, 4):
        model = one_node("MatMulNBits", feeds, domain=MS, K=32, N=5, block_size=16, accuracy_level=level)
        a = torch.randn(2, 32, requires_grad=True)
        values = {"a": a, "b": torch.from_numpy(feeds["b"]), "s": torch.from_numpy(feeds["s"])}
        assert node_call(model).attr("accuracy_level") == level
        ours(model, values)[0].sum().backward()
        ones = torch.eye(32)
        table = ours(one_node("MatMulNBits", feeds, domain=MS, K=32, N=5, block_size=16), {**values, "a": ones})[0]
        torch.testing.assert_close(a.grad, table.sum(1).expand(2, 32), rtol=0.05, atol=0.05)
