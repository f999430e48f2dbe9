"""NaN that is 0·inf where the infinity is a weight's: the chain ends at that weight, and the finding names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
import nnfuzz.onnx
from nnfuzz.probe import first_bad
from onnx import TensorProto, helper, numpy_helper

INF = torch.inf


def weight() -> Tensor:
    w = torch.ones(4, 4)
    w[1, 1] = INF
    return w


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(weight())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def graph() -> Any:
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    held = [numpy_helper.from_array(weight().numpy().astype(np.float32), "W")]
    made = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"], "m")], "g", types[:1], types[1:], held)
    return nnfuzz.onnx.load(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    ("made", "link", "note"),
    [
        (Product, "infinity in parameter w[1, 1] (times 0)", "the parameter w holds an infinity"),
        (graph, "infinity in initializer W[1, 1] (times 0)", "the initializer 'W', read by node m, holds an infinity"),
    ],
    ids=["torch", "onnx"],
)
def test_the_weight_is_the_cause(made: Any, link: str, note: str, tmp_path: Path) -> None:
    model = made()
    seeds = 1 + torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
    limits: dict[str, Any] = {"max_inputs": 600, "max_seconds": None}
    run = nnfuzz.find_nans(model, seeds, ranges=(-1, 2), phase="forward", **limits)
    (finding,) = run.findings
    assert float(finding.inputs["x"][0, 1]) == 0
    said = nnfuzz.explain(finding.save(tmp_path / "f"), model=model)
    assert link in said
    assert any(line.startswith(note) for line in said.splitlines())
    assert "input x[" not in said
    assert "no failure there was found" not in said


class Convolution(nn.Module):
    def __init__(self, at: int, *, input_infinite: bool) -> None:
        super().__init__()
        self.c = nn.Conv1d(1, 1, 3, bias=False)
        with torch.no_grad():
            self.c.weight.fill_(1.0)[0, 0, at] = 0.0 if input_infinite else INF

    def forward(self, x: Tensor) -> Tensor:
        return self.c(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("at", range(3))
def test_of_a_convolution_it_is_the_tap(at: int) -> None:
    x = torch.ones(1, 1, 3)
    x[0, 0, at] = 0
    bad = first_bad(Convolution(at, input_infinite=False), (x,))
    assert bad is not None
    assert bad.chain[-1].how == f"infinity in parameter c.weight[0, 0, {at}]"
    assert bad.chain[-1].why == "times 0"


def test_an_infinity_that_was_not_read_is_not_blamed() -> None:
    """Column 3 is infinite too, but NaN came of column 1."""
    w = weight()
    w[0, 3] = INF
    model = Product()
    model.w = nn.Parameter(w)
    bad = first_bad(model, (torch.tensor([[1.0, 0.0, 2.0, 3.0]]),))
    assert bad is not None
    assert bad.chain[-1].how == "infinity in parameter w[1, 1]"
