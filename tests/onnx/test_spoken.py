"""A finding in an ONNX model is told in ONNX's words: nodes, their operators, names of values; never PyTorch's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from target_zoo import FLOAT, log_of_softmax, model, node, saved, weight

import nnfuzz
import onnx
from nnfuzz.advice.graph_words import OPERATORS, in_graph_terms
from nnfuzz.advice.remedy import REMEDIES
from nnfuzz.cli import main
from nnfuzz.onnx.ops import find_operator
from nnfuzz.onnx.program import OnnxProgram
from nnfuzz.probe import first_bad

FOREIGN = re.compile(
    r"\baten\b|\binput \d|^  operand |(?:reads|in|^ *)(?:self|other)\b[:,=]|no user code|stock module"
    r"|\bbuffer\b|\bparameter\b|log_softmax|log_sigmoid|logsigmoid|\bclamp(?!\])\b|\bmm\b|torch\.[a-z]|BackwardD?\d"
    r"|(?:\bat|\bfrom|`|\bby|bad operation:|\bgradient of) ?(?:log|div|mul|sqrt|pow|exp|sum|add|sub|mm|softmax|rsqrt)\b"
    r"|\b(?:log|div|mul|sqrt|pow|exp|sum|add|sub|mm|softmax)(?:@| in | \()",
    re.M,
)
"""Words of PyTorch in what is told; names of remedies, which stand in brackets, are nnfuzz's own."""


def graph(nodes: list[onnx.NodeProto], weights: Mapping[str, Any] | None = None, wide: int = 4) -> onnx.ModelProto:
    held = {n: np.asarray(a, np.float32) for n, a in (weights or {}).items()}
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", wide])], held)


