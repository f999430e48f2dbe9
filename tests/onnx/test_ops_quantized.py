"""Quantization: official cases, bit for bit as ONNX Runtime, small floats, and the gradient through it all."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, check_case, official_cases, one_node, ours, to_numpy

from nnfuzz.onnx.ops import Call, find_operator
from nnfuzz.onnx.ops.grid import Grid, snap
from nnfuzz.onnx.ops.narrow import round_to_float4, round_to_float8

OPS = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
    "MatMulInteger",
)  # fmt: skip
SEEDS = st.integers(0, 10**6)
EIGHT = st.sampled_from([np.uint8, np.int8])
WIDTHS = st.sampled_from([np.uint8, np.int8, np.uint16, np.int16])


@pytest.mark.parametrize("op", OPS)
def test_official_cases(op: str) -> None:
    cases = official_cases(op)
    assert cases
    for case in cases:
        check_case(case)


def any_of(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def weights_of(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Signed ones use seven bits: ONNX Runtime's sums of uint8 times int8 saturate on x86 without VNNI beyond that."""
    return rng.integers(-64, 64, shape).astype(dtype) if dtype == np.int8 else any_of(rng, dtype, *shape)


def scales(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return np.asarray(rng.uniform(1e-3, 0.2, shape), np.float32)


def same(op: str, feeds: dict[str, Any], outputs: tuple[str, ...] = ("y",), **rest: Any) -> None:
    """Equal to the runtime in every bit, and by the floats that carry values where gradients are wanted."""
    found, expected = both(op, feeds, outputs, **rest)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)
    model = one_node(op, feeds, outputs, **rest)
    given_ = {k: torch.from_numpy(np.asarray(v)) for k, v in feeds.items() if v is not None}
    first = next(iter(given_))
    given_[first] = given_[first].to(torch.float32).requires_grad_()
    carried = ours(model, given_)[0]
    assert carried.requires_grad
    np.testing.assert_array_equal(carried.detach().numpy().astype(expected[0].dtype), expected[0], strict=True)


@given(SEEDS, WIDTHS, st.sampled_from(["tensor", "axis", "block"]), st.integers(-3, 3))
def test_quantize_and_dequantize(seed: int, dtype: Any, kind: str, magnitude: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(3, 4, 5)) * 10.0**magnitude).astype(np.float32)
    x[0, 0] = [np.inf, -np.inf, 1e30, 0.0, -1e-30]
    shape: tuple[int, ...] = {"tensor": (), "axis": (4,), "block": (3, 4, 2)}[kind]
    attrs = {"tensor": {}, "axis": {"axis": 1}, "block": {"axis": 2, "block_size": 3}}[kind]
    feeds = {"x": x, "s": scales(rng, *shape), "z": any_of(rng, dtype, *shape)}
    same("QuantizeLinear", feeds, opset=21, **attrs)
    same("DequantizeLinear", {**feeds, "x": any_of(rng, dtype, 3, 4, 5)}, opset=21, **attrs)
    if kind == "tensor":
        same("QuantizeLinear", feeds, domain="com.microsoft")
        same("DequantizeLinear", {**feeds, "x": any_of(rng, dtype, 3, 4, 5)}, domain="com.microsoft")


@pytest.mark.parametrize("zero", [0, 1, 100])
def test_ties_go_to_the_even_neighbour_before_the_zero_point_is_added(zero: int) -> None:
    x = np.arange(-4, 4, 0.5, dtype=np.float32)
    same("QuantizeLinear", {"x": x, "s": np.float32(1), "z": np.array(zero, np.uint8)}, opset=13)


@pytest.mark.parametrize("opset", [19, 21, 23])
def test_halves_are_divided_in_single_precision_until_opset_23(opset: int) -> None:
    x = (np.random.default_rng(0).normal(size=5000) * 40).astype(np.float16)
    feeds = {"x": x, "s": np.array(0.37, np.float16), "z": np.array(100, np.uint8)}
    found, expected = both("QuantizeLinear", feeds, opset=opset)
    np.testing.assert_array_equal(to_numpy(found[0]), expected[0], strict=True)


def test_nan_becomes_the_smallest_value_as_in_the_runtime() -> None:
    x = np.full(33, np.nan, np.float32)
    for dtype in (np.uint8, np.int8, np.int16):
        same("QuantizeLinear", {"x": x, "s": np.float32(0.5), "z": np.array(3, dtype)}, opset=21)


