"""Small ONNX models with a known character, made by onnx.helper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnx
from onnx import helper, numpy_helper

TYPE = onnx.TensorProto.DataType
FLOAT, HALF, INT64, BOOL, BF16 = map(TYPE.Value, ("FLOAT", "FLOAT16", "INT64", "BOOL", "BFLOAT16"))
Array = np.ndarray[Any, Any]
Value = tuple[str, int, Sequence[Any] | None]


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=name or outputs[0], **attrs)


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Value], outputs: Sequence[Value],
    weights: Mapping[str, Array] | None = None, opset: int = 17,
) -> onnx.ModelProto:  # fmt: skip
    """A checked model; ``inputs`` and ``outputs`` are (name, element type, shape)."""
    graph = helper.make_graph(
        list(nodes), "zoo", [helper.make_tensor_value_info(*v) for v in inputs],
        [helper.make_tensor_value_info(*v) for v in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def saved(made: onnx.ModelProto, path: Path) -> Path:
    onnx.save(made, str(path))
    return path


def weight(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def log_of_softmax() -> onnx.ModelProto:
    """x [n, 6] → −log softmax of logits of some hundred: infinite where a probability rounds to 0."""
    nodes = [
        node("MatMul", ["x", "w"], ["logits"], "fc"),
        node("Softmax", ["logits"], ["p"], "soft", axis=1),
        node("Log", ["p"], ["lp"], "take_log"),
        node("Neg", ["lp"], ["loss"], "neg"),
    ]
    return model(nodes, [("x", FLOAT, ["n", 6])], [("loss", FLOAT, ["n", 3])], {"w": weight(6, 3, scale=8)})


def classifier(scale: float = 1.0, *, x: str = "x", y: str = "scores", batch: Any = "n") -> onnx.ModelProto:
    """x [n, 6] → relu → scores [n, 3]; ``scale`` tilts the last weights, and so moves the decision boundary."""
    tilted = weight(8, 3, seed=2) * np.array([1, scale, 1], np.float32)
    nodes = [
        node("MatMul", [x, "w1"], ["h"], "fc1"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "w2"], [y], "fc2"),
    ]
    weights = {"w1": weight(6, 8, seed=1), "w2": tilted.astype(np.float32)}
    return model(nodes, [(x, FLOAT, [batch, 6])], [(y, FLOAT, [batch, 3])], weights)


def recurrent() -> onnx.ModelProto:
    """A step of a streaming model: x [batch, 4], state [2, batch, 3], rate int64 [] → y [batch, 1], the next state."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "fc"),
        node("Unsqueeze", ["h", "zero"], ["h3"], "lift"),
        node("Add", ["state", "h3"], ["sum"], "join"),
        node("Tanh", ["sum"], ["next"], "squash"),
        node("ReduceSum", ["next", "axes"], ["total"], "total", keepdims=0),
        node("Unsqueeze", ["total", "one"], ["column"], "column"),
        node("Cast", ["rate"], ["fast"], "fast", to=FLOAT),
        node("Div", ["fast", "base"], ["times"], "times"),
        node("Mul", ["column", "times"], ["y"], "scale"),
    ]
    weights = {
        "w": weight(4, 3), "zero": np.array([0]), "one": np.array([1]), "axes": np.array([0, 2]),
        "base": np.array(16000.0, np.float32),
    }  # fmt: skip
    return model(
        nodes, [("x", FLOAT, ["batch", 4]), ("state", FLOAT, [2, "batch", 3]), ("rate", INT64, [])],
        [("y", FLOAT, ["batch", 1]), ("next", FLOAT, [2, "batch", 3])], weights,
    )  # fmt: skip


def guarded_by(op: str, **attrs: Any) -> onnx.ModelProto:
    """x [n, 4] → x of one unsafe operator."""
    second = {"Div": ["one"], "Pow": ["half"]}.get(op, [])
    first = [*second, "x"] if op == "Div" else ["x", *second]
    constants = {"one": np.ones(1, np.float32), "half": np.array([0.5], np.float32)}
    used = {n: a for n, a in constants.items() if n in second}
    return model([node(op, first, ["y"], "unsafe", **attrs)], [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], used)


def black_box() -> onnx.ModelProto:
    """x [n, 6] → log of softmax, with an operator that no interpreter knows but ONNX Runtime does."""
    nodes = [
        node("MatMul", ["x", "w"], ["logits"], "fc"),
        node("BiasGelu", ["logits", "b"], ["g"], "gelu", domain="com.microsoft"),
        node("Softmax", ["g"], ["p"], "soft", axis=1),
        node("Log", ["p"], ["y"], "take_log"),
    ]
    graph = helper.make_graph(
        nodes, "zoo", [helper.make_tensor_value_info("x", FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 3])],
        [numpy_helper.from_array(weight(6, 3, scale=8), "w"), numpy_helper.from_array(np.zeros(3, np.float32), "b")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
