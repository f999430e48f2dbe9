"""The table of inputs as the space knows it."""

from __future__ import annotations

import json

import pytest
import torch

from nnfuzz.report import InputRow
from nnfuzz.report.base import RunInfo
from nnfuzz.space import FreeDim, InputSpec


def spec(**facts: object) -> InputSpec:
    one = torch.ones(())
    made: dict = {"name": "x", "shape": (3, 4), "dtype": torch.float32, "low": -one, "high": one}
    return InputSpec(**(made | facts))


@pytest.mark.parametrize(
    ("given", "range_", "shape"),
    [
        ({}, "-1..1", (3, 4)),
        ({"low": torch.tensor([0.0, 1]), "high": torch.tensor([2.0, 3])}, "0..3, each element its own", (3, 4)),
        ({"kind": "choice", "choices": torch.tensor([0, 1, 4])}, "{0, 1, 4}", (3, 4)),
        ({"kind": "choice", "choices": torch.arange(9)}, "{0, 1, 2, 3, 4, …}", (3, 4)),
        ({"kind": "onehot"}, "", (3, 4)),
        ({"dims": (FreeDim("n"), 4)}, "-1..1", ("n", 4)),
        ({"low": torch.tensor(-float("inf")), "high": torch.tensor(float("inf"))}, "-∞..∞", (3, 4)),
    ],
)
def test_row(given: dict, range_: str, shape: tuple) -> None:
    row = InputRow.of(spec(**given))
    assert (row.range, row.shape, row.dtype) == (range_, shape, "float32")


def test_info_is_json_able() -> None:
    rows = RunInfo.rows([spec(), spec(name="y", fixed=True)])
    assert json.loads(json.dumps(RunInfo("nnfuzz nan", "m", inputs=rows).to_json()))["inputs"][1]["fixed"] is True
