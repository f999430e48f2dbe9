"""Groups of large inputs are made in pieces, in memory that stays: nothing of that may show in the mutants."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from torch import nn

import nnfuzz
from nnfuzz import breed
from nnfuzz.breed import Breeder, Brood
from nnfuzz.fuzzer import Fuzzer
from nnfuzz.memory import LARGE, room

ROWS = 48


@pytest.fixture(scope="module")
def breeder() -> Breeder:
    """That of a run over images of 3 x 16 x 20, in an eps-ball, with an integer beside them."""
    kept: list[Breeder] = []
    step = Fuzzer.step

    def watched(self: Fuzzer, *args: object) -> None:
        kept.append(self.parts.breeder)
        step(self, *args)  # type: ignore[arg-type]

    class Two(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return x.flatten(1).mean(1) + n

    seeds = {"x": torch.rand(6, 3, 16, 20), "n": torch.arange(6)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fuzzer, "step", watched)
        nnfuzz.find_nans(Two(), seeds, eps={"x": 0.1}, max_inputs=400, gradients=False)
    return kept[-1]


def made(breeder: Breeder, name: str, count: int = ROWS, seed: int = 3) -> Brood:
    (brood,) = breeder.broods(count, [name], np.random.default_rng(seed))
    return brood


@pytest.mark.parametrize("rows", [1, 5, 16, 1000])
def test_pieces_are_legal_descend_from_their_parents_and_repeat(
    breeder: Breeder, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breed, "PIECE_BYTES", rows * (3 * 16 * 20 * 4 + 8))
    for name in breeder.mutators:
        brood = made(breeder, name)
        batch = {n: t.clone() for n, t in brood.batch.items()}
        assert {n: len(t) for n, t in batch.items()} == {"x": ROWS, "n": ROWS}
        assert bool(breeder.space.legal_boxes(batch, brood.anchors).all()), name
        again = made(breeder, name)
        assert all(torch.equal(t, again.batch[n]) for n, t in batch.items()), name


def test_each_row_is_made_of_its_own_parent(breeder: Breeder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps of nothing at all, so that children are their parents."""
    monkeypatch.setattr(breed, "PIECE_BYTES", 4 * (3 * 16 * 20 * 4 + 8))
    monkeypatch.setattr(type(breeder.mutators["noise"]), "mutate", lambda *_: None)
    brood = made(breeder, "noise")
    parents = brood.bucket.gather(torch.from_numpy(brood.rows))
    assert all(torch.equal(t, parents[n]) for n, t in brood.batch.items())


def test_a_group_has_many_strengths_when_it_comes_in_pieces(breeder: Breeder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breed, "PIECE_BYTES", 1)
    brood = made(breeder, "noise")
    parents = brood.bucket.gather(torch.from_numpy(brood.rows))
    spread = (brood.batch["x"] - parents["x"]).flatten(1).std(1)
    moved = spread[spread > 0]
    assert len(moved) >= ROWS // 3
    assert float(moved.max() / moved.min()) > 2


def test_memory_of_a_batch_serves_the_next(breeder: Breeder) -> None:
    place = made(breeder, "noise", 64).batch["x"].data_ptr()
    for count, name in ((64, "levels"), (7, "noise"), (63, "splice")):
        brood = made(breeder, name, count)
        assert len(brood.batch["x"]) == count
        assert brood.batch["x"].data_ptr() == place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("rows", [0, 3, 40_000])
def test_room(dtype: torch.dtype, rows: int) -> None:
    made = room((rows, 5, 30), torch.zeros(2, dtype=dtype))
    assert (made.dtype, tuple(made.shape), made.is_contiguous()) == (dtype, (rows, 5, 30), True)
    made.fill_(1)
    assert bool((made == 1).all())
    assert (math.prod(made.shape) * dtype.itemsize >= LARGE) == (rows == 40_000)


def test_the_collector_is_as_it_was_after_a_run() -> None:
    seen = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.get_freeze_count())
        return x

    gc.unfreeze()
    nnfuzz.find_nans(model, torch.rand(3, 4), max_inputs=100)
    assert seen[-1] > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    nnfuzz.find_nans(model, torch.rand(3, 4), max_inputs=100)
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
