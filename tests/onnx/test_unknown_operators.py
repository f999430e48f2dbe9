"""An operator that nobody knows: one sentence that names it, and exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import model, node, value

import onnx
from nnfuzz.cli import main


@pytest.mark.parametrize(
    ("domain", "imports", "told"),
    [
        ("my.ops", {"my.ops": 3}, "the operator Frobnicate of domain 'my.ops', version 3 (the node 'odd')"),
        ("", {}, "the operator Frobnicate of domain 'ai.onnx', version 17 (the node 'odd')"),
    ],
)
def test_an_operator_that_neither_runtime_knows_is_named(
    domain: str, imports: dict[str, int], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = node("Frobnicate", "x", "y", "odd")
    odd.domain = domain
    proto = model([odd], [value("x", "n", 4)], [value("y", "n", 4)], [], opset=17)
    for name, version in imports.items():
        if name not in {o.domain for o in proto.opset_import}:
            proto.opset_import.append(onnx.helper.make_opsetid(name, version))
    path = tmp_path / "odd.onnx"
    path.write_bytes(proto.SerializeToString())
    words = ["nan", str(path), "--input", "x=float32[2,4]:0..1", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "neither does nnfuzz's interpreter" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("lacking", ["inputs", "outputs"])
def test_a_graph_in_which_nothing_can_be_searched_is_refused(
    lacking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = onnx.helper
    one = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    constant = helper.make_node("Constant", [], ["y"], value_floats=[1.0])
    parts = (
        ([constant], "g", [], [one])
        if lacking == "inputs"
        else ([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [])
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(*parts), opset_imports=[helper.make_opsetid("", 17)]), path)
    assert main(["nan", str(path), "--input", "x=float32[1]:0..1"]) == 2
    assert f"m.onnx has no {lacking}, so there is nothing to search" in capsys.readouterr().err
