"""No step leaves its range, whatever the gradient."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import INPUTS, linear, log_softmax_by_hand, rows, sgd

from nnfuzz.training import find_nans_in_training
from nnfuzz.training.moves import Rprop, along
from nnfuzz.training.mutated import mutated
from nnfuzz.training.program import make_program
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(floats, min_size=3, max_size=3), st.floats(0, 1), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_moves_stay_in_range(gradient, share, low, width):
    high = low + width
    low32, high32 = torch.tensor(low).item(), torch.tensor(high).item()
    x = torch.full((3,), low) + share * width
    x = x.clamp(low32, high32)
    mover = Rprop()
    for sign in (1, -1, 1):
        g = sign * torch.tensor(gradient)
        x = mover.step(along(x, g, low32, high32, 0.3), g, low32, high32)
        assert bool(((x >= low32) & (x <= high32)).all())


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000))
def test_searched_batches_are_legal_at_every_seed(seed):
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return log_softmax_by_hand(model, batch)

    find_nans_in_training(linear, loss, rows, optimizer=sgd, inputs=INPUTS, seed=seed, max_steps=60, max_seconds=5)
    for batch in seen:
        assert bool(((batch["x"] >= 0) & (batch["x"] <= 10)).all())
        assert bool((batch["y"].sum(1) == 1).all())


def test_groups_are_rows_by_label():
    stream = Stream(make_program(linear, log_softmax_by_hand, rows, sgd, INPUTS), 0)
    groups = stream.groups()
    assert [len(g) for g in groups] == [6, 6]
    filled = stream.filled(groups[0])
    assert len(filled["y"].unique(dim=0)) == 1
    assert filled["x"].shape == stream.first["x"].shape


def test_a_failing_step_makes_no_update():
    program = make_program(linear, lambda m, b: m(b["x"]).sum() * float("inf"), rows, sgd, INPUTS)
    walk = Walk(program, 0)
    failure, _ = walk.train(next(rows(0)))
    assert failure is not None
    assert failure.phase == "forward"
    assert all(torch.equal(v, walk.initial[k]) for k, v in walk.model.state_dict().items())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-50, 50), st.floats(0.5, 50))
def test_mutated_batches_are_legal_and_leave_labels_alone(seed, low, width):
    low, high = torch.tensor(low).item(), torch.tensor(low + width).item()
    inputs = {"x": {"low": low, "high": high}, "y": {"fixed": True}}
    program = make_program(linear, log_softmax_by_hand, rows, sgd, inputs)
    g = torch.Generator().manual_seed(seed)
    batch = {"x": low + (high - low) * torch.rand(12, 3, generator=g), "y": torch.eye(2)[torch.arange(12) % 2]}
    batch["x"].clamp_(low, high)
    kept = {k: v.clone() for k, v in batch.items()}
    other = mutated(program, batch, 12, g)
    assert bool(((other["x"] >= low) & (other["x"] <= high)).all())
    assert torch.equal(other["y"], kept["y"])
    assert torch.equal(batch["x"], kept["x"])
    assert not torch.equal(other["x"], kept["x"])
