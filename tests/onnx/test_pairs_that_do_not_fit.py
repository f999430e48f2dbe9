"""Two models whose inputs cannot be one another's: said before anything runs, with the match that was tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from target_zoo import FLOAT, HALF, INT64, model, node, saved

from nnfuzz.cli import main

NETS = """
import torch

def ran(x):
    raise AssertionError("A was run")

class Two(torch.nn.Module):
    def forward(self, p, q):
        return p + 2 * q

two = Two()
"""
BOTH = "; give two models that take the same inputs, or say which belong together with --map A_NAME=B_NAME"


def flat(path: str, shape: list[Any], *, x: str = "x", kind: int = FLOAT) -> None:
    saved(model([node("Identity", [x], ["y"])], [(x, kind, shape)], [("y", kind, shape)]), Path(path))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    flat("a.onnx", ["N", 3, 48, 192])
    flat("digits.onnx", ["N", 1, 28, 28], x="y0")
    flat("ints.onnx", ["N", 3, 48, 192], kind=INT64)
    flat("half.onnx", ["N", 3, 48, 192], kind=HALF)
    flat("lines.onnx", ["N", 3], x="lines")
    flat("four.onnx", [4, 3, 48, 192])
    flat("one.onnx", [1, 3, 48, 192])
    (tmp_path / "nets.py").write_text(NETS)
    np.save("seeds.npy", np.random.default_rng(0).uniform(-1, 1, (4, 3, 48, 192)).astype(np.float32))
    return tmp_path


A = "A's x float32[N, 3, 48, 192] = "
MESSAGES = {
    "a.onnx digits.onnx": A + "B's y0 float32[N, 1, 28, 28], matched in order, do not fit: axis 1 is 3 here and 1 there"
    + BOTH,
    "a.onnx ints.onnx": A + "B's x int64[N, 3, 48, 192], matched by name, do not fit: float32 is given where int64 is "
    "taken" + BOTH,
    "a.onnx half.onnx": A + "B's x float16[N, 3, 48, 192], matched by name, do not fit: float32 is given where "
    "float16 is "
    "taken (an fp16 copy may keep float32 inputs: keep_io_types of the converter, or --as fp16)" + BOTH,
    "a.onnx lines.onnx --map x=lines": A + "B's lines float32[N, 3], matched by --map, do not fit: 4 axes are given "
    "where "
    "2 are taken" + BOTH,
    "a.onnx lines.onnx": "B takes the inputs lines float32[N, 3] and A takes x float32[N, 3, 48, 192]: nothing of A "
    "fits "
    "'lines'; say what does with --map A_NAME=B_NAME",
    "nets.py:ran digits.onnx": "A's x float32[n, 3, 48, 192] = B's y0 float32[N, 1, 28, 28], matched in order, do not "
    "fit: axis 1 is 3 here and 1 there" + BOTH,
    "a.onnx four.onnx": "A's x = B's x float32[4, 3, 48, 192] do not fit: B takes 4 rows together, and A's "
    "candidates have "
    "1; give four.onnx as the first model, which says what a candidate is",
    "four.onnx one.onnx": "A's x float32[4, 3, 48, 192] = B's x float32[1, 3, 48, 192], matched by name, do not fit: "
    "axis "
    "0 is 4 here and 1 there" + BOTH,
    "nets.py:ran nets.py:two": "B does not take what A does: the model takes the inputs p, q but the seeds give 1 of "
    "them: give them all",
}  # fmt: skip


@pytest.mark.parametrize("sides", MESSAGES)
def test_the_match_that_was_tried_is_told(desk: Path, capsys: pytest.CaptureFixture[str], sides: str) -> None:
    assert main(["diff", *sides.split(), "--seeds", "seeds.npy", "--out", "run"]) == 2
    said = capsys.readouterr()
    assert said.err == f"nnfuzz: error: {MESSAGES[sides]}\n"
    assert said.out == ""
    assert not (desk / "run").exists()


MAPS = {
    "sum.onnx sum.onnx --map p=q --map q=q": "--map q=q: the input 'q' of B is given twice: give each of B's inputs "
    "once",
    "sum.onnx sum.onnx --map p=banana": "--map p=banana: B has no input 'banana', its inputs are p, q: use one of "
    "these",
    "sum.onnx sum.onnx --map banana=p": "--map banana=p: A has no input or output 'banana', its inputs are p, q, its "
    "output is y: use one of these",
    "sum.onnx sum.onnx --map y=banana": "--map y=banana: B has no output 'banana', its output is y: use one of these",
    "nets.py:two sum.onnx --map banana=p": "--map banana=p: A has no input 'banana', its inputs are p, q: use one of "
    "these",
    "nets.py:two sum.onnx --map banana=y": "--map banana=y: A has no output 'banana', it gives output",
    "nets.py:two nets.py:two --map p=banana": "--map p=banana: B has no input 'banana', its inputs are p, q: use one "
    "of "
    "these",
    "sum.onnx nets.py:two --map y=banana": "--map y=banana: B has no output 'banana', it gives output",
}  # fmt: skip


@pytest.mark.parametrize("words", MAPS)
def test_map_says_which_word_is_wrong(desk: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    two = [("p", FLOAT, ["n", 3]), ("q", FLOAT, ["n", 3])]
    saved(model([node("Add", ["p", "q"], ["y"])], two, [("y", FLOAT, ["n", 3])]), Path("sum.onnx"))
    np.savez("pq.npz", p=np.ones((4, 3), np.float32), q=np.zeros((4, 3), np.float32))
    assert main(["diff", *words.split(), "--seeds", "pq.npz", "--range", "-1:1", "--out", "run"]) == 2
    assert capsys.readouterr().err == f"nnfuzz: error: {MAPS[words]}\n"


@pytest.mark.parametrize("sides", ["nets.py:step step.onnx", "step.onnx nets.py:step"])
@pytest.mark.parametrize("scalar", [False, True])
def test_a_graph_says_which_axes_are_a_candidates_own(
    desk: Path, capsys: pytest.CaptureFixture[str], sides: str, scalar: bool
) -> None:
    state: list[Any] = [] if scalar else [1, "n", 3]
    both = [("p", FLOAT, ["n", 3]), ("h", FLOAT, state)]
    saved(model([node("Add", ["p", "h"], ["y"])], both, [("y", FLOAT, state or ["n", 3])]), Path("step.onnx"))
    Path("nets.py").write_text("def step(p, h):\n    return p + h\n")
    np.savez("ph.npz", p=np.ones((4, 2, 3), np.float32), h=np.zeros((4,) if scalar else (4, 1, 2, 3), np.float32))
    words = ["--seeds", "ph.npz", "--range", "-1:1", "--max-inputs", "64", "--plain"]
    assert main(["diff", *sides.split(), *words]) == 0
    text = capsys.readouterr().out
    assert "p  float32[2, 3]" in text
    assert f"h  float32{'[]' if scalar else '[1, 2, 3]'}" in text


def test_a_name_may_be_written_as_an_identifier(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat("dotted.onnx", ["N", 3], x="input.1")
    flat("slashed.onnx", ["N", 3], x="/in:0")
    words = ["diff", "dotted.onnx", "slashed.onnx", "--input", "input_1=float32[4,3]:-1..1", "--map", "input_1=_in_0"]
    assert main([*words, "--max-inputs", "100", "--plain"]) == 0
    assert "inputs matched (A = B): input.1 = /in:0" in capsys.readouterr().out
