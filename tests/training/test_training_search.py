"""The search finds planted bugs, is silent on their stable twins, and what it reports replays exactly."""

import pytest
import torch
from programs import (
    INPUTS,
    dropped,
    linear,
    log_sigmoid,
    log_sigmoid_by_hand,
    log_softmax,
    log_softmax_by_hand,
    norm_at_zero,
    rows,
    sgd,
)

from nnfuzz.training import TrainingFinding, find_nans_in_training
from nnfuzz.training.replay import first_failure, replay
from nnfuzz.training.walk import Failure, Step


def search(build, loss, batches=rows, **options):
    return find_nans_in_training(build, loss, batches, optimizer=sgd, inputs=INPUTS, **{"max_seconds": 20, **options})


def steps_of(finding: TrainingFinding) -> list[Step]:
    return [Step(b, s) for b, s in zip(finding.batches, finding.seeds, strict=True)]


def replayed(finding: TrainingFinding) -> Failure | None:
    return replay(finding.program, finding.build_seed, finding.initial_state, steps_of(finding), finding.mode)


@pytest.mark.parametrize(
    ("build", "loss", "op"),
    [
        (linear, log_softmax_by_hand, "log"),
        (dropped, log_softmax_by_hand, "log"),
        (linear, log_sigmoid_by_hand, "log"),
        (linear, norm_at_zero, "sqrt"),
    ],
)
def test_a_planted_bug_is_found_named_and_replays(build, loss, op):
    run = search(build, loss)
    finding = run.findings[0]
    assert finding.site.op == op
    assert finding.confirmed
    assert finding.step == len(finding.batches) - 1
    assert replayed(finding) == Failure(finding.phase, finding.symptom, finding.mode)
    assert "plain training on natural batches" in finding.natural


@pytest.mark.parametrize(("build", "loss"), [(linear, log_softmax), (dropped, log_softmax), (linear, log_sigmoid)])
def test_a_stable_twin_is_silent(build, loss):
    run = search(build, loss, max_seconds=1)
    assert run.findings == []
    assert run.flaky == []


def test_the_failing_sequence_is_short():
    finding = search(linear, log_softmax_by_hand).findings[0]
    without = [*steps_of(finding)[1:]]
    assert finding.step <= finding.steps_found
    if without:  # leaving out the first step as well does not fail: it was tried
        index, failure = first_failure(
            finding.program, finding.build_seed, finding.initial_state, without, finding.mode
        )
        assert failure is None or index < len(without)


def test_every_batch_stays_in_its_range_and_labels_with_their_rows():
    labels = {tuple(r) for b, _ in zip(rows(0), range(4), strict=False) for r in b["y"].tolist()}
    for finding in search(dropped, log_softmax_by_hand).findings:
        for batch in finding.batches:
            assert bool(((batch["x"] >= 0) & (batch["x"] <= 10)).all())
            assert {tuple(r) for r in batch["y"].tolist()} <= labels
            assert batch["x"].shape == (12, 3)


def test_same_seed_same_finding():
    one, two = (search(linear, log_softmax_by_hand, max_steps=4000, max_seconds=None, seed=3) for _ in range(2))
    assert one.steps == two.steps
    assert [f.seeds for f in one.findings] == [f.seeds for f in two.findings]
    for a, b in zip(one.findings, two.findings, strict=True):
        for x, y in zip(a.batches, b.batches, strict=True):
            assert all(torch.equal(x[k], y[k]) for k in x)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    search(dropped, log_softmax, max_seconds=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_plain_training_that_fails_by_itself_says_when():
    def batches(seed):
        for i, batch in enumerate(rows(seed)):
            yield {**batch, "z": torch.full((12, 1), 1.0 if i < 3 else 0.0)}

    def loss(model, batch):
        return log_softmax(model, batch) - torch.log(batch["z"]).mean() * model.weight.sum()

    inputs = {**INPUTS, "z": {"fixed": True}}
    run = find_nans_in_training(linear, loss, batches, optimizer=sgd, inputs=inputs, max_seconds=5, stop_on_first=False)
    assert run.natural.failed_at == 3
    assert any(f.arm == "natural batches" for f in run.findings)


def test_noise_is_drawn_or_searched_in_its_range():
    def batches(seed):
        g = torch.Generator().manual_seed(seed)
        for batch in rows(seed):
            yield {**batch, "n": torch.randn(3, generator=g).clamp(-1, 1)}

    def loss(model, batch):
        return log_softmax_by_hand(model, {**batch, "x": batch["x"] + 0.1 * batch["n"]})

    inputs = {**INPUTS, "n": {"low": -1, "high": 1, "role": "noise"}}
    run = find_nans_in_training(linear, loss, batches, optimizer=sgd, inputs=inputs, max_seconds=20)
    for batch in run.findings[0].batches:
        assert bool((batch["n"].abs() <= 1).all())
