"""Arithmetic, activations, reductions, shapes, casts: each operator against ONNX Runtime, in opsets that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import by_runtime, constant, model, node, value
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, to_numpy
from torch.utils._python_dispatch import TorchDispatchMode

from nnfuzz.errors import UsageError
from nnfuzz.onnx.program import OnnxProgram
from onnx import TensorProto, helper

RNG = np.random.default_rng(7)
X = RNG.normal(size=(3, 4)).astype(np.float32)
Y = RNG.normal(size=(3, 4)).astype(np.float32)
CUBE = RNG.normal(size=(2, 3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
INTS = np.array([-7, -3, 0, 3, 7, 2**31 - 1], np.int32)
DIVISORS = np.array([2, -2, 5, -5, 3, 7], np.int32)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf], np.float32)
TIES = np.array([[1, 3, 3], [5, 5, 2]], np.float32)
MASK = RNG.random((3, 4)) > 0.5


def i64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[(op, [X, Y], {"opset": 14}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")],
    *[(op, [X, Y[:1]], {"opset": 7}) for op in ("Add", "Sub", "Mul", "Div", "Greater", "Less")],
    *[(op, [INTS, DIVISORS], {}) for op in ("Add", "Mul", "Div", "Mod", "Max", "Min", "Equal", "GreaterOrEqual")],
    ("Mod", [INTS, DIVISORS], {"fmod": 1}),
    ("Mod", [X, Y], {"fmod": 1}),
    ("Div", [np.array([7, 250], np.uint8), np.array([2, 3], np.uint8)], {}),
    ("Pow", [POSITIVE, np.array(3, np.int64)], {}),
    ("Pow", [X, np.float32(2)], {}),
    ("Pow", [np.array([2, 3, 4], np.int32), np.float32(0.5)], {}),
    ("Pow", [np.array([2, -3, 4], np.int64), i64(3)], {}),
    *[(op, [X], {}) for op in ("Abs", "Neg", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Erf",
                               "Floor", "Ceil", "Sign", "Reciprocal", "Sigmoid", "Tanh", "Relu", "Softsign", "Mish",
                               "HardSwish", "Softplus", "Elu", "Selu", "Celu", "LeakyRelu", "ThresholdedRelu",
                               "HardSigmoid", "Shrink", "Identity", "IsNaN")],
    *[(op, [POSITIVE], {}) for op in ("Log", "Sqrt")],
    *[(op, [np.tanh(X)], {}) for op in ("Acos", "Asin", "Atanh")],
    ("Acosh", [POSITIVE + 1], {}),
    ("Round", [HALVES], {}),
    ("Gelu", [X], {}),
    ("Gelu", [X], {"approximate": "tanh"}),
    ("Elu", [X], {"alpha": 0.3}),
    ("Celu", [X], {"alpha": 0.3}),
    ("Selu", [X], {"alpha": 0.3, "gamma": 2.0}),
    ("Shrink", [X], {"lambd": 0.2, "bias": 0.1}),
    ("PRelu", [CUBE, Y[:, :1]], {}),
    ("Clip", [X], {"opset": 6 + 1, "min": -0.5}),
    ("Clip", [X, np.float32(-0.5), np.float32(0.5)], {}),
    ("Clip", [INTS, None, np.int32(3)], {}),
    ("Clip", [X, np.float32(0.5), np.float32(-0.5)], {}),
    *[(op, [CUBE], {"opset": opset}) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 11, 13)],
    *[(op, [CUBE], {"opset": opset, "axis": 2}) for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (7, 13)],
    ("IsInf", [np.array([np.inf, -np.inf, 1, np.nan], np.float32)], {"detect_negative": 0}),
    ("BitShift", [np.array([1, 128, 255], np.uint8), np.array([1, 3, 7], np.uint8)], {"direction": "RIGHT"}),
    ("BitShift", [np.array([1, 2**63], np.uint64), np.array([1, 3], np.uint64)], {"direction": "RIGHT"}),
    *[(op, [INTS, DIVISORS], {"opset": 18}) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    ("BitwiseNot", [INTS], {"opset": 18}),
    *[(op, [MASK, MASK[:1]], {}) for op in ("And", "Or", "Xor")],
    ("Not", [MASK], {}),
    ("Where", [MASK, X, Y], {}),
    ("MatMul", [CUBE, CUBE.transpose(0, 2, 1)], {}),
    ("MatMul", [X[0], Y.T], {}),
    ("Gemm", [X, Y, np.float32(1)], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [X, Y], {"transA": 1, "alpha": 0.5}),
    ("Einsum", [X, Y], {"equation": "ij, kj -> ik"}),
    ("Det", [np.stack([X[:, :3], Y[:, :3]])], {}),
    ("Trilu", [CUBE, i64(1)[0]], {"upper": 0}),
    ("EyeLike", [X], {"k": 1, "dtype": TensorProto.DOUBLE}),
    *[(op, [TIES], {"axis": 1, "select_last_index": last, "keepdims": last}) for op in ("ArgMax", "ArgMin")
      for last in (0, 1)],
    *[("CumSum", [CUBE, np.int32(1)], {"exclusive": e, "reverse": r}) for e in (0, 1) for r in (0, 1)],
    ("Reshape", [CUBE, i64(0, -1)], {}),
    ("Reshape", [np.zeros((0, 3), np.float32), i64(0, 3)], {"allowzero": 1}),
    ("Transpose", [CUBE], {}),
    ("Transpose", [CUBE], {"perm": [1, 2, 0]}),
    ("Squeeze", [CUBE[:, :1]], {}),
    ("Squeeze", [CUBE[:, :1], i64(-2)], {}),
    ("Squeeze", [CUBE[:, :1]], {"opset": 11, "axes": [1]}),
    ("Unsqueeze", [X, i64(-1, 0)], {}),
    ("Unsqueeze", [X], {"opset": 11, "axes": [0, 3]}),
    *[("Flatten", [CUBE], {"axis": a}) for a in (0, 1, -1, 3)],
    ("Concat", [X, Y], {"axis": -1}),
    ("Expand", [X[:, :1], i64(2, 1, 4)], {}),
    ("Tile", [X, i64(2, 3)], {}),
    ("Shape", [CUBE], {"start": 1}),
    ("Shape", [CUBE], {"start": -5, "end": -1}),
    ("Size", [CUBE], {}),
    ("ConstantOfShape", [i64(2, 3)], {}),
    ("Range", [np.float32(1), np.float32(2.05), np.float32(0.25)], {}),
    ("Range", [np.int64(10), np.int64(3), np.int64(-2)], {}),
    ("Range", [np.int64(1), np.int64(3), np.int64(-2)], {}),
    ("NonZero", [MASK], {}),
    ("Compress", [X, np.array([True, False, True])], {"axis": 1}),
    ("Compress", [X, np.array([True, False, True])], {}),
    ("ReverseSequence", [CUBE, i64(1, 2, 0)], {"time_axis": 0, "batch_axis": 1}),
    ("ReverseSequence", [CUBE, i64(3, 2)], {"time_axis": 1, "batch_axis": 0}),
    ("OneHot", [i64(1, -1, 9), i64(4), np.array([2, 5], np.float32)], {"axis": 0}),
    ("Dropout", [X], {}),
    *[("DepthToSpace", [RNG.normal(size=(1, 8, 2, 3)).astype("f")], {"blocksize": 2, "mode": m})
      for m in ("DCR", "CRD")],
    ("SpaceToDepth", [RNG.normal(size=(1, 2, 4, 6)).astype("f")], {"blocksize": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "rest"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_one_node(op: str, arrays: list[Any], rest: dict[str, Any]) -> None:
    inputs = {f"i{n}": None if a is None else np.asarray(a) for n, a in enumerate(arrays)}
    _same(*both(op, inputs, **{"opset": 20, **rest}))


def _same(found: list[torch.Tensor], expected: list[Any], rtol: float = 2e-6) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(ours), theirs, rtol=rtol, atol=2e-6, strict=True)


REDUCTIONS = ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
              "ReduceProd", "ReduceSum", "ReduceSumSquare"]  # fmt: skip
AXES = st.sets(st.integers(-3, 2))


@given(
    st.sampled_from(REDUCTIONS),
    st.sets(st.integers(-3, 2)),
    st.booleans(),
    st.sampled_from([11, 13, 18]),
    st.booleans(),
)
def test_reductions(op: str, axes: set[int], keep: bool, opset: int, noop: bool) -> None:
    axes = {a for a in axes if a >= 0 or a + 3 not in axes}
    x = np.abs(CUBE) + np.float32(0.1) if op == "ReduceLogSum" else CUBE
    as_input = opset == 18 or (opset == 13 and op == "ReduceSum")
    rest: dict[str, Any] = {"keepdims": int(keep), "opset": opset}
    inputs: dict[str, Any] = {"x": x}
    if axes and as_input:
        inputs["axes"] = np.array(sorted(axes), np.int64)
    elif axes:
        rest["axes"] = sorted(axes)
    if as_input and noop and axes:
        rest["noop_with_empty_axes"] = 1
    _same(*both(op, inputs, **rest), rtol=2e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL1", "ReduceProd"])
def test_reductions_of_integers(op: str, dtype: type) -> None:
    _same(*both(op, {"x": np.array([[1, -4, 2], [-3, 5, -9]], dtype), "axes": i64(1)}, opset=18))


EDGES = st.one_of(st.integers(-6, 6), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]))


@given(st.lists(st.tuples(EDGES, EDGES, st.integers(-3, 3).filter(bool)), min_size=1, max_size=3), st.booleans())
def test_slices(cuts: list[tuple[int, int, int]], named: bool) -> None:
    # What the runtime makes of a largest number as the end of a backward slice is its own.
    cuts = [(a, min(b, 99) if step < 0 else b, step) for a, b, step in cuts]
    starts, ends, steps = (np.array(column, np.int64) for column in zip(*cuts, strict=True))
    inputs = {"x": CUBE, "starts": starts, "ends": ends, "axes": np.arange(-len(cuts), 0), "steps": steps}
    if not named:
        inputs["axes"] = np.arange(len(cuts))
    _same(*both("Slice", inputs))


@given(st.lists(st.integers(-1, 1), min_size=6, max_size=6), st.sampled_from(["constant", "edge", "reflect", "wrap"]))
def test_pads(pads: list[int], mode: str) -> None:
    x = np.arange(80, dtype=np.float32).reshape(4, 4, 5)  # two elements are left to mirror when one goes on each side
    inputs: dict[str, Any] = {"x": x, "pads": np.array(pads)}
    if mode == "constant":
        inputs["value"] = np.float32(1.5)
    _same(*both("Pad", inputs, mode=mode, opset=19))


def test_pads_of_some_axes_and_of_old_opsets() -> None:
    _same(*both("Pad", {"x": CUBE, "pads": i64(2, 1), "v": None, "axes": i64(-1)}, mode="reflect", opset=18))
    _same(*both("Pad", {"x": CUBE}, mode="constant", pads=[0, 0, 1, 0, 2, 0], value=3.0, opset=10))


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_splits(opset: int) -> None:
    outputs = ("a", "b", "c")
    equal = {"num_outputs": 3} if opset == 18 else {}
    _same(*both("Split", {"x": RNG.normal(size=(2, 6))}, outputs, axis=1, opset=opset, **equal))
    if opset == 11:
        _same(*both("Split", {"x": CUBE}, outputs, axis=2, split=[1, 0, 3], opset=opset))
    else:
        _same(*both("Split", {"x": CUBE, "n": i64(1, 0, 3)}, outputs, axis=2, opset=opset))
    if opset == 18:
        _same(*both("Split", {"x": RNG.normal(size=(2, 7))}, outputs, axis=1, num_outputs=3, opset=opset))


def test_old_slices_have_attributes() -> None:
    _same(*both("Slice", {"x": CUBE}, starts=[1, -2], ends=[3, 100], axes=[1, 2], opset=9))


TYPES = [
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("of", TYPES)
def test_casts(of: str, to: str) -> None:
    numbers = (
        np.array([0, 1, 2, 100]) if of == "bool" or "u" in of or "u" in to else np.array([0, 1.75, -2.25, 100, -100])
    )
    _same(*both("Cast", {"x": numbers.astype(of)}, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)), opset=19))


def test_wide_integers_wrap_and_large_floats_overflow() -> None:
    _same(*both("Cast", {"x": np.array([200, -129, 70000])}, to=TensorProto.INT8))
    _same(*both("Cast", {"x": np.array([1e6, -1e6, 65519], np.float32)}, to=TensorProto.FLOAT16))
    _same(*both("Cast", {"x": np.array([np.nan, 0.1, -0.0], np.float32)}, to=TensorProto.BOOL))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_casts_to_eight_bits_and_back(to: int, saturate: int) -> None:
    """ONNX Runtime has no arrays of these, so the way back is in the model."""
    proto = model(
        [node("Cast", "x", "small", to=to, saturate=saturate), node("Cast", "small", "y", to=TensorProto.FLOAT)],
        [value("x", 9)],
        [value("y", 9)],
        opset=19,
    )
    x = torch.tensor([0.3, -1.1, 447.0, 449.0, 470.0, 1e6, -1e9, 1e-9, torch.nan])
    np.testing.assert_array_equal(OnnxProgram(proto)(x)["y"].numpy(), by_runtime(proto, {"x": x})["y"])


@pytest.mark.parametrize("op", ["Exp", "Log", "Sqrt", "Softmax", "Tanh", "Erf", "Div"])
def test_an_operator_is_the_torch_operation_of_its_name(op: str) -> None:
    """So that what the catalogue of unsafe operations knows holds for it."""
    seen = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__.strip("_"))
            return func(*args, **(kwargs or {}))

    reads = "x w" if op == "Div" else "x"
    proto = model([node(op, reads, "y")], [value("x", 4)], [value("y", 4)], [constant("w", np.ones(4, "f"))])
    program = OnnxProgram(proto)
    x = torch.ones(4)
    with Names(), torch.no_grad():
        program(x)
    assert seen == [op.lower()]


def test_places_outside_a_sequence_are_told() -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s place", "y", "pick")]
    proto = model(nodes, [value("x", 2)], [value("y", 2)], [constant("place", np.int64(2))])
    with pytest.raises(UsageError, match=r"SequenceAt \(node 'pick'\) was given place 2 in a sequence of 2"):
        OnnxProgram(proto)(torch.zeros(2))
