"""What the header of ``nnfuzz nan`` says it looks for is what it can find, of graphs and of models in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_zoo import FLOAT, INT64, model, node
from torch import Tensor, nn

import nnfuzz
from nnfuzz.report.base import RunInfo, SilentReporter

SEEDS = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))


class Header(SilentReporter):
    searched = ""

    def start(self, info: RunInfo) -> None:
        self.searched = info.searched


def label(x: Tensor) -> Tensor:
    return x.exp().argmax(-1)


def picked(x: Tensor) -> Tensor:
    """An index that only some inputs take beyond the table."""
    return torch.arange(40)[(x * 10).long().sum(-1)]


class Labels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = self.fc(x).argmax(-1)
        return chosen


def graph() -> Any:
    nodes = [node("Exp", ["x"], ["e"], "grow"), node("ArgMax", ["e"], ["best"], "best", axis=1, keepdims=0)]
    return nnfuzz.onnx.load(model(nodes, [("x", FLOAT, ["n", 4])], [("best", INT64, ["n"])]))


ERRORS = "inputs on which the model raises an error, and nothing else: no output holds a floating-point number"


@pytest.mark.parametrize(
    ("made", "watch", "said"),
    [
        (label, "outputs", f"{ERRORS} (output int64)"),
        (graph, "outputs", f"{ERRORS} (best int64)"),
        (label, "layers", f"{ERRORS} (output int64)"),  # a function has no layers
        (
            Labels,
            "layers",
            "NaN and Inf in every layer's output: no output holds a floating-point number (output int64)",
        ),
        (graph, "layers", "NaN and Inf in every layer's output: no output holds a floating-point number (best int64)"),
        (label, "internal", "NaN and Inf inside: no output holds a floating-point number (output int64)"),
        (graph, "internal", "NaN and Inf inside: no output holds a floating-point number (best int64)"),
        (torch.exp, "outputs", "NaN and Inf in outputs and gradients"),
        (torch.exp, "internal", "NaN and Inf in outputs and gradients and inside"),
        (lambda x: (x.argmax(-1), x.exp()), "outputs", "NaN and Inf in outputs and gradients"),
    ],
)
def test_what_is_looked_for_is_what_can_be_found(made: Any, watch: str, said: str) -> None:
    header = Header()
    given = made() if made in (graph, Labels) else made
    nnfuzz.find_nans(given, SEEDS, ranges=(0, 1), watch=watch, reporter=header, max_inputs=64, max_seconds=None)
    assert header.searched == said


def test_errors_are_found_where_they_are_all_that_is_looked_for() -> None:
    header = Header()
    run = nnfuzz.find_nans(picked, 0.1 * SEEDS, ranges=(0, 2), reporter=header, max_inputs=300, max_seconds=None)
    assert header.searched.startswith(ERRORS)
    assert [f.symptom for f in run.findings] == ["exception"]


def test_inside_a_graph_of_whole_numbers_something_is_found() -> None:
    run = nnfuzz.find_nans(graph(), SEEDS, ranges=(0, 200), watch="internal", max_inputs=400, max_seconds=None)
    assert [f.site.called for f in run.findings if f.site] == ["Exp"]