def test_the_target_type_is_named_by_output_dtype_or_uint8() -> None:
    x = np.array([-1.0, 300.0], np.float32)
    for attrs, wanted in (({}, [0, 255]), ({"output_dtype": 3}, [-1, 127]), ({"output_dtype": 22}, [-1, 7])):
        model = one_node("QuantizeLinear", {"x": x, "s": np.float32(1)}, **attrs)
        assert ours(model, {"x": torch.from_numpy(x), "s": torch.tensor(1.0)})[0].tolist() == wanted


def test_a_narrow_zero_point_is_told_by_its_onnx_type_alone() -> None:
    x, one, zero = torch.tensor([-9.0, 9.0]), torch.tensor(1.0), torch.tensor(1, dtype=torch.int8)
    quantize = find_operator("", "QuantizeLinear")
    assert quantize is not None
    names = ("x", "s", "z")
    for call, wanted in (
        (Call("QuantizeLinear", inputs=names, types=(1, 1, 22)), [-8, 7]),
        (Call("QuantizeLinear", inputs=names, attrs={"output_dtype": 26}), [-2, 1]),
        (Call("QuantizeLinear", inputs=names), [-8, 10]),
    ):
        assert quantize(call, x, one, zero).tolist() == wanted
    with pytest.raises(ValueError, match="a zero point of which the file does not tell the element type"):
        quantize(Call("QuantizeLinear", inputs=names), x, one, torch.tensor(0.0))


@given(SEEDS, EIGHT, EIGHT, st.sampled_from(["none", "tensor", "column"]))
def test_integer_products(seed: int, left: Any, right: Any, kind: str) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 20, 3)
    zero = None if kind == "none" else any_of(rng, right, *((n,) if kind == "column" else ()))
    feeds = {"a": any_of(rng, left, 2, m, k), "b": weights_of(rng, right, k, n), "az": any_of(rng, left), "bz": zero}
    same("MatMulInteger", feeds, opset=10)


def test_integer_products_beyond_what_a_single_float_holds() -> None:
    a, b = np.full((1, 3000), 255, np.uint8), np.full((3000, 1), 255, np.uint8)
    b[0] = 254
    assert 3000 * 255 * 255 > 2**24
    same("MatMulInteger", {"a": a, "b": b}, opset=10)


@given(SEEDS, st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]), st.booleans())
def test_quantized_products(seed: int, types: tuple[Any, Any], by_column: bool) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 20, 3)
    columns = (n,) if by_column else ()
    feeds = {
        "a": any_of(rng, types[0], m, k), "as": scales(rng), "az": any_of(rng, types[0]),
        "b": weights_of(rng, types[1], k, n), "bs": scales(rng, *columns), "bz": any_of(rng, types[1], *columns),
        "ys": np.asarray(scales(rng) * k * 10, np.float32), "yz": any_of(rng, types[0]),
    }  # fmt: skip
    same("QLinearMatMul", feeds, opset=10)


