"""Outputs that no input reaches, and failures that no input is to blame for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from target_zoo import FLOAT, INT64, classifier, model, node, saved

import onnx
from nnfuzz.cli import main
from nnfuzz.onnx.graph import read_graph
from nnfuzz.onnx.reaching import reaching, told_outputs
from onnx import helper

X = ("x", FLOAT, ["n", 4])
Y = ("y", FLOAT, ["n", 4])
NONE = frozenset[str]()


def one(nodes: list[onnx.NodeProto], weights: dict[str, Any] | None = None, *inputs: Any) -> onnx.ModelProto:
    held = {n: np.asarray(a, np.float32) if isinstance(a, list) else a for n, a in (weights or {}).items()}
    return model(nodes, [X, *inputs], [Y], held)


def dead() -> onnx.ModelProto:
    """x + log(w), w below zero in one place."""
    return one([node("Log", ["w"], ["l"], "dead"), node("Add", ["x", "l"], ["y"], "plus")], {"w": [1, -1, 2, 3]})


def blank() -> onnx.ModelProto:
    return one([node("Shape", ["x"], ["s"], "shape"), node("ConstantOfShape", ["s"], ["y"], "make")])


def chosen() -> onnx.ModelProto:
    """One of two constants, whichever x chooses: a node of a branch that reads no input."""

    def branch(name: str, constant: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([node("Log", [constant], [name], f"log_{name}")], name, [], [made])

    nodes = [
        node("ReduceSum", ["x"], ["total"], "total", keepdims=0),
        node("Greater", ["total", "limit"], ["c"], "over"),
        node("If", ["c"], ["y"], "pick", then_branch=branch("a", "u"), else_branch=branch("b", "v")),
    ]
    return one(nodes, {"limit": np.array(0, np.float32), "u": [1] * 4, "v": [-1] * 4})


def test_what_reaches_a_value() -> None:
    found = reaching(read_graph(classifier()))
    assert found["scores"].values == {"x"}
    assert set(found["scores"].constants) == {"w1", "w2"}
    found = reaching(read_graph(blank()))
    assert (found["y"].values, found["y"].shapes) == (NONE, {"x"})
    found = reaching(read_graph(dead()))
    assert (found["l"].values, found["l"].shapes, found["l"].constants) == (NONE, NONE, ("w",))
    assert found["y"].values == {"x"}
    assert reaching(read_graph(chosen()))["a"].values == {"x"}  # it runs only for some


def test_the_shape_of_what_was_picked_by_value_tells_of_the_values() -> None:
    nodes = [node("NonZero", ["x"], ["places"], "places"), node("Shape", ["places"], ["s"], "shape"),
             node("Cast", ["s"], ["y"], "cast", to=FLOAT)]  # fmt: skip
    made = model(nodes, [X], [("y", FLOAT, [2])])
    assert reaching(read_graph(made))["y"].values == {"x"}


def test_outputs_of_searched_inputs_alone_are_said_nothing_of() -> None:
    two = one([node("Add", ["x", "k"], ["y"], "plus")], None, ("k", FLOAT, ["n", 4]))
    graph = read_graph(two)
    found = reaching(graph)
    assert told_outputs(graph, found, ["x", "k"], shapes=False) == {}
    assert told_outputs(graph, found, ["x"], shapes=False) == {}
    only = one([node("Neg", ["k"], ["y"], "neg")], None, ("k", FLOAT, ["n", 4]))
    graph = read_graph(only)
    assert told_outputs(graph, reaching(graph), ["x"], shapes=False) == {
        "y": "is reached by the input 'k' alone: no input that is searched reaches it"
    }
    graph = read_graph(blank())
    assert told_outputs(graph, reaching(graph), ["x"], shapes=True) == {}


# ------------------------------------------------------------------------------------------------- what is told


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("s.npz", x=rng.uniform(0, 1, (6, 4)).astype(np.float32))
    np.savez("two.npz", **{n: rng.uniform(0, 1, (6, 4)).astype(np.float32) for n in ("x", "k")})
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], made: onnx.ModelProto, *words: str, status: int) -> str:
    saved(made, Path("m.onnx"))
    found = main(["nan", "m.onnx", "--range", "0:4", "--max-inputs", "200", "--plain", "--out", "r", *words])
    out = capsys.readouterr()
    assert found == status, out.out + out.err
    return " ".join(out.out.split())


def test_a_model_that_no_input_reaches_is_said_to_be_one(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, blank(), "--seeds", "s.npz", status=0)
    assert "note the output 'y' follows from the shapes of the inputs alone: nothing that they hold reaches it" in text
    assert "try no output depends on what is searched, so that no other input can give another" in text
    for useless in ("more seeds", "new behaviour was still turning up", "--range: the inputs", "nnfuzz resume"):
        assert useless not in text
    fixed = one([node("Neg", ["k"], ["y"], "neg")], None, ("k", FLOAT, ["n", 4]))
    text = told(capsys, fixed, "--seeds", "two.npz", "--fix", "k", "--out", "fixed", status=0)
    assert "note the output 'y' is reached by the input 'k' alone: no input that is searched reaches it" in text
    text = told(capsys, fixed, "--seeds", "two.npz", "--out", "free", status=0)
    assert "no input that is searched reaches it" not in text


def test_a_constant_that_is_not_finite_is_said_to_be_so(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(
        [node("Log", ["w"], ["z"], "dead"), node("Neg", ["x"], ["y"], "neg")], [X], [Y, ("z", FLOAT, [2])],
        {"w": np.array([1, 0], np.float32)},
    )  # fmt: skip
    text = told(capsys, made, "--seeds", "s.npz", status=1)
    constant = "note the output 'z' is a constant of the graph: no input reaches it"
    assert f"{constant}, and it holds minus infinity whatever they are" in text


def test_a_node_of_constants_is_to_blame_and_no_input(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, dead(), "--seeds", "s.npz", status=1)
    blame = (
        "the Log node 'dead' computes with constants of the graph (the initializer 'w') alone and gives this whatever "
        "the input: no input is to blame, and what helps is to mend the constants"
    )
    assert f"note {blame}" in text
    assert "all of 6 seeds fail unchanged, and no seed can do otherwise" in text
    assert "give seeds that do not fail" not in text
    assert main(["explain", "r/findings/F0001"]) == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert explained.count(blame) == 1
    assert "within L∞" not in explained
    assert "what helps (each tried" not in explained
    assert blame in " ".join(Path("r/findings/F0001/README.md").read_text().split())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_initializer_that_is_not_finite_is_to_blame(
    bad: float, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("Mul", ["x", "w"], ["y"], "times")]
    text = told(capsys, one(nodes, {"w": [1, bad, 2, 3]}), "--seeds", "s.npz", "--unit", "batch", status=1)
    assert "the initializer 'w', read by node times, holds" in text
    assert "no input is to blame for what is computed from it" in text


def test_a_node_that_only_some_inputs_run_is_not_said_to_fail_for_all(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = chosen()
    saved(made, Path("m.onnx"))
    words = ["--seeds", "s.npz", "--range", "-4:4", "--max-inputs", "200", "--plain", "--unit", "batch"]
    assert main(["nan", "m.onnx", *words]) == 1
    text = capsys.readouterr().out
    assert "log_b" in text
    assert "no input is to blame" not in text


def test_integers_count_as_inputs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model([node("Cast", ["i"], ["y"], "cast", to=FLOAT)], [("i", INT64, ["n"])], [("y", FLOAT, ["n"])])
    graph = read_graph(made)
    assert told_outputs(graph, reaching(graph), ["i"], shapes=False) == {}