MODELS = {
    "Log": (log_of_softmax(), "take_log", "p", 10),
    "Div": (
        graph([node("Relu", ["x"], ["r"], "cut"), node("Div", ["x", "r"], ["y"], "share")]), "share", "r", 4,
    ),
    "Sqrt": (
        graph([node("Sub", ["x", "w"], ["gap"], "gap"), node("Sqrt", ["gap"], ["y"], "root")], {"w": [0.5]}),
        "root", "gap", 4,
    ),
    "Pow": (graph([node("Pow", ["x", "p"], ["y"], "power")], {"p": [0.3]}), "power", "x", 4),
    "Exp": (
        graph([node("Mul", ["x", "w"], ["much"], "times"), node("Exp", ["much"], ["y"], "grow")], {"w": [40.0]}),
        "grow", "much", 4,
    ),
    "Reciprocal": (
        graph([node("Relu", ["x"], ["r"], "cut"), node("Reciprocal", ["r"], ["y"], "turn")]), "turn", "r", 4,
    ),
    "ReduceLogSum": (
        model(
            [node("Relu", ["x"], ["r"], "cut"), node("ReduceLogSum", ["r"], ["y"], "sums", axes=[1])],
            [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 1])], opset=17,
        ),
        "sums", "r", 4,
    ),
    "Softmax": (
        graph(
            [
                node("Mul", ["x", "huge"], ["h"], "times"), node("Mul", ["h", "huge"], ["much"], "again"),
                node("Softmax", ["much"], ["y"], "soft"),
            ],
            {"huge": [3e19]},
        ),
        "again", "h", 4,
    ),
    "LayerNormalization": (
        graph([node("LayerNormalization", ["x", "s"], ["y"], "norm", epsilon=0.0)], {"s": np.ones(4)}), "norm", "x", 0,
    ),
    "MatMul": (
        graph([node("MatMul", ["x", "w"], ["h"], "fc"), node("MatMul", ["h", "w"], ["y"], "fc2")],
              {"w": 1e19 * abs(weight(4, 4))}),
        "fc2", "h", 10,
    ),
}  # fmt: skip
OPERATOR_OF = {"Softmax": "Mul"}


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_told_of_a_finding_is_in_the_words_of_the_graph(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made, name, value, reach = MODELS[kind]
    saved(made, tmp_path / "m.onnx")
    wide = made.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    seeds = np.random.default_rng(0).uniform(0.6, 1, (8, wide)).astype(np.float32)
    np.savez("s.npz", x=seeds)
    reached = f"{-reach}:{max(reach, 1)}"
    words = ["nan", "m.onnx", "--seeds", "s.npz", "--range", reached, "--max-inputs", "400", "--plain", "--out", "r"]
    assert main([*words]) == 1
    told = {"the run": capsys.readouterr().out}
    finding = Path("r/findings/F0001")
    told["README"] = (finding / "README.md").read_text()
    told["explain"] = nnfuzz.explain(finding, inputs=0)
    for command in (["show", str(finding)], ["show", "r"], ["repro", str(finding)]):
        assert main(command) in (0, 1)
        told[" ".join(command)] = capsys.readouterr().out
    kept = json.loads((finding / "finding.json").read_text())
    operator = OPERATOR_OF.get(kind, kind)
    assert kept["site"]["op"] == operator
    assert kept["cause"] == f"forward non-finite at {operator}@{name}"
    told["finding.json"] = "\n".join([kept["cause"], *kept["notes"], kept["details"]["bad_op"]])
    for where, text in told.items():
        plain = re.sub(r"\[[a-z0-9]+\.[a-z_]+\]|with [a-z0-9]+\.[a-z_]+:|^  [a-z0-9]+\.[a-z_]+:", "", text, flags=re.M)
        plain = re.sub(r"computed with torch|torch, onnxruntime|\w+ runs? under|seed > .*|→.*|lineage.*", "", plain)
        assert not (found := FOREIGN.search(plain)), f"{where}: {found[0]!r} in\n{text}"
    for where in ("README", "explain", "finding.json"):
        assert name in told[where]
        assert operator in told[where]
        assert re.search(rf"\b{value}\b", told[where]), (where, told[where])
    assert f"at {operator}" in told["the run"]


def test_a_chain_has_one_link_a_node_and_names_inputs_and_initializers() -> None:
    nodes = [
        node("Sub", ["x", "edge"], ["gap"], "gap"), node("LogSoftmax", ["gap"], ["l"], "l"),
        node("Exp", ["l"], ["e"], "e"), node("Log", ["e"], ["y"], "take_log"),
    ]  # fmt: skip
    made = graph(nodes, {"edge": [0.0, 200.0, 0.0, 0.0]})
    bad = first_bad(OnnxProgram(made), (torch.zeros(1, 4),))
    told = str(bad).splitlines()
    assert told[0] == "-inf from Log (node take_log)"
    assert told[1].startswith("  e: float32[1, 4] in [0, ")
    assert [line.split(" by ")[1].split(":")[0] for line in told[2:5]] == ["Exp (node e)", "LogSoftmax (node l)",
                                                                          "Sub (node gap)"]  # fmt: skip
    assert told[-1] == "  <- 200 from initializer edge[1]"


def test_operators_that_advice_names_exist_in_onnx() -> None:
    assert not [op for op in OPERATORS.values() if find_operator("", op) is None]


def test_advice_names_no_function_of_torch_that_a_graph_lacks() -> None:
    left = re.compile(r"torch\.[a-z_.]*(?:softmax|xlogy|atan2|sum|norm|tanh|sigmoid)|log_softmax|logsigmoid|clamp")
    for remedy in REMEDIES:
        assert not left.search(in_graph_terms(remedy.words)), remedy.words
    assert in_graph_terms("log of a softmax that can round to 0: log_softmax of the logits cannot") == (
        "Log of a Softmax that can round to 0: LogSoftmax of the logits cannot"
    )
    assert in_graph_terms("keep the argument of the logarithm at 1") == "keep the argument of the logarithm at 1"
