"""A trained classifier's losses are tiny numbers made of large ones; rows are independent all the same."""

from __future__ import annotations

import torch

import nnfuzz


def test_losses_near_zero_do_not_look_like_dependence() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(20, 5, generator=generator) * 4

    def loss(x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(x @ weight, 1)
        return -torch.log(p.amax(1))

    run = nnfuzz.find_nans(loss, torch.randn(32, 20, generator=generator), max_inputs=200, phase="forward")
    assert run.stats.unit == "sample"


def test_small_dependence_is_still_seen() -> None:
    def centred(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) * 0.01

    run = nnfuzz.find_nans(centred, torch.rand(16, 4), max_inputs=200, phase="forward")
    assert run.stats.unit == "batch"
