"""What is a candidate, and is a fast way of running it the same as one call each?"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.callform import CallForm
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.seeds import read_seeds
from nnfuzz.targets.drive import agree, drive_loop, plain_call, works
from nnfuzz.targets.unit import decide


class RNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


def mean_loss(x: Tensor) -> Tensor:
    return x.square().mean()


def contrastive(x: Tensor) -> Tensor:
    z = nn.functional.normalize(x, dim=-1)
    return nn.functional.cross_entropy(z @ z.T / 0.1, torch.arange(len(x)))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def no_batch_axis(x: Tensor) -> Tensor:
    assert x.dim() == 1
    return x.cumsum(0)


def branches(x: Tensor) -> Tensor:
    return x.sum().reshape(1) if float(x.sum()) > 1.5 else (-x.sum() * 0).reshape(1)


def own_gradient(x: Tensor) -> Tensor:
    y = x.clone().requires_grad_()
    return torch.autograd.grad(y.square().sum(), y)[0].sum(-1)


def exported() -> Any:
    return torch.export.export(nn.Linear(3, 2), (torch.rand(1, 3),)).module()


def scripted() -> Any:
    class Plus(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and still in use
        return torch.jit.script(Plus())


CASES: dict[str, tuple[Any, Any, str, str | None]] = {
    "classifier": (
        lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)),
        torch.rand(6, 3),
        "sample",
        "rows",
    ),
    "mean loss": (lambda: mean_loss, torch.rand(6, 3), "batch", "vmap"),
    "batch norm, training": (lambda: nn.BatchNorm1d(3), torch.rand(6, 3), "batch", None),
    "contrastive loss": (lambda: contrastive, torch.rand(6, 3), "batch", None),
    "centred rows": (lambda: centred, torch.rand(6, 3), "batch", "vmap"),
    "no batch axis": (lambda: no_batch_axis, torch.rand(6, 3), "batch", "vmap"),
    "time first": (RNN, torch.rand(5, 2, 3), "batch", None),
    "static batch of one": (exported, torch.rand(6, 3), "batch", None),
    "scripted": (scripted, torch.rand(6, 3), "sample", "rows"),
    "own gradient": (lambda: own_gradient, torch.rand(6, 3), "sample", "rows"),
    "branches on values": (lambda: branches, list(torch.rand(6, 3)), "batch", "loop"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_candidate_is(case: str) -> None:
    make, given, unit, drive = CASES[case]
    model = make()
    if isinstance(model, nn.Module) and "training" not in case and case != "static batch of one":
        model.eval()
    seeds = read_seeds(given, model)
    plan = decide(plain_call(model, seeds.form), seeds)
    assert plan.unit == unit
    assert plan.why
    if drive is not None:
        assert plan.drive == drive


@pytest.mark.parametrize("case", CASES)
def test_the_drive_that_is_taken_gives_what_a_loop_gives(case: str) -> None:
    make, given, unit, _ = CASES[case]
    model = make()
    job = nnfuzz.find_nans(model, given, max_inputs=64, max_seconds=None, train="training" in case, phase="forward")
    assert job.stats.unit == unit
    seeds = read_seeds(given, model)
    call = plain_call(model, seeds.form)
    plan = decide(call, seeds)
    if plan.unit == "batch" and "training" not in case:
        batch = {n: torch.cat([t, torch.rand_like(t)]) for n, t in plan.seeds.groups[0].batch.items()}
        assert plan.drive == "loop" or works(plan.drive, call, batch)
        assert agree(drive_loop(call, batch), drive_loop(call, batch))


def test_batch_norm_in_training_is_left_as_it_was() -> None:
    model = nn.BatchNorm1d(3)
    nnfuzz.find_nans(model, torch.rand(6, 3), max_inputs=200, max_seconds=None, train=True)
    assert model.running_mean.tolist() == [0, 0, 0]
    assert model.training


@pytest.mark.parametrize(("model", "unit"), [(lambda x: x + torch.randn_like(x), "sample"), (mean_loss, "batch")])
def test_noise_is_no_dependence(model: Any, unit: str) -> None:
    """A model that draws random numbers answers a row differently alone and together, and as differently together."""

    def noisy(x: Tensor) -> Tensor:
        return model(x) * torch.rand(())

    seeds = read_seeds(torch.rand(6, 3), noisy)
    plan = decide(plain_call(noisy, seeds.form), seeds)
    assert plan.unit == unit
    if unit == "sample":
        assert "two calls differ" in plan.why


def test_the_user_may_decide() -> None:
    seeds = read_seeds(torch.rand(6, 3), mean_loss)
    call = plain_call(nn.Linear(3, 2), CallForm.of(nn.Linear(3, 2), torch.rand(6, 3)))
    linear = read_seeds(torch.rand(6, 3), nn.Linear(3, 2))
    assert decide(call, linear, "batch").unit == "batch"
    assert decide(call, linear, "sample").unit == "sample"
    with pytest.raises(UsageError, match="unit=sample does not fit"):
        decide(plain_call(mean_loss, seeds.form), seeds, "sample")


def test_a_branch_that_only_some_values_take_is_seen_before_it_matters() -> None:
    """The seeds all take one side, so vmap agrees on them; random legal values show that it does not fit."""

    def model(x: Tensor) -> Tensor:
        return torch.sqrt(x.max() - 0.9) if bool((x.max() > 0.9).item()) else x.sum()

    run = nnfuzz.find_nans(
        model, [torch.rand(3) / 2 for _ in range(4)], ranges=(0, 1), max_inputs=300, max_seconds=None
    )
    assert all(f.symptom != "exception" for f in run.findings)


def test_a_model_that_takes_no_seed_at_all() -> None:
    seeds = read_seeds(torch.rand(6, 3), nn.Linear(7, 2))
    with pytest.raises(ModelFailure, match="fails on its own seeds"):
        decide(plain_call(nn.Linear(7, 2), seeds.form), seeds)
