"""Models that give labels without scores are compared by them, whatever the other side gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.objectives import Disagreement
from nnfuzz.targets import Trace
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
SEEDS = {"x": torch.from_numpy(np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32))}


class Scores(nn.Module):
    """``turned``: how far the weights are from those of the others."""

    def __init__(self, turned: float = 0.0):
        super().__init__()
        more = torch.from_numpy(np.random.default_rng(2).standard_normal((6, 4)).astype(np.float32))
        self.weight = nn.Parameter(torch.from_numpy(WEIGHT) + turned * more)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Labels(Scores):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(1)


def graph(turned: float = 0.0) -> onnx.ModelProto:
    weight = Scores(turned).weight.detach().numpy()
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])]
    gives = [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])]
    made = helper.make_graph(nodes, "labels", given, gives, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sides(turned: float) -> list[Any]:
    return [Scores(turned), Labels(turned), nnfuzz.onnx.load(graph(turned))]


@pytest.mark.parametrize("b", [0, 1, 2])
@pytest.mark.parametrize("a", [0, 1, 2])
def test_other_weights_give_other_labels_and_the_same_the_same(a: int, b: int) -> None:
    quick = {"max_inputs": 1500, "ranges": {"x": (-3.0, 3.0)}}
    assert not nnfuzz.diff(sides(0.0)[a], sides(0.0)[b], SEEDS, **quick).findings
    run = nnfuzz.diff(sides(0.0)[a], sides(0.1)[b], SEEDS, stop_on_first=True, **quick)
    x = run.findings[0].inputs["x"]
    answers = [int(Labels(turned)(x)) for turned in (0.0, 0.1)]
    assert answers[0] != answers[1]
    assert [run.findings[0].details[f"answer_{side}"] for side in "ab"] == answers
    said = [n for n in run.notes if "labels without scores" in n]
    assert bool(said) == (a > 0 or b > 0)


def test_every_label_counts_and_near_scores_tie_with_a_label() -> None:
    one, other = torch.tensor([[1, 2], [1, 2], [0, 0]]), torch.tensor([[1, 2], [1, 3], [0, 0]])
    flags = torch.tensor([True, False, True])
    objective = Disagreement()
    trace = Trace({"a.y": one, "a.f": flags, "b.y": other, "b.f": ~flags & (one[:, 0] == 1)})
    assert objective.judge(trace, {"x": one}).hits.tolist() == [True, True, True]
    trace = Trace({"a.y": one, "a.f": flags, "b.y": other, "b.f": flags})
    assert objective.judge(trace, {"x": one}).hits.tolist() == [False, True, False]
    scores = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
    trace = Trace({"a.s": scores, "b.y": torch.tensor([2, 1, 1])})
    assert objective.judge(trace, {"x": one}).hits.tolist() == [True, False, True]


@pytest.mark.parametrize("of", ["graphs", "modules"])
def test_scripts_see_it_again(of: str, tmp_path: Path) -> None:
    """In NumPy and ONNX Runtime for two graphs, else in torch."""
    models: list[Any] = []
    for name, turned in (("a", 0.0), ("b", 0.1)):
        onnx.save(graph(turned), str(tmp_path / f"{name}.onnx"))
        models.append(tmp_path / f"{name}.onnx")
    if of == "modules":
        source = (
            "import torch\nfrom torch import nn\n\n\nclass Labels(nn.Module):\n"
            "    def __init__(self, w):\n        super().__init__()\n        self.w = nn.Parameter(torch.tensor(w))\n\n"
            "    def forward(self, x):\n        return (x @ self.w).argmax(1)\n\n\n"
        )
        for name, turned in (("a", 0.0), ("b", 0.1)):
            source += f"def {name}():\n    return Labels({Scores(turned).weight.tolist()})\n\n\n"
        (tmp_path / "labels_of.py").write_text(source)
        models = [f"{tmp_path}/labels_of.py:{name}" for name in "ab"]
    np.savez(tmp_path / "seeds.npz", x=SEEDS["x"].numpy())
    words = [sys.executable, "-m", "nnfuzz", "diff", *map(str, models), "--seeds", str(tmp_path / "seeds.npz")]
    more = ["--max-inputs", "1500", "--stop-on-first", "--range=-3:3", "-o", str(tmp_path / "run")]
    found = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    script = next((tmp_path / "run" / "findings").glob("F*/repro.py"))
    again = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "REPRODUCED" in again.stdout
    assert ("import torch" in script.read_text()) == (of == "modules")
