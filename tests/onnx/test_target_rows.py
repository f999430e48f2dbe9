"""Many rows in parts of a size that suits the caches: the same as one by one, or not done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from target_zoo import BF16, FLOAT, INT64, classifier, model, node

import nnfuzz.onnx
from nnfuzz.onnx import together
from nnfuzz.onnx.runtime import OnnxModel, OnnxRuntimeError
from nnfuzz.onnx.together import LARGE_PART
from onnx import TensorProto, helper


@pytest.mark.parametrize("at_once", [1, 2, 3, 8, 9, 100])
def test_parts_give_what_one_call_gives(at_once: int) -> None:
    loaded = nnfuzz.onnx.load(classifier())
    x = torch.randn(9, 6)
    whole = loaded.run({"x": x}, ["h"])
    parts = loaded.run_rows({"x": x}, at_once, ["h"])
    assert parts is not None
    assert list(parts) == list(whole)
    for name, t in whole.items():
        assert torch.allclose(parts[name], t, atol=1e-6)
        assert parts[name].shape == t.shape


@pytest.mark.parametrize("kind", [FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, INT64, TensorProto.BOOL])
@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_large_results_are_written_where_they_belong(kind: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outputs, one of them small, one the input as it is, rows that do not come out even."""
    wide = LARGE_PART  # bytes at least
    nodes = [
        node("Mul", ["x", "w"], ["product"]),
        node("Cast", ["product"], ["y"], to=kind),
        node("Neg", ["x"], ["z"]),
        node("Identity", ["x"], ["same"]),
    ]
    outputs = [("y", kind, ["n", wide]), ("z", FLOAT, ["n", 1]), ("same", FLOAT, ["n", 1])]
    weights = {"w": np.random.default_rng(0).standard_normal((1, wide)).astype(np.float32)}
    loaded = nnfuzz.onnx.load(model(nodes, [("x", FLOAT, ["n", 1])], outputs, weights))
    written = []
    real = OnnxModel._written
    monkeypatch.setattr(OnnxModel, "_written", lambda *given: written.append(real(*given)) or written[-1])
    x = torch.randn(10, 1)
    whole = loaded.run({"x": x})
    for _ in range(2):  # the second time in memory that the first has used
        parts = loaded.run_rows({"x": x}, at_once)
        assert parts is not None
        assert list(parts) == list(whole)
        assert all(torch.equal(parts[n], t) and parts[n].dtype == t.dtype for n, t in whole.items())
        del parts
    assert all(written)
    assert len(written) >= 2


def test_large_results_that_do_not_fit_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of another shape than the first is asked for as it is, and then is no row of the whole; what ONNX Runtime
    refuses is said in its words."""
    monkeypatch.setattr(together, "LARGE_PART", 1)
    x = torch.full((6, 4), 2.0)
    ragged = as_long_as_its_largest()
    fits = ragged.run_rows({"x": x}, 2)
    assert fits is not None
    assert torch.equal(fits["y"], x[:, :2])
    x[5] = 3.0
    assert ragged.run_rows({"x": x}, 2) is None


def as_long_as_its_largest() -> OnnxModel:
    """Columns of the output: as many as the largest number of the input says."""
    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Cast", ["top"], ["to"], to=INT64),
        node("Unsqueeze", ["to", "zero"], ["end"]),
        node("Slice", ["x", "zero", "end", "one"], ["y"]),
    ]
    weights = {"zero": np.array([0]), "one": np.array([1])}
    return nnfuzz.onnx.load(model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", "k"])], weights))


def test_what_does_not_fit_together_is_not_joined() -> None:
    x = torch.full((6, 4), 2.0)
    ragged = as_long_as_its_largest()
    fits = ragged.run_rows({"x": x}, 2)
    assert fits is not None
    assert fits["y"].shape == (6, 2)
    x[5] = 3.0
    assert ragged.run_rows({"x": x}, 2) is None

    sums = model([node("ReduceSum", ["x"], ["y"], keepdims=1)], [("x", FLOAT, ["n", 4])], [("y", FLOAT, [1, 1])])
    assert nnfuzz.onnx.load(sums).run_rows({"x": x}, 2) is None

    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    split = model([node("SplitToSequence", ["x"], ["y"], axis=1)], [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 1])])
    split.graph.output[0].type.CopyFrom(sequence)
    assert nnfuzz.onnx.load(split).run_rows({"x": x}, 2) is None

    halves = model([node("Identity", ["x"], ["y"])], [("x", BF16, ["n", 4])], [("y", BF16, ["n", 4])])
    assert nnfuzz.onnx.load(halves).run_rows({"x": x.bfloat16()}, 2) is None


@pytest.mark.parametrize("large", [1, LARGE_PART])
def test_a_part_that_is_refused_is_said(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "LARGE_PART", large)
    gather = model(
        [node("Gather", ["table", "i"], ["y"], name="look_up")],
        [("i", INT64, ["n"])],
        [("y", FLOAT, ["n", 3])],
        {"table": np.ones((5, 3), np.float32)},
    )
    with pytest.raises(OnnxRuntimeError, match="look_up"):
        nnfuzz.onnx.load(gather).run_rows({"i": torch.tensor([0, 1, 2, 9])}, 2)
