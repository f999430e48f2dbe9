"""What gradient turns take of a run on ONNX Runtime, which answers much faster than its graph can be traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from target_zoo import classifier

import nnfuzz
import nnfuzz.onnx
from nnfuzz.fuzzer import Fuzzer
from nnfuzz.gradient import Climber
from nnfuzz.gradient.allowance import LEAST, MOST, Allowance
from nnfuzz.jobs import NanJob
from nnfuzz.mutators import Bandit
from nnfuzz.settings import Settings


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), max_size=60), st.floats(1, 200), st.integers(1, 64))
def test_gradients_stay_within_their_share_but_for_one_turn(
    batches: list[tuple[int, float]], each: float, slots: int
) -> None:
    account, inputs, turn = Allowance(lambda count: each * count), 0, 0.0
    for count, brought in batches:
        if account.permits(inputs, brought):
            before = account.spent
            account.pay(slots)
            turn = max(turn, account.spent - before)
        inputs += count
    assert account.spent <= MOST * (inputs + account.spent) + turn


def test_the_first_turn_is_free_and_what_brings_much_comes_again_sooner() -> None:
    account = Allowance(lambda count: 10.0 * count)
    assert account.permits(0, 0.0)
    account.pay(32)
    first = [next(n for n in range(10_000) if account.permits(n, brought)) for brought in (1.0, 0.25, 0.0)]
    assert first == [320, 960, 320 * (1 / LEAST - 1)]


def test_the_bandit_tells_the_share_of_events() -> None:
    bandit = Bandit(["gradient", "noise"])
    assert bandit.share("gradient") == 0.0
    bandit.reward("gradient", 100, 3)
    bandit.reward("noise", 100, 9)
    assert bandit.share("gradient") == pytest.approx(0.25, rel=0.01)


def test_a_small_graph_traced_is_dear_by_its_nodes_a_large_one_by_its_candidates() -> None:
    def price(width: int, count: int) -> float:
        job = NanJob(Settings(), nnfuzz.onnx.load(wide(width)), torch.rand(4, width))
        job.prepare()
        account = job.side.allowance()
        assert account is not None
        return account.price(count)

    assert price(4, 32) < 1.1 * price(4, 16)
    assert price(100_000, 32) > 1.5 * price(100_000, 16)


def test_a_model_in_torch_has_no_allowance_to_keep_to() -> None:
    job = NanJob(Settings(), torch.nn.Linear(4, 2), torch.rand(4, 4))
    job.prepare()
    assert job.side.allowance() is None


def test_turns_that_bring_nothing_leave_the_run_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bandit, "share", lambda self, name: 0.0)
    turns, told = watched(monkeypatch, 30_000)
    account = told[-1]
    assert 1 <= turns[0] <= 4
    largest = account.spent / turns[0]
    assert account.spent <= LEAST * (30_000 + account.spent) + largest


def test_two_runs_with_one_seed_take_the_same_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [watched(monkeypatch, 6_000)[1][-1].spent for _ in range(2)]
    assert spent[0] == spent[1] > 0


def test_a_resumed_run_remembers_what_its_turns_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = watched(monkeypatch, 6_000, out=tmp_path / "run")
    held: list[float] = []
    plain = Fuzzer.loop

    def loop(self: Fuzzer, *given: Any) -> None:
        assert self.parts.climber is not None
        assert self.parts.climber.allowance is not None
        held.append(self.parts.climber.allowance.spent)
        plain(self, *given)

    monkeypatch.setattr(Fuzzer, "loop", loop)
    nnfuzz.resume(tmp_path / "run", model=nnfuzz.onnx.load(classifier()), max_inputs=6_500)
    assert held[0] == told[-1].spent > 0


def watched(monkeypatch: pytest.MonkeyPatch, inputs: int, **more: Any) -> tuple[list[int], list[Allowance]]:
    """Number of turns of a run, and its account."""
    turns, told = [0], []
    plain = Climber.turn

    def turn(self: Climber, batch: int, rng: np.random.Generator) -> Any:
        turns[0] += 1
        assert self.allowance is not None
        told.append(self.allowance)
        return plain(self, batch, rng)

    with monkeypatch.context() as patched:
        patched.setattr(Climber, "turn", turn)
        seeds = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
        nnfuzz.find_nans(
            nnfuzz.onnx.load(classifier()), seeds, ranges=(-1, 1), max_inputs=inputs, max_seconds=None, **more
        )
    return turns, told


def wide(width: int) -> Any:
    from graphs import constant, model, node, value

    return model(
        [node("Mul", "x w", "m"), node("Exp", "m", "e"), node("Add", "e w", "y")],
        [value("x", "N", width)],
        [value("y", "N", width)],
        [constant("w", np.linspace(0.1, 1, width, dtype=np.float32))],
    )


@pytest.mark.parametrize("constant", [True, False])
def test_turns_end_soon_where_no_distance_depends_on_the_input(constant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Divides(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("six", torch.tensor(6.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (self.six if constant else x.mean(1, keepdim=True) + self.six)

    turns: list[int] = []
    turn = Climber.turn

    def counted(self: Climber, batch: int, rng: np.random.Generator) -> Any:
        turns.append(batch)
        return turn(self, batch, rng)

    monkeypatch.setattr(Climber, "turn", counted)
    nnfuzz.find_nans(Divides(), torch.rand(8, 5), ranges=(0, 1), max_inputs=3000)
    assert turns == [1, 2] if constant else len(turns) > 4
