"""Fourier transforms, windows, mel filters and n-grams: official cases, and ONNX Runtime beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, check_case, official_cases, one_node, ours, to_numpy


@pytest.mark.parametrize(
    "op", ["DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "TfIdfVectorizer"]
)
def test_official_cases(op: str) -> None:
    cases = official_cases(op)
    assert cases
    for case in cases:
        check_case(case, atol=1e-6)  # two cases expect the rounding errors of another transform


def scalar(value: int) -> np.ndarray:
    return np.array(value, np.int64)


@given(
    st.sampled_from([17, 20]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([0, 1]),
    st.sampled_from(["complex", "real", "onesided"]),
    st.sampled_from([None, 5, 12]),
    st.sampled_from([1, 2, -2]),
)
def test_dft_as_the_runtime(opset: int, dtype: type, inverse: int, kind: str, length: int | None, axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 9, 6, 2 if kind == "complex" else 1)).astype(dtype)
    feeds = {"x": x, "n": None if length is None else scalar(length)}
    attrs = {"onesided": int(kind == "onesided" and not inverse), "inverse": inverse}
    if opset == 17:
        attrs["axis"] = axis
    else:
        feeds["axis"] = scalar(axis)
    found, expected = both("DFT", feeds, opset=opset, **attrs)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], atol=5e-5, strict=True)


@given(st.integers(4, 20), st.booleans())
def test_the_inverse_of_a_onesided_transform(length: int, told: bool) -> None:
    """Where the length fits the half that is given; ONNX Runtime differs from ONNX where it does not."""
    signal = torch.randn(1, length, 1, dtype=torch.float64)
    half = torch.view_as_real(torch.fft.rfft(signal[..., 0]))
    feeds = {"x": half.numpy(), "n": scalar(length) if told or length % 2 else None, "axis": scalar(1)}
    found, expected = both("DFT", feeds, opset=20, inverse=1, onesided=1)
    torch.testing.assert_close(found[0], signal)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], atol=1e-9, strict=True)


@given(st.sampled_from([(2, 40), (2, 40, 1), (2, 40, 2)]), st.booleans(), st.booleans())
def test_stft_as_the_runtime(shape: tuple[int, ...], onesided: bool, windowed: bool) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=shape).astype(np.float32),
        "step": scalar(7),
        "w": rng.normal(size=12).astype(np.float32) if windowed else None,
        "n": scalar(12),
    }
    found, expected = both("STFT", feeds, opset=17, onesided=int(onesided and shape[-1] != 2))
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], atol=1e-4, strict=True)


@given(
    st.sampled_from(["HannWindow", "HammingWindow", "BlackmanWindow"]),
    st.integers(2, 30),
    st.booleans(),
    st.sampled_from([1, 11]),
)
def test_windows_as_the_runtime(op: str, size: int, periodic: bool, dtype: int) -> None:
    found, expected = both(op, {"n": scalar(size)}, opset=17, periodic=int(periodic), output_datatype=dtype)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], atol=1e-6, strict=True)


@pytest.mark.parametrize(
    ("bins", "length", "rate", "low", "high"),
    [(8, 16, 8192, 0, 4096), (20, 512, 16000, 0, 8000), (40, 400, 16000, 20, 7600), (5, 64, 44100, 100, 5000)],
)
def test_mel_filters_as_the_runtime(bins: int, length: int, rate: int, low: float, high: float) -> None:
    feeds = {"bins": scalar(bins), "length": scalar(length), "rate": scalar(rate)}
    feeds |= {"low": np.array(low, np.float32), "high": np.array(high, np.float32)}
    found, expected = both("MelWeightMatrix", feeds, opset=17)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], atol=1e-6, strict=True)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(0, 3),
    st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 3)]),
    st.sampled_from(["TF", "IDF", "TFIDF"]),
)
def test_n_grams_as_the_runtime(numbers: list[int], skip: int, lengths: tuple[int, int], mode: str) -> None:
    attrs = {
        "mode": mode,
        "min_gram_length": lengths[0],
        "max_gram_length": lengths[1],
        "max_skip_count": skip,
        "ngram_counts": [0, 3, 7],
        "ngram_indexes": [0, 1, 2, 4, 3, 5],
        "pool_int64s": [0, 1, 2, 0, 1, 1, 1, 0, 1, 2],
        "weights": [0.5, 1.5, 2.0, 3.0, 0.25, 1.0],
    }
    found, expected = both("TfIdfVectorizer", {"x": np.array(numbers)}, opset=9, **attrs)
    np.testing.assert_allclose(to_numpy(found[0]), expected[0], strict=True)


def test_transforms_are_differentiable_and_take_halves() -> None:
    x = torch.randn(1, 6, 1, dtype=torch.float64, requires_grad=True)
    model = one_node("DFT", {"x": x.detach().numpy()}, opset=17, axis=1, onesided=1)
    assert torch.autograd.gradcheck(lambda v: ours(model, {"x": v})[0], x)
    half = ours(model, {"x": x.detach().half()})[0]
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), ours(model, {"x": x.detach()})[0], atol=1e-2, rtol=1e-2)


def test_strings_are_said_to_be_unsupported() -> None:
    attrs = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    model = one_node(
        "TfIdfVectorizer",
        {"x": np.array([1])},
        opset=9,
        ngram_counts=[0],
        ngram_indexes=[0],
        pool_strings=["a"],
        **attrs,
    )
    with pytest.raises(ValueError, match=r"TfIdfVectorizer of opset 9 \(node .*\): n-grams of strings"):
        ours(model, {"x": torch.tensor([1])})
