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
        ("my.ops", {"my.ops": 3}, "the operator Frobnicate of domain 'my.ops', version 3 (node 'odd')"),
        ("", {}, "the operator Frobnicate of domain 'ai.onnx', version 17 (node 'odd')"),
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
