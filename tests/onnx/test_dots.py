"""Names of nodes and weights as exporters write them, ``/model/layers.0/Log``, are told as they stand in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from target_zoo import FLOAT, model, node

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.cli import main

NODE = "/model/layers.0/Log"


def graph() -> onnx.ModelProto:
    nodes = [
        node("Add", ["x", "model.layers.0.bias"], ["/model/layers.0/Add_output_0"], name="/model/layers.0/Add"),
        node("Log", ["/model/layers.0/Add_output_0"], ["/model/layers.0/Log_output_0"], name=NODE),
        node("Neg", ["/model/layers.0/Log_output_0"], ["y"], name="/model/layers_0/Log"),
    ]
    weights = {"model.layers.0.bias": np.full(4, 0.5, np.float32)}
    return model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], weights)


def test_a_finding_names_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(graph(), str(tmp_path / "m.onnx"))
    np.savez(tmp_path / "s.npz", x=np.ones((3, 4), np.float32))
    words = ["nan", str(tmp_path / "m.onnx"), "--seeds", str(tmp_path / "s.npz"), "--range=-1:1", "-n", "2000"]
    assert main([*words, "--stop-on-first", "--layers", NODE, "-o", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    folder = next((tmp_path / "run" / "findings").glob("F*"))
    assert main(["explain", str(folder)]) == 0
    explained = capsys.readouterr().out
    for text in (said.out + said.err, explained, (folder / "README.md").read_text()):
        assert NODE in text
        assert "layers\u2024" not in text


def test_a_pattern_that_fits_nothing_is_answered_with_names_that_do(refused: object) -> None:
    assert callable(refused)
    told = refused(nnfuzz.find_nans, nnfuzz.onnx.load(graph()), torch.ones(3, 4), layers=["no such"], max_inputs=100)
    assert NODE in told