@given(
    SEEDS,
    st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
    st.booleans(),
    st.sampled_from([{"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {}]),
)
def test_convolutions(seed: int, types: tuple[Any, Any], by_channel: bool, pads: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    group, channels = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    outputs = 2 * group
    attrs = {"group": group, "strides": [1, 2], "dilations": [1, 1 if "auto_pad" in pads else 2], **pads}
    x, w = any_of(rng, types[0], 2, channels * group, 7, 6), weights_of(rng, types[1], outputs, channels, 3, 2)
    zero = any_of(rng, types[0])
    if not by_channel:
        feeds = {"x": x, "w": w, "xz": zero, "wz": any_of(rng, types[1])}
        same("ConvInteger", feeds, opset=10, **attrs)
    feeds = {
        "x": x, "xs": scales(rng), "xz": zero,
        "w": w, "ws": scales(rng, *((outputs,) if by_channel else ())),
        "wz": np.full((outputs,) if by_channel else (), any_of(rng, types[1]), types[1]),
        "ys": np.asarray(scales(rng) * channels * 40, np.float32), "yz": any_of(rng, types[0]),
        "b": rng.integers(-9999, 9999, outputs).astype(np.int32),
    }  # fmt: skip
    same("QLinearConv", feeds, opset=10, **attrs)


@given(SEEDS, st.integers(-30, 30), st.sampled_from(["both", "positive", "negative", "zero"]))
def test_dynamic_quantization(seed: int, exponent: int, sign: str) -> None:
    x = np.random.default_rng(seed).normal(size=(3, 5)).astype(np.float32) * np.float32(2.0**exponent)
    x = {"both": x, "positive": np.abs(x), "negative": -np.abs(x), "zero": x * 0}[sign]
    found, expected = both("DynamicQuantizeLinear", {"x": x}, ["y", "s", "z"], opset=11)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(f), e, strict=True)


FLOAT8 = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_small_floats_as_another_library_rounds_them(dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    x = torch.cat([torch.linspace(-1.2 * top, 1.2 * top, 30001), torch.logspace(-12, 12, 4001, base=2)])
    with np.errstate(over="ignore"):
        expected = x.numpy().astype(FLOAT8[dtype]).astype(np.float32)
    np.testing.assert_array_equal(round_to_float8(x, dtype, saturate=False).numpy(), expected)
    inside = np.isfinite(expected)
    saturated = np.where(inside, expected, np.copysign(top, x.numpy()))
    np.testing.assert_array_equal(round_to_float8(x, dtype).numpy(), saturated)


def test_four_bit_floats_as_another_library_rounds_them() -> None:
    x = torch.linspace(-8, 8, 4001)
    expected = x.numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(round_to_float4(x).numpy(), expected)


def test_infinity_saturates_where_the_format_has_one() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan])
    for dtype in FLOAT8:
        top = torch.nan if "uz" in str(dtype) else torch.finfo(dtype).max
        wanted = torch.tensor([top, -top, torch.nan])
        torch.testing.assert_close(round_to_float8(x, dtype), wanted, equal_nan=True, rtol=0, atol=0)


GRIDS = st.sampled_from([Grid(2), Grid(3), Grid(4), Grid(22), Grid(17), Grid(19, saturate=False), Grid(23)])


@given(GRIDS, st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1), st.integers(0, 7))
def test_carried_values_are_exactly_the_stored_ones(grid: Grid, numbers: list[float], zero: int) -> None:
    u = torch.tensor(numbers)
    point = None if grid.fractional else torch.tensor(zero, dtype=torch.uint8)
    stored = snap(u, grid, point)
    carried = snap(u.requires_grad_(), grid, point)
    assert stored.dtype == grid.dtype
    torch.testing.assert_close(carried.detach(), stored.float(), rtol=0, atol=0, equal_nan=True)


def test_the_gradient_is_that_of_the_clamp() -> None:
    u = torch.tensor([-1.0, 0.0, 0.3, 254.6, 255.0, 256.0, torch.nan, torch.inf], requires_grad=True)
    snap(u, Grid(2)).sum().backward()
    assert u.grad is not None
    assert u.grad.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]


def test_gradients_go_through_a_quantized_layer() -> None:
    """Quantize, multiply by integers, requantize, dequantize: near the gradient of the layer in floats."""
    rng = np.random.default_rng(0)
    weight = any_of(rng, np.int8, 6, 4)
    small, unit, zero = torch.tensor(0.02), torch.tensor(0.1), torch.tensor(128, dtype=torch.uint8)
    weights = (torch.from_numpy(weight), torch.tensor(0.01), torch.tensor(0, dtype=torch.int8))

    def run(op: str, *values: torch.Tensor) -> torch.Tensor:
        function = find_operator("", op)
        assert function is not None
        result = function(Call(op), *values)
        assert isinstance(result, torch.Tensor)
        return result

    def layer(x: torch.Tensor) -> torch.Tensor:
        q = run("QuantizeLinear", x, small, zero)
        q = run("QLinearMatMul", q, small, zero, *weights, unit, zero)
        return run("DequantizeLinear", q, unit, zero)

    x = torch.randn(3, 6)
    plain = layer(x)
    x.requires_grad_()
    y = layer(x)
    assert torch.equal(y, plain)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (0.01 * weights[0].float()).sum(1).expand(3, 6), rtol=1e-4, atol=1e-5)


def test_gradients_go_through_dynamic_quantization_scale_included() -> None:
    x = torch.tensor([-1.0, 0.4, 2.0], requires_grad=True)
    model = one_node("DynamicQuantizeLinear", {"x": np.zeros(3, np.float32)}, ["y", "s", "z"], opset=11)
    y, scale, zero = ours(model, {"x": x})
    assert zero.dtype == torch.uint8
    assert not zero.requires_grad
    ((y - zero) * scale).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3), rtol=0, atol=0.02)


def test_batches_under_vmap() -> None:
    x = torch.randn(4, 3, 5) * torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None, None]
    model = one_node("DynamicQuantizeLinear", {"x": np.zeros((3, 5), np.float32)}, ["y", "s", "z"], opset=11)
    together = torch.func.vmap(lambda v: tuple(ours(model, {"x": v})))(x)
    for i, alone in enumerate(x):
        for a, b in zip(together, ours(model, {"x": alone}), strict=True):
            assert torch.equal(a[i], b)
