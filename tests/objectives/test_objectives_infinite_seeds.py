"""Outputs that are infinite on every seed: a mask is said and not counted, what has nothing else left counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
import nnfuzz.onnx
from onnx import TensorProto, helper, numpy_helper

SEEDS = 100 + 100 * torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
QUICK: dict[str, Any] = {"max_inputs": 200, "max_seconds": None}
WEIGHT = np.eye(4, dtype=np.float32) + 1
WEIGHT[1, 1] = np.inf


def graph(op: str, *reads: str) -> Any:
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    weights = [numpy_helper.from_array(WEIGHT, "W")] if "W" in reads else []
    made = helper.make_graph([helper.make_node(op, reads, ["y"], "the_node")], "g", types[:1], types[1:], weights)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return nnfuzz.onnx.load(proto)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(WEIGHT.copy()))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


@pytest.mark.parametrize("model", [torch.exp, lambda: graph("Exp", "x")], ids=["torch", "onnx"])
def test_an_output_with_nothing_but_infinities_is_a_finding(model: Any) -> None:
    model = model if model is torch.exp else model()
    run = nnfuzz.find_nans(model, SEEDS, **QUICK)
    (finding,) = run.findings
    assert (finding.symptom, finding.distance["linf"]) == ("+inf", 0.0)
    assert not any("taken for a mask" in note for note in run.notes)


def test_so_is_one_beside_another_that_is_fine() -> None:
    run = nnfuzz.find_nans(lambda x: (x, x.exp()), SEEDS, **QUICK)
    assert [f.distance["linf"] for f in run.findings] == [0.0]


@pytest.mark.parametrize(
    ("made", "held"),
    [
        (Product, "the parameter w holds an infinity (1 of 16 values, the first at [1, 1])"),
        (
            lambda: graph("MatMul", "x", "W"),
            "the initializer 'W', read by node the_node, holds an infinity (1 of 16 values, the first at [1, 1])",
        ),
    ],
    ids=["torch", "onnx"],
)
def test_a_column_that_is_infinite_on_every_seed_is_said(made: Any, held: str) -> None:
    run = nnfuzz.find_nans(made(), SEEDS, **QUICK, phase="forward", ranges=(100.0, 200.0))
    assert not run.findings
    (note,) = [n for n in run.notes if "taken for a mask" in n]
    assert "is infinite in 1 of 4 places (+Inf) on all of 6 seeds: an infinity" in note
    assert note.endswith(held)


@pytest.mark.parametrize("mask", [[0.0, 0.0, 0.0, -torch.inf], [-torch.inf] * 4])
def test_a_mask_is_said_and_not_counted(mask: list[float]) -> None:
    run = nnfuzz.find_nans(lambda x: x + torch.tensor(mask), SEEDS, **QUICK)
    assert not run.findings
    (note,) = run.notes
    assert f"in {mask.count(-torch.inf)} of 4 places (−Inf) on all of 6 seeds" in note


def test_a_number_a_row_that_is_infinite_is_no_mask() -> None:
    (finding,) = nnfuzz.find_nans(lambda x: x.exp().sum(-1), SEEDS, **QUICK).findings
    assert finding.distance["linf"] == 0.0
