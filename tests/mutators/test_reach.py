"""What each structured mutator must be able to make, taken from triggers of public bug reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nnfuzz.mutators.zoo import space, spec
from nnfuzz.space import Batch, InputSpace

Where = Callable[[Batch], Tensor]
"""A batch → (rows,) bool: which rows have the property."""


def rows(ok: Tensor) -> Tensor:
    return ok.flatten(1).all(1)


def some(ok: Tensor) -> Tensor:
    return ok.flatten(1).any(1)


PAIR = space(spec("x", 4, 6, low=0.0, high=1.0), spec("y", 4, 6, low=0.0, high=1.0))
VECTOR = space(spec("x", 12, low=-1000.0, high=1000.0))
HALF = space(spec("x", 12, low=-60000.0, high=60000.0, dtype=torch.float16))
SQUARE = space(spec("x", 3, 3, low=-5.0, high=5.0))
BOXES = space(spec("x", 3, 4, kind="boxes", low=0.0, high=10.0), spec("y", 3, 4, kind="boxes", low=0.0, high=10.0))
LABELS = space(
    spec("s", 4, 5, low=-20.0, high=20.0), spec("l", 4, dtype=torch.int64, choices=[-100, 0, 1, 2, 3, 4], kind="choice")
)
MASK = space(spec("x", 8, dtype=torch.bool, kind="bool"))
SIMPLEX = space(spec("x", 3, 4, kind="simplex", low=0.0, high=1.0))
UNIT = space(spec("x", 3, 4, kind="unit"))
ONEHOT = space(spec("x", 4, 3, kind="onehot", low=0.0, high=1.0))
TOKENS = space(spec("x", 9, dtype=torch.int64, low=0, high=999, kind="integer"))
BALL = space(spec("x", 12, eps=0.125))


def ratio(b: Batch) -> Tensor:
    """Spread over mean of each row, which cancellation needs small."""
    x = b["x"].double()
    return (x.amax(1) - x.amin(1)) / x.mean(1).abs().clamp(min=1e-9)


def singular_values(b: Batch) -> Tensor:
    return torch.linalg.svdvals(b["x"].double())


CASES: list[tuple[str, str, InputSpace, Where]] = [
    ("constant", "all zero", VECTOR, lambda b: rows(b["x"] == 0)),
    ("constant", "both inputs zero together", PAIR, lambda b: rows(b["x"] == 0) & rows(b["y"] == 0)),
    (
        "constant",
        "the same slice of both is zero, the rest is not",
        PAIR,
        lambda b: (((b["x"] == 0).all(2) & (b["y"] == 0).all(2)).sum(1) == 1) & ~some((b["x"] == 0).all(1)),
    ),
    ("constant", "a run of zeros", VECTOR, lambda b: ((b["x"] == 0).sum(1) > 3) & ((b["x"] == 0).sum(1) < 10)),
    ("constant", "one column zero", PAIR, lambda b: some((b["x"] == 0).all(1)) & (b["x"] != 0).any(2).all(1)),
    ("constant", "all masked", MASK, lambda b: rows(~b["x"])),
    ("constant", "exactly one", VECTOR, lambda b: some(b["x"] == 1)),
    ("constant", "minus an eps of published code", VECTOR, lambda b: some(b["x"] == -1e-8)),
    ("constant", "a subnormal", VECTOR, lambda b: some((b["x"] != 0) & (b["x"].abs() < 1e-38))),
    ("extremes", "all at the high end", VECTOR, lambda b: rows(b["x"] == 1000)),
    ("extremes", "every element at either end", VECTOR, lambda b: rows(b["x"].abs() == 1000) & (b["x"].amin(1) < 0)),
    ("extremes", "a corner of the ball", BALL, lambda b: some(b["x"] != 0)),
    ("log-noise", "half subnormals", HALF, lambda b: ((b["x"].abs() < 6e-5) & (b["x"] != 0)).sum(1) > 2),
    ("scale", "everything tiny", HALF, lambda b: b["x"].abs().amax(1) < 1e-3),
    ("scale", "everything huge", HALF, lambda b: b["x"].abs().amax(1) > 50000),
    ("offset", "large mean, tiny spread", VECTOR, lambda b: (ratio(b) < 1e-5) & (b["x"].mean(1).abs() > 100)),
    (
        "outlier",
        "one element a thousand times the rest",
        VECTOR,
        lambda b: b["x"].abs().amax(1) > 500 * b["x"].abs().sort(1).values[:, -2].clamp(min=1e-3),
    ),
    (
        "outlier",
        "one element in each slice, at its far end",
        SQUARE,
        lambda b: (b["x"].abs()[..., 2] > 50 * b["x"].abs()[..., :2].amax(-1).clamp(min=1e-3)).all(1),
    ),
    ("levels", "whole numbers", VECTOR, lambda b: rows(b["x"] == b["x"].round())),
    ("levels", "two levels", VECTOR, lambda b: rows(b["x"].abs() == 1000) | rows(b["x"] == b["x"][:, :1])),
    ("ties", "two equal maxima", VECTOR, lambda b: (b["x"] == b["x"].amax(1, keepdim=True)).sum(1) > 1),
    ("order", "sorted upward", VECTOR, lambda b: rows(b["x"].diff(dim=1) >= 0)),
    ("order", "sorted downward", VECTOR, lambda b: rows(b["x"].diff(dim=1) <= 0)),
    ("equal", "all elements equal", VECTOR, lambda b: rows(b["x"] == b["x"][:, :1])),
    ("equal", "two rows equal", PAIR, lambda b: rows(b["x"][:, 0] == b["x"][:, 1])),
    ("equal", "all rows equal", PAIR, lambda b: rows(b["x"] == b["x"][:, :1])),
    ("equal", "opposite rows", SQUARE, lambda b: rows(b["x"][:, 0] == -b["x"][:, 1])),
    ("equal", "two columns equal", PAIR, lambda b: rows(b["x"][..., 0] == b["x"][..., 1])),
    ("equal", "a flat box", BOXES, lambda b: some(b["x"][..., 0] == b["x"][..., 2])),
    ("relate", "inputs equal", PAIR, lambda b: rows(b["x"] == b["y"])),
    ("relate", "one row of both equal", PAIR, lambda b: (b["x"] == b["y"]).all(2).sum(1) == 1),
    ("relate", "complement", PAIR, lambda b: rows((b["x"] + b["y"] - 1).abs() < 1e-6)),
    ("relate", "equal boxes", BOXES, lambda b: rows(b["x"] == b["y"])),
    (
        "relate",
        "nearly equal",
        PAIR,
        lambda b: rows((b["x"] - b["y"]).abs() < 1e-3) & some(b["x"] != b["y"]),
    ),
    (
        "relate",
        "scores that say the label",
        LABELS,
        lambda b: rows(b["s"].argmax(-1) == b["l"].clamp(min=0)) & rows((b["s"] == 0) | (b["s"] == b["s"].amax())),
    ),
    ("basis", "the identity", SQUARE, lambda b: rows(b["x"] == torch.eye(3))),
    ("basis", "a one-hot row", PAIR, lambda b: some((b["x"] != 0).sum(-1) == 1)),
    (
        "matrix",
        "equal singular values",
        SQUARE,
        lambda b: (singular_values(b)[:, 0] - singular_values(b)[:, 1]).abs() < 1e-5,
    ),
    (
        "matrix",
        "singular",
        SQUARE,
        lambda b: (singular_values(b)[:, 2] < 1e-5) & (singular_values(b)[:, 0] > 0.5),
    ),
    (
        "matrix",
        "a rotation",
        SQUARE,
        lambda b: ((singular_values(b) - 1).abs() < 1e-5).all(1) & (torch.linalg.det(b["x"].double()) > 0),
    ),
    ("matrix", "symmetric", SQUARE, lambda b: rows(b["x"] == b["x"].mT)),
    ("balance", "sum zero", VECTOR, lambda b: b["x"].sum(1).abs() < 1e-2),
    ("balance", "norm one", VECTOR, lambda b: (b["x"].norm(dim=1) - 1).abs() < 1e-4),
    ("choice", "every label ignored", LABELS, lambda b: rows(b["l"] == -100)),
    ("choice", "all but one alike", MASK, lambda b: b["x"].sum(1) == 1),
    ("integer", "the last index", TOKENS, lambda b: some(b["x"] == 999)),
    ("integer", "all the same", TOKENS, lambda b: rows(b["x"] == b["x"][:, :1])),
    ("integer", "counting", TOKENS, lambda b: rows(b["x"] == torch.arange(9))),
    ("onehot", "all of one class", ONEHOT, lambda b: rows(b["x"] == b["x"][:, :1])),
    ("simplex", "a corner", SIMPLEX, lambda b: some(b["x"] == 1)),
    ("simplex", "uniform", SIMPLEX, lambda b: rows(b["x"] == 0.25)),
    ("simplex", "an exact zero", SIMPLEX, lambda b: some(b["x"] == 0) & ~some(b["x"] == 1)),
    ("simplex", "a tiny probability", SIMPLEX, lambda b: some((b["x"] > 0) & (b["x"] < 1e-12))),
    ("unit", "an axis", UNIT, lambda b: some(b["x"].abs() == 1)),
    ("unit", "two equal", UNIT, lambda b: rows(b["x"][:, 0] == b["x"][:, 1])),
    ("boxes", "a point", BOXES, lambda b: some(b["x"][..., :2] == b["x"][..., 2:])),
    ("boxes", "the whole range", BOXES, lambda b: some((b["x"] == torch.tensor([0.0, 0, 10, 10])).all(-1))),
    (
        "havoc",
        "two inputs constant",
        PAIR,
        lambda b: rows(b["x"] == b["x"][:, :1, :1]) & rows(b["y"] == b["y"][:, :1, :1]),
    ),
]


@pytest.mark.parametrize(("name", "what", "where", "has"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_reaches(name: str, what: str, where: InputSpace, has: Where, grow: Callable[..., list[Batch]]) -> None:
    groups = 200
    found = sum(bool(has(b).any()) for b in grow(name, where, groups))
    assert found, f"{name} never made {what!r} in {groups} groups of 16"


def test_log_noise_covers_every_order_of_magnitude(grow: Callable[..., list[Batch]]) -> None:
    x = torch.cat([b["x"] for b in grow("log-noise", VECTOR, 200)]).abs()
    x = x[(x > 0) & (x != 1000)]
    decades = x.double().log10().floor().unique().tolist()
    assert set(decades) >= set(range(-44, 3))


def test_steps_are_measured_in_the_ball(grow: Callable[..., list[Batch]]) -> None:
    """In a ball of a thousandth of the range the mutants spread inside it instead of all sitting on its corners."""
    where = space(spec("x", 50, low=-1.0, high=1.0, eps=0.001))
    parents = {"x": torch.zeros(16, 50)}
    for name in ("noise", "sparse-noise", "sign-noise"):
        x = torch.cat([b["x"] for b in grow(name, where, 60, parents=parents)])
        assert x.abs().max() <= 0.001
        inside = ((x != 0) & (x.abs() < 0.0009)).double().mean()
        assert inside > 0.1, (name, inside)


@pytest.mark.parametrize("name", ["sparse-noise", "sign-noise"])
def test_densities_from_a_few_to_all(name: str, grow: Callable[..., list[Batch]]) -> None:
    where = space(spec("x", 500, low=-1e6, high=1e6))
    share = torch.cat(
        [(b["x"] != 0).double().mean(1) for b in grow(name, where, 60, parents={"x": torch.zeros(16, 500)})]
    )
    assert share.min() < 0.04
    assert share.max() > 0.9


def test_toward_goes_on_along_the_line(pool, grow) -> None:  # type: ignore[no-untyped-def]
    import numpy as np

    from nnfuzz.mutators import MUTATORS, Context

    where = space(spec("x", 6, low=-100.0, high=100.0))
    seeds = {"x": torch.zeros(8, 6)}
    parents = {"x": torch.arange(1.0, 7.0).expand(8, 6)}
    found = []
    for seed in range(20):
        context = Context(
            where, np.random.default_rng(seed), torch.Generator().manual_seed(seed), pool, where.anchors(seeds), dict
        )
        x = MUTATORS["toward"]()({"x": parents["x"].clone()}, context)["x"]
        moved = x / parents["x"] - 1
        found.append(moved.amax(1))
        assert (
            ((moved - moved.amax(1, keepdim=True)).abs() < 1e-5)
            .logical_or(moved.abs() < 1e-5)
            .logical_or(moved < 0)
            .all()
        )
    t = torch.cat(found)
    assert (t > 1).any()
    assert ((t > 0) & (t < 0.5)).any()


def test_splice_mixes_both_parents(grow: Callable[..., list[Batch]]) -> None:
    where = space(spec("x", 20, low=0.0, high=1.0))
    parents = {"x": torch.cat([torch.zeros(8, 20), torch.ones(8, 20)])}
    batches = grow("splice", where, 40, parents=parents)
    mixed = torch.cat([b["x"] for b in batches])
    assert ((mixed == 0).any(1) & (mixed == 1).any(1)).any()
    assert ((mixed > 0) & (mixed < 1)).all(1).any()
