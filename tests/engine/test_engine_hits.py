"""From a hit to a finding: exceptions, flaky and batch-only cases, failing seeds, counting, telling apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.guard import run_guarded
from nnfuzz.targets.base import Target, Trace, Want

QUICK: dict[str, Any] = {"max_seconds": None, "max_inputs": 2000, "phase": "forward"}


def find(model: Any, seeds: Any, **more: Any) -> nnfuzz.Run:
    return nnfuzz.find_nans(model, seeds, **(QUICK | {"ranges": (0, 2)} | more))


def test_an_exception_is_isolated_and_shrunk() -> None:
    def model(x: Tensor) -> Tensor:
        if (x[..., 1] > 1.5).any():
            raise ValueError(f"value {float(x.max())} is too large")
        return x.sum(-1)

    run = find(model, torch.rand(5, 4))
    (finding,) = run.findings
    assert finding.symptom == "exception"
    assert finding.confirmed
    assert finding.details["exception"] == "ValueError"
    assert "too large" in finding.cause
    assert finding.distance["l0"] == 1
    assert 1.5 < float(finding.inputs["x"][0, 1]) < 1.51
    assert len(run.corpus) > 5  # the clean ones of those batches still teach


def test_messages_that_differ_in_numbers_only_are_one_cause() -> None:
    def model(x: Tensor) -> Tensor:
        if x.max() > 1.9:
            raise RuntimeError(f"overflow {float(x.max())} in row {int(x.argmax())}")
        if x.min() < 0.01:
            raise KeyError("small")
        return x.sum(-1)

    run = find(model, torch.rand(5, 4) + 0.1)
    assert sorted(f.details["exception"] for f in run.findings) == ["KeyError", "RuntimeError"]


class Halves(Target):
    """Cannot take more than three rows at a time, and raises alone on negative ones."""

    name, unit, why, device = "halves", "sample", "", torch.device("cpu")

    def run(self, batch: dict[str, Tensor], want: Want) -> Trace:
        x = batch["x"]
        if len(x) > 3:
            raise RuntimeError("out of memory")
        if (x < 0).any():
            raise ValueError("negative")
        return Trace({"output": x.clone()})

    def model_input(self, candidate: Any) -> Any:
        return candidate

    def describe(self) -> str:
        return "halves"


@pytest.mark.parametrize("bad", [[], [0], [9], [2, 3, 7]])
def test_a_guarded_run_keeps_rows_and_results_together(bad: list[int]) -> None:
    x = torch.arange(10.0) + 1
    x[bad] *= -1
    guarded = run_guarded(Halves(), {"x": x}, Want())
    assert sorted(row for row, _ in guarded.crashed) == bad
    assert guarded.ran.tolist() == [i for i in range(10) if i not in bad]
    assert torch.equal(guarded.trace.outputs["output"], x[torch.from_numpy(guarded.ran)])


def test_seeds_that_raise_are_findings_and_the_others_are_used() -> None:
    def model(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x.sum(-1)

    seeds = torch.rand(24, 3) + 0.1
    seeds[10:20] *= -1
    run = nnfuzz.find_nans(model, seeds, ranges=(-2, 2), **QUICK)
    finding = next(f for f in run.findings if f.symptom == "exception")
    assert finding.distance["linf"] == 0
    assert {run.corpus.seed_index[i] for i in run.corpus} == {*range(10), *range(20, 24)}


def test_seeds_that_fail_are_findings_at_distance_zero() -> None:
    seeds = torch.rand(6, 3)
    seeds[2, 1] = 1.9
    (finding,) = find(lambda x: torch.sqrt(1.5 - x).sum(-1), seeds).findings
    assert finding.seed_index == 2
    assert finding.distance == {"linf": 0.0, "l2": 0.0, "l0": 0.0}
    assert finding.lineage[0]["op"] == "seed"


def test_a_run_whose_seeds_all_fail_ends_politely() -> None:
    run = find(lambda x: torch.sqrt(0.5 - x).sum(-1), torch.rand(6, 3) + 0.6)
    assert run.stats.stopped == "every seed fails"
    assert len(run.findings) == 1
    assert len(run.corpus) == 0


def test_a_failure_that_comes_and_goes_is_flaky() -> None:
    state = np.random.default_rng(0)

    def model(x: Tensor) -> Tensor:
        return torch.where(torch.from_numpy(state.random(len(x)) < 0.4), torch.nan, x.sum(-1))

    run = nnfuzz.find_nans(model, torch.rand(6, 3), unit="sample", **QUICK)
    assert {f.status for f in run.findings} <= {"flaky", "batch-only", "confirmed"}
    flaky = [f for f in run.findings if f.status == "flaky"]
    assert flaky
    assert not flaky[0].confirmed
    assert "not deterministic" in " ".join(flaky[0].notes)


def test_a_failure_of_the_batch_is_batch_only() -> None:
    def model(x: Tensor) -> Tensor:
        bad = (x.amax(-1) > 1.5) & (len(x) > 1)
        return torch.where(bad, torch.nan, x.sum(-1))

    run = find(model, torch.rand(6, 3))
    assert [f.status for f in run.findings] == ["batch-only"]
    assert not run.findings[0].confirmed
    assert "only together" in " ".join(run.findings[0].notes)


def test_what_fails_only_in_its_batch_does_not_end_a_search_for_the_first() -> None:
    def model(x: Tensor) -> dict[str, Tensor]:
        together = (x.amax(-1) > 1.2) & (len(x) > 1)
        alone = x.amin(-1) > 1.2
        return {"a": torch.where(together, torch.nan, x.sum(-1)), "b": torch.where(alone, torch.nan, x.sum(-1))}

    run = find(model, torch.rand(6, 3), stop_on_first=True, max_inputs=20_000)
    assert [f.status for f in run.findings] == ["batch-only", "confirmed"]
    assert run.stats.stopped == "first-finding"


class ThreeBugs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a = torch.sqrt(1.9 - x[..., 0])
        b = torch.log(x[..., 1] - 0.05)
        c = x[..., 2] / (x[..., 3] - x[..., 2]).clamp(min=0)
        return a + b + c


def test_all_reachable_sites_are_found_in_one_run() -> None:
    seeds = torch.tensor([[0.5, 0.5, 0.5, 1.0], [0.4, 0.6, 0.3, 0.9]])
    run = find(ThreeBugs(), seeds, max_inputs=6000)
    assert {f.site.op for f in run.findings} >= {"sqrt", "log", "div"}
    assert len({f.cause for f in run.findings}) == len(run.findings)
    assert [f.id for f in run.findings] == [f"F{i + 1:04d}" for i in range(len(run.findings))]


def test_hits_are_counted_one_by_one_and_the_nearest_is_kept() -> None:
    run = find(lambda x: torch.sqrt(1.5 - x).sum(-1), torch.rand(4, 3), gradients=False)
    (finding,) = run.findings
    assert finding.count == run.stats.hits > 50
    nearest = float((1.5 - torch.rand(4, 3, generator=torch.Generator().manual_seed(0))).min())
    assert finding.distance["linf"] < 2 * nearest + 0.5


def test_infinities_by_design_are_no_findings() -> None:
    def model(x: Tensor) -> Tensor:
        mask = torch.tensor([0.0, 0.0, -torch.inf])
        return x + mask

    assert not find(model, torch.rand(5, 3)).findings
    run = find(lambda x: model(x) + torch.where(x > 1.8, torch.inf, 0.0), torch.rand(5, 3))
    assert [f.symptom for f in run.findings] in (["+inf"], ["nan"], ["nan", "+inf"], ["+inf", "nan"])


def test_a_mask_by_design_does_not_hide_disagreements() -> None:
    mask = torch.tensor([0.0, 0.0, -torch.inf])
    run = nnfuzz.diff(
        lambda x: x + mask, lambda x: x + mask + torch.tensor([0.3, 0.0, 0.0]), torch.tensor([[2.0, 0.0, 1.0]] * 3),
        ranges=(0, 2), max_inputs=2000,
    )  # fmt: skip
    assert [f.symptom for f in run.findings] == ["disagreement"]


def test_memory_is_bounded() -> None:
    run = nnfuzz.find_nans(nn.Linear(4, 8), torch.rand(5, 4), ranges=(-9, 9), max_corpus=64, radius=0.0, **QUICK)
    assert run.stats.evicted > 0
    assert len(run.corpus) <= 64
    assert all(i in run.corpus.place for i in range(5)), "seeds stay"
    small = nnfuzz.find_nans(
        nn.Linear(4, 8), torch.rand(5, 4), ranges=(-9, 9), max_corpus_bytes=4096, radius=0.0, **QUICK
    )
    assert small.corpus.bytes <= 4096
    assert small.stats.evicted > 0
