"""Many rows in parts of a size that suits the caches: the same as one by one, or not done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from target_zoo import BF16, FLOAT, INT64, classifier, model, node

import nnfuzz.onnx
from nnfuzz.onnx.runtime import OnnxModel, OnnxRuntimeError
from onnx import helper


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


def test_a_part_that_is_refused_is_said() -> None:
    gather = model(
        [node("Gather", ["table", "i"], ["y"], name="look_up")],
        [("i", INT64, ["n"])],
        [("y", FLOAT, ["n", 3])],
        {"table": np.ones((5, 3), np.float32)},
    )
    with pytest.raises(OnnxRuntimeError, match="look_up"):
        nnfuzz.onnx.load(gather).run_rows({"i": torch.tensor([0, 1, 2, 9])}, 2)
