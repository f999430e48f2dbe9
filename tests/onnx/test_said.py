"""What a run leaves out, or takes otherwise than it was given, is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from target_zoo import FLOAT, model, node

import nnfuzz
import nnfuzz.onnx
from nnfuzz.onnx.runtime import OnnxModel
from onnx import TensorProto

X = torch.rand(7, 4)


def log(rows: Any = "n") -> OnnxModel:
    return nnfuzz.onnx.load(model([node("Log", ["x"], ["y"])], [("x", FLOAT, [rows, 4])], [("y", FLOAT, [rows, 4])]))


def test_rows_that_do_not_fill_a_candidate_are_not_lost() -> None:
    seeds = X.clone()
    seeds[6, 3] = 0.0  # the last row alone fails
    run = nnfuzz.find_nans(log(4), seeds, max_inputs=50)
    assert "7 rows do not fill candidates of 4: the last one shares 1 with that before" in run.notes
    assert run.findings[0].distance["linf"] == 0
    assert not [n for n in nnfuzz.find_nans(log(4), X.repeat(4, 1), max_inputs=50).notes if "fill" in n]


def test_one_value_for_all_rows_is_said() -> None:
    nodes = [node("Div", ["x", "t"], ["z"]), node("Log", ["z"], ["y"])]
    shared = nnfuzz.onnx.load(model(nodes, [("x", FLOAT, ["n", 4]), ("t", FLOAT, [])], [("y", FLOAT, ["n", 4])]))
    run = nnfuzz.find_nans(shared, {"x": X, "t": torch.tensor(2.0)}, max_inputs=50)
    assert "the graph takes one value of 't' for all rows, so each row is a candidate" in run.notes


def test_text_is_said_to_be_left_out() -> None:
    nodes = [node("Cast", ["x"], ["text"], to=TensorProto.STRING), node("Identity", ["x"], ["y"])]
    outputs = [("text", TensorProto.STRING, ["n", 4]), ("y", FLOAT, ["n", 4])]
    words = nnfuzz.onnx.load(model(nodes, [("x", FLOAT, ["n", 4])], outputs))
    run = nnfuzz.diff(words, words, X, max_inputs=100)
    assert [n for n in run.notes if n.endswith("text is not looked at: output text")]


def test_scores_of_other_classes_are_said_and_blamed_on_their_layer() -> None:
    rng = np.random.default_rng(0)
    first, heads = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((8, 5)).astype(np.float32)
    pair = []
    for classes in (4, 5):
        nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["logits"])]
        weights = {"w": first, "v": heads[:, ::-1][:, :classes].copy() if classes == 4 else heads}
        made = model(nodes, [("x", FLOAT, ["n", 4])], [("logits", FLOAT, ["n", classes])], weights)
        pair.append(nnfuzz.onnx.load(made))
    run = nnfuzz.diff(*pair, X, max_inputs=300, ranges={"x": (-2.0, 2.0)})
    said = "on the seeds outputs have other shapes on either side: logits [4] of A beside logits [5] of B"
    assert [n for n in run.notes if said in n]
    told = nnfuzz.explain(run.findings[0], model=pair[0], model_b=pair[1])
    text = told if isinstance(told, str) else str(told)
    assert "decision boundary" not in text
