"""Going back on a walk, and failures that stand in front of others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import INPUTS, dropped, linear, log_softmax, log_softmax_by_hand, rows, sgd
from torch import nn

from nnfuzz.training import find_nans_in_training
from nnfuzz.training.arm import Arm
from nnfuzz.training.program import make_program
from nnfuzz.training.replay import replay
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Failure, Step, Walk


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def scheduled(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = sgd(model)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer.register_step_post_hook(lambda *_: decay.step())
    return optimizer


def normed(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 5), st.integers(1, 5), st.sampled_from([sgd, adam]), st.sampled_from([linear, normed]))
def test_a_walk_that_went_back_is_the_walk_that_never_went(before, astray, optimizer, build):
    """Weights, buffers, optimizer state and random numbers: otherwise what is found on it would not replay."""
    program = make_program(build, log_softmax, rows, optimizer, INPUTS)
    stream, walk = Stream(program, 0), Walk(program, 0)
    for i in range(before):
        walk.train(stream[i])
    kept = walk.snapshot()
    for i in range(astray):
        walk.train(stream[10 + i])
    assert walk.back(kept) == astray
    straight = Walk(program, 0)
    for i in range(before):
        straight.train(stream[i])
    for i in range(3):
        walk.train(stream[20 + i])
        straight.train(stream[20 + i])
    assert [s.seed for s in walk.steps] == [s.seed for s in straight.steps]
    for a, b in zip(walk.model.state_dict().values(), straight.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_schedule_cannot_be_taken_back():
    assert Walk(make_program(linear, log_softmax, rows, sgd, INPUTS), 0).returns
    assert not Walk(make_program(linear, log_softmax, rows, scheduled, INPUTS), 0).returns


def test_a_dismissed_hit_takes_its_failing_step_back():
    program = make_program(dropped, log_softmax_by_hand, rows, sgd, INPUTS)
    stream, walk = Stream(program, 0), Walk(program, 0)
    arm = Arm(walk, stream, None)
    assert arm.train(stream[0]) is None
    program_that_fails = make_program(dropped, lambda m, b: m(b["x"]).sum() * float("nan"), rows, sgd, INPUTS)
    walk.program = program_that_fails
    hit = arm.train(stream[1])
    assert hit is not None
    assert len(walk.steps) == 2
    arm.dismiss(hit)
    assert len(walk.steps) == 1
    checked = arm.check(stream[2])
    assert checked is not None
    arm.dismiss(checked)  # a check adds no step, so none is taken back
    assert len(walk.steps) == 1


def test_a_failure_behind_a_nearer_one_is_found_as_well():
    """exp overflows easily; log(softmax) fails farther on, in the same loss, often in the same batch."""

    def loss(model, batch):
        z = model(batch["x"])
        near = torch.exp(4 * z.abs().amax(1) - 4 * z.detach().abs().amax(1) + batch["x"].amax(1) * 8.5)
        return log_softmax_by_hand(model, batch) + 1e-36 * near.mean()

    run = find_nans_in_training(
        linear, loss, rows, optimizer=sgd, inputs={**INPUTS, "x": {"low": 0, "high": 11}}, max_seconds=20,
        stop_on_first=False, max_steps=500,
    )  # fmt: skip
    assert {"exp", "log"} <= {f.site.op for f in run.findings}
    for f in run.findings:
        steps = [Step(b, s) for b, s in zip(f.batches, f.seeds, strict=True)]
        assert replay(f.program, f.build_seed, f.initial_state, steps, f.mode) == Failure(f.phase, f.symptom, f.mode)


def test_plain_training_goes_on_after_a_failure_that_is_known():
    def batches(seed):
        for i, batch in enumerate(rows(seed)):
            yield {**batch, "z": torch.full((12, 1), 0.0 if i in (3, 5) else 1.0)}

    def loss(model, batch):
        return log_softmax(model, batch) - torch.log(batch["z"]).mean() * model.weight.sum()

    inputs = {**INPUTS, "z": {"fixed": True}}
    run = find_nans_in_training(linear, loss, batches, optimizer=sgd, inputs=inputs, max_seconds=10, max_steps=200)
    assert run.natural.failed_at == 3
    assert run.findings[0].site.op in ("log", "mul")


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_the_clock_of_the_caller_counts(seconds):
    ticks = iter(range(10**9))

    def clock():
        return next(ticks) * 0.01

    from nnfuzz.training import run_program

    program = make_program(linear, log_softmax, rows, sgd, INPUTS)
    assert run_program(program, max_seconds=seconds, clock=clock).seconds <= seconds + 0.5
