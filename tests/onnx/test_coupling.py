"""Rows of a batch that depend on one another: seen in the graph, seen by running, and what a user is told of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from target_zoo import BOOL, FLOAT, INT64, classifier, log_of_softmax, model, node, recurrent, saved, weight

import nnfuzz
import onnx
from nnfuzz.cli import main
from nnfuzz.onnx.coupling import coupling, states_of
from nnfuzz.onnx.coupling_rules import Joined, Rows
from nnfuzz.onnx.program import OnnxProgram
from onnx import helper

QUICK = ["--plain", "--max-inputs", "600"]
COUNT = 3


def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    return helper.make_graph(nodes, name, [], [made])


def gate(limit: float = 30.0) -> onnx.ModelProto:
    """x [n, 4] → log(x − 5) once all rows together exceed the limit, else x: no single row does."""
    then = branch("then", [node("Sub", ["x", "big"], ["less"], "shift"), node("Log", ["less"], ["l"], "danger")])
    other = branch("other", [node("Identity", ["x"], ["same"], "same")])
    nodes = [
        node("ReduceSum", ["x"], ["total"], "total", keepdims=0),
        node("Greater", ["total", "limit"], ["much"], "over"),
        node("If", ["much"], ["y"], "pick", then_branch=then, else_branch=other),
    ]
    weights = {"limit": np.array(limit, np.float32), "big": np.array(5, np.float32)}
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], weights)


def crowded() -> onnx.ModelProto:
    """x [n, 4] → log(x − 5) where more than 8 elements of the batch exceed 3, counted in a way that is not followed."""
    nodes = [
        node("Greater", ["x", "three"], ["high"], "high"),
        node("NonZero", ["high"], ["places"], "places"),
        node("Shape", ["places"], ["shape"], "shape"),
        node("Gather", ["shape", "one"], ["count"], "count", axis=0),
        node("Greater", ["count", "eight"], ["many"], "many"),
        node("Sub", ["x", "big"], ["less"], "shift"),
        node("Log", ["less"], ["l"], "danger"),
        node("Where", ["many", "l", "x"], ["y"], "pick"),
    ]
    weights = {
        "three": np.array(3, np.float32), "big": np.array(5, np.float32), "one": np.array(1), "eight": np.array(8),
    }  # fmt: skip
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], weights)


def lone(op: str, reads: list[str], weights: dict[str, Any] | None = None, rank: int = 2, **attrs: Any) -> Any:
    """One operator on x [n, 4], or x [n, 2, 4], or x [n, 3, 4, 4], as a program with an output of any shape."""
    shape = {1: ["n"], 2: ["n", 4], 3: ["n", 2, 4], 4: ["n", 3, 4, 4]}[rank]
    held = {n: np.asarray(a) for n, a in (weights or {}).items()}
    outputs = ["y"] if op not in ("TopK", "Split") else ["y", "z"]
    graph = helper.make_graph(
        [helper.make_node(op, reads, outputs, name="it", **attrs)], "lone",
        [helper.make_tensor_value_info("x", FLOAT, shape)], [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    opset = attrs.pop("opset", 17)
    return OnnxProgram(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


AXES = {"axes": np.array([0])}
LATER = {"axes": np.array([-1])}
W = weight(4, 4)
OPS = {
    "sum of all": lone("ReduceSum", ["x"]),
    "sum of rows": lone("ReduceSum", ["x", "axes"], AXES),
    "sum of columns": lone("ReduceSum", ["x", "axes"], LATER, keepdims=0),
    "mean of rows": lone("ReduceMean", ["x"], axes=[0]),
    "mean of the middle": lone("ReduceMean", ["x"], rank=3, axes=[1], keepdims=0),
    "best row": lone("ArgMax", ["x"], axis=0),
    "best column": lone("ArgMax", ["x"], axis=1, keepdims=0),
    "softmax of rows": lone("Softmax", ["x"], axis=0),
    "softmax of columns": lone("Softmax", ["x"]),
    "sum up rows": lone("CumSum", ["x", "a"], {"a": np.array(0)}),
    "sum up columns": lone("CumSum", ["x", "a"], {"a": np.array(1)}),
    "largest rows": lone("TopK", ["x", "k"], {"k": np.array([1])}, axis=0),
    "largest columns": lone("TopK", ["x", "k"], {"k": np.array([2])}),
    "norm": lone("LayerNormalization", ["x", "s"], {"s": np.ones(4, np.float32)}),
    "norm of all": lone("LayerNormalization", ["x", "s"], {"s": np.ones(4, np.float32)}, axis=0),
    "variance": lone("MeanVarianceNormalization", ["x"], rank=4),
    "layer": lone("MatMul", ["x", "w"], {"w": W}),
    "layer of three": lone("MatMul", ["x", "w"], {"w": W}, rank=3),
    "from the left": lone("MatMul", ["w", "x"], {"w": weight(2, 2)}, rank=3),
    "vector": lone("MatMul", ["x", "w"], {"w": W[0]}, rank=3),
    "vector from the left": lone("MatMul", ["w", "x"], {"w": W[0, :2]}, rank=3),
    "gemm": lone("Gemm", ["x", "w"], {"w": W}, transB=1),
    "gemm over rows": lone("Gemm", ["x", "w"], {"w": weight(3, 4)}, transA=1),
    "turned": lone("Transpose", ["x"], rank=3),
    "turned so": lone("Transpose", ["x"], rank=3, perm=[1, 0, 2]),
    "flat": lone("Reshape", ["x", "s"], {"s": np.array([-1, 4])}, rank=3),
    "flatter": lone("Reshape", ["x", "s"], {"s": np.array([0, -1])}, rank=3),
    "another column": lone("Unsqueeze", ["x", "axes"], AXES),
    "beside itself": lone("Concat", ["x", "x"], axis=1),
    "first row": lone("Slice", ["x", "a", "b", "axes"], {"a": np.array([0]), "b": np.array([1]), **AXES}),
    "first column": lone("Slice", ["x", "a", "b", "axes"], {"a": np.array([0]), "b": np.array([1]), **LATER}),
    "row 1": lone("Gather", ["x", "i"], {"i": np.array(1)}),
    "column 1": lone("Gather", ["x", "i"], {"i": np.array(1)}, axis=1),
    "later axis": lone("Gather", ["x", "i"], {"i": np.array([1, 0])}, rank=3, axis=2),
    "plus": lone("Add", ["x", "w"], {"w": W[0]}),
    "image": lone("Conv", ["x", "w"], {"w": weight(2, 3, 2, 2)}, rank=4),
    "pool": lone("GlobalAveragePool", ["x"], rank=4),
    "letters": lone("Einsum", ["x", "w"], {"w": W}, equation="ni,ij->jn"),
    "letters over rows": lone("Einsum", ["x", "w"], {"w": W}, equation="ni,ij->j"),
    "every with every": lone("Einsum", ["x", "x"], equation="ni,mi->nm"),
    "again": lone("Tile", ["x", "r"], {"r": np.array([1, 2])}),
    "in parts": lone("Split", ["x"], axis=1),
    "time": lone("GRU", ["x", "w", "r"], {"w": weight(1, 6, 4), "r": weight(1, 6, 2)}, rank=3, hidden_size=2),
    "sequences": lone(
        "GRU", ["x", "w", "r"], {"w": weight(1, 6, 4), "r": weight(1, 6, 2)}, rank=3, hidden_size=2, layout=1
    ),
}  # fmt: skip


def shape_of(program: OnnxProgram) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else COUNT for d in program.inputs[0].shape or ())


@pytest.mark.parametrize("name", OPS)
def test_what_is_said_of_an_operator_is_what_it_does(name: str) -> None:
    program = OPS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape_of(program), generator=generator)
    state = states_of(program, {"x": x}, {"x": 0}, COUNT)["y"]
    assert isinstance(state, Joined | Rows), state
    before = program(x)["y"]
    touched = []
    for row in range(COUNT):
        other = x.clone()
        other[row] += 1.5 * torch.randn(x.shape[1:], generator=generator)
        changed = program(other)["y"] != before
        if isinstance(state, Rows):
            blocks = changed.movedim(state.axis, 0).unflatten(0, (COUNT, -1)).flatten(1).any(1)
            assert not bool(blocks[[i for i in range(COUNT) if i != row]].any())
        touched.append(changed)
    if isinstance(state, Joined):
        assert "the " in state.said
        assert "node 'it' joins the rows of a batch" in state.said
        if touched[0].dim() and touched[0].shape[0] == COUNT:
            assert any(bool(t[i].any()) for r, t in enumerate(touched) for i in range(COUNT) if i != r)
    else:
        assert any(bool(t.any()) for t in touched)


def test_graphs_that_keep_rows_apart_are_not_accused() -> None:
    for made in (log_of_softmax(), classifier()):
        program = OnnxProgram(made)
        x = torch.randn(2, 6)
        assert coupling(program, {"x": x}, {"x": 0}, 2) == ""
    stream = OnnxProgram(recurrent())
    inputs = {"x": torch.randn(2, 4), "state": torch.randn(2, 2, 3), "rate": torch.tensor(16000)}
    axes = {"x": 0, "state": 1, "rate": None}
    assert coupling(stream, inputs, axes, 2) == ""
    assert "the ReduceSum node 'total'" in coupling(stream, inputs, {**axes, "state": 0, "x": None}, 2)


def test_control_flow_that_depends_on_rows_joins_them() -> None:
    said = coupling(OnnxProgram(gate()), {"x": torch.rand(2, 4)}, {"x": 0}, 2)
    assert said == (
        "the ReduceSum node 'total' joins the rows of a batch, and the If node 'pick' decides by that for all of them"
    )
    count = helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", BOOL, [])
    body = helper.make_graph(
        [
            node("Mul", ["s", "half"], ["t"], "halve"),
            node("ReduceMax", ["t"], ["most"], "most", keepdims=0),
            node("Greater", ["most", "one"], ["on"], "on"),
        ],
        "body", [*count, helper.make_tensor_value_info("s", FLOAT, None)],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("t", FLOAT, None)],
    )  # fmt: skip
    weights = {"half": np.array(0.5, np.float32), "one": np.array(1, np.float32), "turns": np.array(9)}
    weights["yes"] = np.array(True)
    loop = model(
        [node("Loop", ["turns", "yes", "x"], ["y"], "while", body=body)],
        [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], weights,
    )  # fmt: skip
    said = coupling(OnnxProgram(loop), {"x": torch.rand(2, 4)}, {"x": 0}, 2)
    assert said == (
        "the ReduceMax node 'most' joins the rows of a batch, and the Loop node 'while' decides by that for all of them"
    )


def test_a_branch_on_shapes_alone_joins_nothing() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"], "shape"),
        node("Gather", ["shape", "zero"], ["count"], "count", axis=0),
        node("Greater", ["count", "zero"], ["any"], "any"),
        node(
            "If", ["any"], ["y"], "pick", then_branch=branch("a", [node("Neg", ["x"], ["a"])]),
            else_branch=branch("b", [node("Abs", ["x"], ["b"])]),
        ),
    ]  # fmt: skip
    made = model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], {"zero": np.array(0)})
    assert coupling(OnnxProgram(made), {"x": torch.rand(2, 4)}, {"x": 0}, 2) == ""


# ------------------------------------------------------------------------------------------------- a run


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("s.npz", x=np.random.default_rng(0).uniform(0, 0.1, (8, 4)).astype(np.float32))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
    found = main(list(words))
    out = capsys.readouterr()
    assert found == status, out.out + out.err
    return " ".join(out.out.split())


def test_a_batch_is_the_candidate_where_the_graph_joins_rows(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(gate(), desk / "gate.onnx")
    text = said(capsys, "nan", "gate.onnx", "--seeds", "s.npz", "--range", "0:4", "--out", "r", *QUICK, status=1)
    assert "unit batch: the ReduceSum node 'total' joins the rows of a batch, and the If node 'pick'" in text
    assert "x float32[8, 4]" in text
    assert "batch-only" not in text
    assert said(capsys, "repro", "r/findings/F0001", status=1).endswith("reproduced")


def test_a_batch_is_the_candidate_where_rows_change_one_another(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(crowded(), desk / "crowded.onnx")
    words = ["nan", "crowded.onnx", "--seeds", "s.npz", "--range", "0:4", *QUICK]
    text = said(capsys, *words, status=1)
    assert "unit batch: the result of a row changes with the rows beside it" in text
    assert "batch-only" not in text


def test_candidates_that_join_are_never_run_together(desk: Path) -> None:
    """Whole batches could be joined along their first axis, as the seeds show it; the graph knows better."""
    run = nnfuzz.find_nans(
        nnfuzz.onnx.load(saved(gate(1e9), desk / "gate.onnx")), torch.rand(8, 4), ranges=(0, 4), max_inputs=200
    )
    assert run.stats.unit == "batch"
    assert not run.findings


def test_what_fails_only_in_its_batch_names_its_node(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(gate(), desk / "gate.onnx")
    words = ["nan", "gate.onnx", "--seeds", "s.npz", "--range", "0:4", "--unit", "sample", "--out", "r", *QUICK]
    text = said(capsys, *words, status=1)
    assert "unit sample: asked for, though the ReduceSum node 'total' joins the rows" in text
    assert "batch-only" in text
    assert "pick.then_branch.danger" in text
    assert "beside it" in text
    assert "the rows of a batch depend on one another here, and --unit batch searches whole batches" in text
    assert "interpreter gives finite numbers" not in text
    kept = json.loads(Path("r/findings/F0001/finding.json").read_text())
    assert kept["details"]["node"]["name"] == "danger"
    told = said(capsys, "explain", "r/findings/F0001", status=0)
    assert "first bad node: " in told
    assert "pick.then_branch.danger" in told


# ------------------------------------------------------------------------------------------------- rerun with its batch


def run_script(place: str, *words: str) -> tuple[int, str]:
    """Without torch and without nnfuzz: neither can be imported."""
    bare = "import sys, runpy; sys.modules['nnfuzz'] = sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    code = bare + "runpy.run_path(sys.argv[0], run_name='__main__')"
    words = (sys.executable, "-c", code, f"{place}/repro.py", *words)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_fails_only_in_its_batch_is_rerun_with_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(gate(), desk / "gate.onnx")
    saved(gate(1e9), desk / "calm.onnx")
    words = ["nan", "gate.onnx", "--seeds", "s.npz", "--range", "0:4", "--unit", "sample", "--out", "r", *QUICK]
    said(capsys, *words, status=1)
    batch = json.loads(Path("r/findings/F0001/finding.json").read_text())["batch"]
    it_is = f"it is row {batch['row']} (counted from 0) of the {batch['count']} candidates in batch.safetensors"
    assert 2 <= batch["count"] <= 16
    told = said(capsys, "repro", "r/findings/F0001", status=1)
    assert it_is in told
    assert told.endswith("batch-only reproduced")
    told = said(capsys, "repro", "r/findings/F0001", "--model", "calm.onnx", status=0)
    assert "run again with its batch it does not fail" in told
    status, told = run_script("r/findings/F0001")
    assert status == 1, told
    assert it_is in told
    status, told = run_script("r/findings/F0001", "calm.onnx")
    assert status == 0, told
    assert it_is in said(capsys, "show", "r/findings/F0001", status=0)
    told = said(capsys, "explain", "r/findings/F0001", status=0)
    assert it_is in told
    assert "first bad node: Log in node pick.then_branch.danger" in told


def scaled() -> onnx.ModelProto:
    """x [n, 4] → x quantized by one scale for all rows, as DynamicQuantizeLinear finds it, and back."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], "quantize"),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "back"),
    ]
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])])


