"""Layers as a person means them, and copies in which one of them is taken out of the quantization by its graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import constant, model, node, value

import onnx
from nnfuzz.onnx import load
from nnfuzz.onnx.blocks import blocks, told
from nnfuzz.onnx.copies import Maker, Way, in_order
from nnfuzz.onnx.partly import with_floats
from nnfuzz.onnx.runtime import OnnxModel

SEEDS = torch.rand(12, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1


def residual() -> onnx.ModelProto:
    """Two convolutions with an activation each, an addition of both, pooling, a linear layer."""
    draw = np.random.default_rng(0)
    first, second, last = (
        draw.normal(size=s).astype(np.float32) for s in ((6, 2, 3, 3), (6, 6, 3, 3), (6, 4))
    )  # fmt: skip
    return model(
        [
            node("Conv", "x w1", "a", "one", pads=[1, 1, 1, 1]),
            node("HardSwish", "a", "b", "bend"),
            node("Conv", "b w2", "c", "two", pads=[1, 1, 1, 1]),
            node("Sigmoid", "c", "d", "gate"),
            node("Add", "b d", "e", "join"),
            node("GlobalAveragePool", "e", "f", "pool"),
            node("Flatten", "f", "g", "flat"),
            node("MatMul", "g w3", "y", "three"),
        ],
        [value("x", "n", 2, 8, 8)],
        [value("y", "n", 4)],
        [constant("w1", first), constant("w2", second), constant("w3", last)],
        opset=17,
    )


def test_a_layer_is_a_node_with_weights_and_what_follows_it() -> None:
    assert blocks(residual().graph) == [["one", "bend"], ["two", "gate", "join", "pool", "flat"], ["three"]]


def test_nodes_before_all_weights_are_a_layer_of_their_own() -> None:
    proto = model(
        [node("Neg", "x", "a", "turn"), node("MatMul", "a w", "y", "times")],
        [value("x", "n", 4)], [value("y", "n", 3)], [constant("w", np.ones((4, 3), np.float32))],
    )  # fmt: skip
    assert blocks(proto.graph) == [["turn"], ["times"]]


def test_a_product_of_two_values_starts_no_layer() -> None:
    proto = model(
        [node("MatMul", "x w", "a", "times"), node("MatMul", "a x", "y", "both")],
        [value("x", 3, 3)], [value("y", 3, 3)], [constant("w", np.ones((3, 3), np.float32))],
    )  # fmt: skip
    assert blocks(proto.graph) == [["times", "both"]]


def test_what_a_layer_is_made_of() -> None:
    assert told(["Conv"]) == "Conv"
    assert told(["Conv", "Add", "Clip", "Add", "Mul", "Div", "Relu"]) == "Conv with Add, Clip, Mul and 2 more"


@pytest.mark.parametrize("way", ["int8-static", "int8-dynamic"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_taken_out_by_the_graph_is_one_left_out_of_the_quantization(way: str, layer: int) -> None:
    copies = Maker(load(residual()), Way.of(way), [{"x": SEEDS}])
    (name, block) = list(copies.blocks().items())[layer]
    assert name == block.parts[0]
    plain, anew = copies.sketch(block.parts), copies.model(block.parts)
    mine, theirs, whole = plain(SEEDS)["y"], anew(SEEDS)["y"], copies.model()(SEEDS)["y"]
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.equal(mine, whole)


@pytest.mark.parametrize("way", ["int8-static", "int8-dynamic"])
def test_all_layers_taken_out_leave_the_model(way: str) -> None:
    whole = load(residual())
    copies = Maker(whole, Way.of(way), [{"x": SEEDS}])
    everything = {n.name for n in copies.prepared.graph.node}
    made = with_floats(copies.make(), copies.prepared, everything, copies.layers(), in_order)
    assert made is not None
    onnx.checker.check_model(made)
    assert not [n for n in made.graph.node if "Quantize" in n.op_type or n.op_type.endswith("Integer")]
    torch.testing.assert_close(OnnxModel(made)(SEEDS)["y"], whole(SEEDS)["y"])


def test_a_value_that_the_copy_does_not_have_is_no_reason_to_guess() -> None:
    copies = Maker(load(residual()), Way.of("int8-static"), [{"x": SEEDS}])
    copy = onnx.ModelProto()
    copy.CopyFrom(copies.make())
    for n in copy.graph.node:  # "b" under another name, as where the converter folds a node into its neighbour
        for names in (n.input, n.output):
            for i, name in enumerate(names):
                names[i] = name.replace("b", "q") if name in ("b", "b_DequantizeLinear_Output") else name
    assert with_floats(copy, copies.prepared, {"two"}, copies.layers(), in_order) is None
