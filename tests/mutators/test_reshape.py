"""Free dimensions: all inputs that share one follow, by the same selection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nnfuzz.mutators import MUTATORS
from nnfuzz.mutators.zoo import space, spec
from nnfuzz.space import Batch, FreeDim

Grow = Callable[..., list[Batch]]


def lengths(batches: list[Batch], name: str = "x", axis: int = 1) -> set[int]:
    return {b[name].shape[axis] for b in batches}


def test_one_two_more_less_odd_even_double(grow: Grow) -> None:
    where = space(spec("x", 6, 2, dims=(FreeDim("n"), 2)))
    assert lengths(grow("reshape", where, 80)) >= {1, 2, 3, 5, 7, 8, 12}


def test_zero_only_where_it_is_allowed(grow: Grow) -> None:
    assert 0 not in lengths(grow("reshape", space(spec("x", 6, dims=(FreeDim("n"),))), 60))
    assert 0 in lengths(grow("reshape", space(spec("x", 6, dims=(FreeDim("n", 0),))), 60))


def test_bounds_are_reached_and_kept(grow: Grow) -> None:
    found = lengths(grow("reshape", space(spec("x", 6, dims=(FreeDim("n", 4, 40),))), 80))
    assert min(found) == 4
    assert max(found) == 40


def test_growth_stops_without_a_bound(grow: Grow) -> None:
    where = space(spec("x", 6, dims=(FreeDim("n"),)))
    parents = grow("reshape", where, 1)[0]
    for _ in range(30):
        parents = max(grow("reshape", where, 12, parents=parents), key=lambda b: b["x"].shape[1])
    assert parents["x"].shape[1] <= 48


def test_shared_dimensions_follow_by_the_same_selection(grow: Grow) -> None:
    n = FreeDim("n")
    where = space(
        spec("x", 6, 2, low=0.0, high=9.0, dims=(n, 2)),
        spec("pair", 6, 6, low=0.0, high=99.0, dims=(n, n)),
        spec("keep", 6, low=0.0, high=9.0, fixed=True, dims=(n,)),
    )
    place = torch.arange(6.0).expand(3, 6)
    parents = {
        "x": place[..., None].expand(3, 6, 2).contiguous(),
        "pair": place[:, :, None] * 10 + place[:, None, :],
        "keep": place.clone(),
    }
    for b in grow("reshape", where, 40, parents=parents):
        k = b["keep"]
        assert torch.equal(b["x"][..., 0], k)
        assert torch.equal(b["pair"], k[:, :, None] * 10 + k[:, None, :])


def test_from_nothing_to_something(grow: Grow) -> None:
    where = space(spec("x", 2, low=2.0, high=4.0, dims=(FreeDim("n", 0, 5),)))
    out = grow("reshape", where, 30, parents={"x": torch.zeros(4, 0)})
    assert max(lengths(out)) > 0
    assert all(where.legal(b, where.anchors({"x": torch.full((4, 2), 3.0)})).all() for b in out)


@pytest.mark.parametrize("why", ["eps", "per element", "nothing free"])
def test_no_targets(why: str) -> None:
    n = FreeDim("n")
    where = {
        "eps": space(spec("x", 4, dims=(n,)), spec("y", 2, eps=0.1)),
        "per element": space(spec("x", 3, low=[0, 0, 0], high=[1, 2, 3], dims=(n,)), spec("y", 3, dims=(n,))),
        "nothing free": space(spec("x", 4)),
    }[why]
    assert MUTATORS["reshape"]().targets(where) == []
