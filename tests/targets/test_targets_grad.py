"""Models that ask for gradients themselves: a penalty on them, a physics-informed loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz


class Penalty(nn.Module):
    """log |du/dx|²: NaN-free until the network's slope vanishes; marks its input itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_(True)
        (g,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return torch.log(g.square().sum(-1))


def slope(x: Tensor) -> Tensor:
    x = x.requires_grad_(True)
    (g,) = torch.autograd.grad(torch.sqrt(x.abs()).sum(), x, create_graph=True)
    return g


SEEDS = torch.linspace(-1, 1, 12).reshape(6, 2)


@pytest.mark.parametrize("seeds", [SEEDS, [SEEDS[:3], SEEDS[3:]]], ids=["rows", "batches"])
def test_a_model_that_marks_its_input_runs_whatever_a_candidate_is(seeds: Any) -> None:
    run = nnfuzz.find_nans(slope, seeds, ranges=(-1, 1), max_inputs=3000, max_seconds=30)
    assert {f.symptom for f in run.findings} & {"nan", "+inf", "-inf"}
    assert not SEEDS.requires_grad
    assert all(not t.requires_grad for f in run.findings for t in f.inputs.values())


def test_a_penalty_on_gradients_is_searched() -> None:
    run = nnfuzz.find_nans(Penalty(), SEEDS, ranges=(-1e4, 1e4), max_inputs=3000, max_seconds=30, stop_on_first=True)
    assert run.findings[0].site is not None
    assert run.findings[0].site.op in ("log", "div")


def test_what_is_wrong_with_the_seeds_is_told_not_that_gradients_were_off() -> None:
    with pytest.raises(
        nnfuzz.NnfuzzError, match=r"fails on its own seeds: IndexError: .*\(test_targets_grad\.py:\d+: "
    ):
        nnfuzz.find_nans(lambda x: Penalty()(x).sum(3), [SEEDS[0]], ranges=(-1, 1), max_inputs=10)