def test_a_pair_that_differs_only_in_a_batch_is_rerun_with_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of one scale: a small one loses its values beside a large one, and not alone."""
    saved(scaled(), desk / "a.onnx")
    saved(model([node("Identity", ["x"], ["y"])], [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])]), desk / "b.onnx")
    words = ["diff", "a.onnx", "b.onnx", "--seeds", "s.npz", "--range", "0:100", "--unit", "sample"]
    said(capsys, *words, "--compare", "allclose:0.02,0.05", "--out", "r", *QUICK, status=1)
    places = [p.parent for p in sorted(Path("r/findings").glob("*/finding.json"))]
    about = {place: json.loads((place / "finding.json").read_text()) for place in places}
    (place,) = [p for p, told in about.items() if told["status"] == "batch-only"]
    assert about[place]["batch"]["count"] == 2
    assert [way["drive"] for way in about[place]["batch"]["ways"]] == ["rows", "rows"]
    assert said(capsys, "repro", str(place), status=1).endswith("batch-only reproduced")
    status, told = run_script(str(place))
    assert status == 1, told
    assert "REPRODUCED: disagreement" in told
    assert "layer by layer" in said(capsys, "explain", str(place), status=0)


def test_whole_candidates_that_are_joined_are_rerun_so(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state [2, n, 3] is joined along its own axis; that rows depend on one another shows on large values only."""
    nodes = [
        node("ReduceMax", ["state"], ["most"], "most", axes=[2], keepdims=0),
        node("Transpose", ["most"], ["rows"], "turn", perm=[1, 0]),
        node("Greater", ["rows", "three"], ["high"], "high"),
        node("NonZero", ["high"], ["places"], "places"),
        node("Shape", ["places"], ["shape"], "shape"),
        node("Gather", ["shape", "one"], ["count"], "count", axis=0),
        node("Greater", ["count", "twelve"], ["many"], "many"),
        node("Sub", ["x", "big"], ["less"], "shift"),
        node("Log", ["less"], ["l"], "danger"),
        node("Where", ["many", "l", "x"], ["y"], "pick"),
        node("Identity", ["state"], ["next"], "next"),
    ]
    weights = {
        "three": np.array(3, np.float32), "big": np.array(5, np.float32), "one": np.array(1), "twelve": np.array(12),
    }  # fmt: skip
    made = model(
        nodes, [("x", FLOAT, ["n", 4]), ("state", FLOAT, [2, "n", 3])],
        [("y", FLOAT, ["n", 4]), ("next", FLOAT, [2, "n", 3])], weights,
    )  # fmt: skip
    saved(made, desk / "stream.onnx")
    rng = np.random.default_rng(0)
    x, state = rng.uniform(0, 0.1, (4, 1, 4)).astype(np.float32), rng.uniform(0, 0.1, (4, 2, 1, 3)).astype(np.float32)
    np.savez("whole.npz", x=x, state=state)
    said(capsys, "nan", "stream.onnx", "--seeds", "whole.npz", "--range", "0:4", "--out", "r", *QUICK, status=1)
    about = json.loads(Path("r/findings/F0001/finding.json").read_text())
    assert about["batch"]["ways"][0] | {"chunk": 0} == {
        "unit": "batch", "drive": "axes", "chunk": 0, "inputs": {"x": 0, "state": 1}, "outputs": {"y": 0, "next": 1},
    }  # fmt: skip
    assert said(capsys, "repro", "r/findings/F0001", status=1).endswith("batch-only reproduced")
    status, told = run_script("r/findings/F0001")
    assert status == 1, told
