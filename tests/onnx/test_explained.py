"""What explain says of an ONNX model: a repaired graph that keeps right answers, and which of two runtimes fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from target_zoo import FLOAT, model, node, saved
from test_target_fix import graph_of, one, proposal

import nnfuzz
import nnfuzz.onnx
from nnfuzz.onnx.fix import write_fixed


def tempered(tmp_path: Path) -> Path:
    """y = softmax(x / (t − 1)): finite for every t but 1."""
    made = model(
        [node("Sub", ["t", "one"], ["d"]), node("Div", ["x", "d"], ["q"]), node("Softmax", ["q"], ["y"], axis=1)],
        [("x", FLOAT, ["n", 4]), ("t", FLOAT, [])], [("y", FLOAT, ["n", 4])], {"one": one()},
    )  # fmt: skip
    return saved(made, tmp_path / "tempered.onnx")


def test_the_repaired_graph_keeps_the_answers_of_negative_denominators(tmp_path: Path) -> None:
    path = tempered(tmp_path)
    x = np.random.default_rng(0).random((6, 4), np.float32)
    np.savez(tmp_path / "s.npz", x=x, t=np.float32(2))
    seeds = [{"x": torch.from_numpy(row[None]), "t": torch.tensor(2.0)} for row in x]
    nnfuzz.find_nans(path, seeds, ranges={"t": (0.5, 2)}, max_inputs=4000, stop_on_first=True, out=tmp_path / "run")
    place = tmp_path / "run" / "findings" / "F0001"
    said = nnfuzz.explain(place, inputs=100, seconds=0.3)
    assert "written: fixed.onnx, with div.signed:" in said, said
    assert "  div.guard: on other legal inputs, which do not fail, it differs by" in said
    told = next(line for line in said.splitlines() if line.startswith("  in ONNX Runtime the failing inputs"))
    assert "; 6 seeds and " in told  # one of them is the finding's own
    assert " other inputs agree within" in told
    old, new = nnfuzz.onnx.load(path), nnfuzz.onnx.load(place / "fixed.onnx")
    for t in (0.5, 0.7, 0.999, 1.001, 2.0):
        given = {"x": torch.from_numpy(x), "t": torch.tensor(t)}
        assert torch.allclose(old(**given)["y"], new(**given)["y"], rtol=1e-4, atol=1e-6)


def test_a_graph_that_differs_on_other_inputs_is_not_written(tmp_path: Path) -> None:
    loaded = nnfuzz.onnx.load(graph_of(node("Reciprocal", ["x"], ["y"])))
    failing, seed, other = ({"x": torch.full((1, 4), v)} for v in (0.0, 2.0, -0.5))
    rough = proposal("div.guard", "y")
    rough.verification.checks[1] = type(rough.verification.checks[1])("seeds", True, "", (0,))
    told = write_fixed(loaded, [rough], torch.float32, failing, [seed], tmp_path, [other])
    assert told[1].startswith("  div.guard: in ONNX Runtime it changes y on other legal inputs, which do not fail, by")
    assert not (tmp_path / "fixed.onnx").exists()
    fine = proposal("div.signed", "y")
    fine.verification.checks[1] = type(fine.verification.checks[1])("seeds", True, "", (0, 1))
    said = write_fixed(loaded, [fine], torch.float32, failing, [seed], tmp_path, [other, failing])[-1]
    assert "; the seed and 1 other input agree within" in said  # the failing input itself is not comparable


def test_a_failure_of_onnx_runtime_alone_is_told_as_one(tmp_path: Path) -> None:
    """Its tanh is 1 from about 8.1 on, that of torch from about 9.0 on."""
    made = graph_of(node("Tanh", ["x"], ["t"]), node("Sub", ["one", "t"], ["d"]), node("Log", ["d"], ["y"]), one=one())
    path = saved(made, tmp_path / "m.onnx")
    top = {"x": torch.full((1, 4), 8.8)}
    loaded = nnfuzz.onnx.load(path)
    if bool(loaded(**top)["y"].isfinite().all()) or not bool(loaded.program(**top)["y"].isfinite().all()):
        pytest.skip("here ONNX Runtime and torch have the same tanh")
    nnfuzz.find_nans(path, torch.rand(4, 4), ranges=(0, 8.8), max_inputs=2000, out=tmp_path / "run")
    place = tmp_path / "run" / "findings" / "F0001"
    assert nnfuzz.repro(place).reproduced
    said = " ".join(nnfuzz.explain(place, inputs=0).split())
    assert "ONNX Runtime gives -inf in y; the interpreter, which computes with torch, is finite on this input" in said
    assert "no operation can be named" in said
    assert "does not show" not in said
    assert said.count("the interpreter") == 1
