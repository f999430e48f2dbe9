"""The InputSpace: what comes out of ``project`` is legal, whatever went in, and projecting again changes nothing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nnfuzz.mutators.zoo import sample, space, spec, zoo
from nnfuzz.space import Batch, FreeDim, InputSpace, InputSpec, cat, rows, signature, size

ZOO = dict(zoo())
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NASTY = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    -1e-40,
    6e-8,
    65504.0,
    3e38,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
]
anything = st.one_of(st.sampled_from(NASTY), st.floats(width=64), st.floats(-20, 20))


def filled(one: InputSpec, rows_: int, numbers: list[float]) -> Tensor:
    """A tensor (rows, *shape) of the numbers, over and over, in the input's dtype."""
    count = rows_ * int(torch.Size(one.shape).numel())
    flat = torch.tensor([numbers[i % len(numbers)] for i in range(count)], dtype=torch.float64)
    if one.dtype == torch.bool:
        return (flat > 0).view(rows_, *one.shape)
    if not one.dtype.is_floating_point:
        info = torch.iinfo(one.dtype)
        flat = flat.nan_to_num(0.0).clamp(max(info.min, -(2**52)), min(info.max, 2**52)).round()
    return flat.to(one.dtype).view(rows_, *one.shape)


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("name", ZOO)
@given(numbers=st.lists(anything, min_size=1, max_size=13))
def test_projection_is_legal_and_idempotent(name: str, numbers: list[float]) -> None:
    where = ZOO[name]
    seeds = sample(where, 3)
    anchors = where.anchors(seeds)
    assert where.legal(seeds, anchors).all()
    wild = {s.name: filled(s, 3, numbers) if s in where.mutable else seeds[s.name].clone() for s in where}
    once = where.project(wild, anchors)
    assert where.legal(once, anchors).all(), once
    for one in where:
        assert once[one.name].dtype == one.dtype
        assert once[one.name].shape == seeds[one.name].shape
    kept = {n: t.clone() for n, t in once.items()}
    assert same(where.project(once, anchors), kept)


@pytest.mark.parametrize("name", ZOO)
def test_legal_candidates_stay_as_they_are(name: str) -> None:
    where = ZOO[name]
    seeds = where.project(sample(where, 4), where.anchors(sample(where, 4)))
    assert same(where.project({n: t.clone() for n, t in seeds.items()}, where.anchors(seeds)), seeds)


@pytest.mark.parametrize("dtype", FLOATS)
@given(
    seed=st.floats(-100, 100),
    eps=st.floats(1e-6, 50),
    value=st.one_of(st.sampled_from(NASTY[:-1]), st.floats(-200, 200)),
)
def test_eps_ball_is_exact(dtype: torch.dtype, seed: float, eps: float, value: float) -> None:
    """In rational arithmetic, in float64 and in the dtype itself."""
    where = space(spec("x", 1, dtype=dtype, low=-128.0, high=128.0, eps=eps))
    seeds = {"x": torch.tensor([[seed]], dtype=dtype)}
    x = where.project({"x": torch.tensor([[value]], dtype=dtype)}, where.anchors(seeds))["x"]
    at, centre = x.item(), seeds["x"].item()
    assert abs(Fraction(at) - Fraction(centre)) <= Fraction(eps)
    assert (x.double() - seeds["x"].double()).abs().item() <= eps
    assert (x - seeds["x"]).abs().item() <= eps
    if abs(value) == float("inf"):  # and not needlessly small: the next number outward is outside
        beyond = torch.nextafter(x, torch.full_like(x, value)).item()
        info = torch.finfo(dtype)
        slack = Fraction(eps) * Fraction(info.eps)  # eps itself is rounded down to the dtype
        assert abs(at) == 128 or abs(Fraction(beyond) - Fraction(centre)) > Fraction(eps) - slack


def test_integer_ball() -> None:
    where = ZOO["integer eps"]
    seeds = {"x": torch.tensor([[0, 1, 254, 255]], dtype=torch.uint8).expand(1, 3, 4).contiguous()}
    up = where.project({"x": torch.full((1, 3, 4), 255, dtype=torch.uint8)}, where.anchors(seeds))["x"]
    assert up[0, 0].tolist() == [3, 4, 255, 255]
    down = where.project({"x": torch.zeros((1, 3, 4), dtype=torch.uint8)}, where.anchors(seeds))["x"]
    assert down[0, 0].tolist() == [0, 0, 251, 252]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["unit", "simplex"])
def test_infinite_vectors_are_normalised(dtype: torch.dtype, kind: str) -> None:
    """Two infinities used to overflow to a vector of zeros, which is neither a direction nor a distribution."""
    where = space(spec("x", 3, dtype=dtype, kind=kind, low=-1.0 if kind == "unit" else 0.0))
    top = torch.finfo(dtype).max
    rows_ = [[float("inf"), float("inf"), 0.0], [top, top, top], [float("inf"), 1.0, 1e-3]]
    wild = {"x": torch.tensor(rows_, dtype=dtype)}
    anchors = where.anchors(sample(where, 3))
    assert where.legal(where.project(wild, anchors), anchors).all()


@pytest.mark.parametrize("size", [5e-324, 1e-320, 3e-162, 1e-155, 1e-100, 1.0, 1e150, 1e200, 1.7e308, float("inf")])
def test_a_vector_of_any_length_becomes_a_unit_vector(size: float) -> None:
    """Squares of small numbers are subnormal, and have hardly any digits."""
    where = space(spec("u", 3, kind="unit", dtype=torch.float64))
    for x in (torch.full((1, 3), size, dtype=torch.float64), torch.tensor([[size, -size, 0.0]], dtype=torch.float64)):
        batch = where.project({"u": x.clone()}, where.anchors({"u": torch.eye(3, dtype=torch.float64)[:1]}))
        assert abs(float(batch["u"].norm()) - 1) < 1e-14
        assert torch.equal(batch["u"].sign(), x.sign())


def test_a_unit_vector_keeps_its_digits() -> None:
    where = space(spec("u", 3, kind="unit", dtype=torch.float64))
    v = torch.tensor([[1e-200, 0.6, 0.8]], dtype=torch.float64)
    assert torch.equal(where.project({"u": v.clone()}, where.anchors({"u": v}))["u"], v)


def test_whole_numbers_between_fractional_bounds() -> None:
    where = space(spec("x", 4, kind="integer", low=0.5, high=3.5))
    out = where.project({"x": torch.tensor([[-9.0, 0.6, 2.5, 9.0]])}, where.anchors({"x": torch.ones(1, 4)}))["x"]
    assert out.tolist() == [[1.0, 1.0, 2.0, 3.0]]


def test_boxes_whose_corners_have_ranges_of_their_own() -> None:
    where = ZOO["boxes per element"]
    x = torch.tensor([[20.0, 9.0, 0.0, 0.0], [5.0, 3.0, 1.0, 2.0]])
    anchors = where.anchors(sample(where, 2))
    out = where.project({"a": x}, anchors)
    assert where.legal(out, anchors).all(), out


def test_choice_ties_and_strided_input() -> None:
    where = space(spec("x", 3, choices=[-1.0, 1.0, 4.0], kind="choice", dtype=torch.float64))
    x = torch.tensor([[0.0, 0.1], [2.5, 2.6], [float("inf"), -9.0]], dtype=torch.float64).T
    out = where.project({"x": x}, where.anchors(sample(where, 2)))["x"]
    assert out.tolist() == [[-1.0, 1.0, 4.0], [1.0, 4.0, -1.0]]


def test_middle_of_the_whole_range_is_finite() -> None:
    top = torch.finfo(torch.float64).max
    assert spec("x", dtype=torch.float64, low=top / 2, high=top).middle.item() == pytest.approx(0.75 * top)


# ---------------------------------------------------------------------- the user's own projection


def test_constraint_out_of_range_falls_back_to_the_anchor() -> None:
    def doubled(batch: Batch) -> Batch:
        return {"x": batch["x"] * 2}

    where = space(spec("x", 2), constraint=doubled)
    seeds = {"x": torch.zeros(2, 2)}
    out = where.project({"x": torch.tensor([[0.25, 0.5], [0.25, 0.75]])}, where.anchors(seeds))["x"]
    assert out.tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_constraint_may_not_change_fixed_inputs() -> None:
    def meddling(batch: Batch) -> Batch:
        return {**batch, "y": batch["y"] + 1}

    where = space(spec("x", 2), spec("y", 2, fixed=True), constraint=meddling)
    seeds = sample(where, 2)
    out = where.project({"x": torch.ones(2, 2), "y": seeds["y"].clone()}, where.anchors(seeds))
    assert torch.equal(out["y"], seeds["y"])
    assert torch.equal(out["x"], seeds["x"])


# ---------------------------------------------------------------------- legal() can say no


BROKEN: list[tuple[str, Any]] = [
    ("float32 vector", {"x": [1.5, 0, 0, 0, 0]}),
    ("float32 vector", {"x": [float("nan"), 0, 0, 0, 0]}),
    ("torch.int64 few", {"x": [0, 1, 2, 3, 4, 10]}),
    ("one-hot", {"y": [1, 1, 0, 0, 0]}),
    ("one-hot", {"y": [0, 0, 0, 0, 0]}),
    ("simplex", {"p": [0.5, 0.5, 0.1, 0]}),
    ("simplex", {"p": [1.5, -0.5, 0, 0]}),
    ("unit", {"u": [1, 1, 0, 0]}),
    ("boxes", {"a": [[3, 0, 1, 2]] * 3}),
    ("choices", {"x": [0, 1, 2, 7]}),
    ("whole numbers in float", {"x": [[0.5, 0, 0, 0]] * 3}),
]


@pytest.mark.parametrize(("name", "change"), BROKEN)
def test_illegal_is_noticed(name: str, change: dict[str, Any]) -> None:
    where = ZOO[name]
    seeds = sample(where, 2)
    wild = {n: t.clone() for n, t in seeds.items()}
    for key, value in change.items():
        wild[key][1] = torch.tensor(value).to(wild[key].dtype)
    assert where.legal(wild, where.anchors(seeds)).tolist() == [True, False]


def test_outside_the_ball_or_a_changed_fixed_input_is_noticed() -> None:
    where = space(spec("x", 2, eps=0.25), spec("y", 1, fixed=True))
    seeds = {"x": torch.zeros(3, 2), "y": torch.zeros(3, 1)}
    wild = {"x": torch.tensor([[0.25, 0.0], [0.26, 0.0], [0.0, 0.0]]), "y": torch.tensor([[0.0], [0.0], [1.0]])}
    assert where.legal(wild, where.anchors(seeds)).tolist() == [True, False, False]


# ---------------------------------------------------------------------- specs and batches


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((28, 28), "HW"),
        ((7, 8), None),
        ((1, 4, 4), "CHW"),
        ((3, 32, 32), "CHW"),
        ((32, 32, 3), "HWC"),
        ((2, 3, 8, 8), "CHW"),
        ((9,), None),
        ((), None),
        ((5, 8, 9), "HW"),
    ],
)
def test_image_layout(shape: tuple[int, ...], layout: str | None) -> None:
    assert spec("x", *shape).image_layout == layout


def test_mutable_leaves_out_what_has_one_value() -> None:
    where = space(
        spec("x", 2),
        spec("fixed", 2, fixed=True),
        spec("one", 2, choices=[3.0], kind="choice"),
        spec("point", 2, low=1.0, high=1.0),
        spec("b", dtype=torch.bool),
    )
    assert [s.name for s in where.mutable] == ["x", "b"]


def test_free_dims_and_eps_are_listed() -> None:
    n = FreeDim("n")
    where = space(spec("x", 4, 3, dims=(n, 3)), spec("y", 4, dims=(n,)))
    assert where.free_dims == {"n": n}
    assert not where.has_eps
    assert space(spec("x", 2, eps=0.1)).has_eps


def test_anchors_take_repeats_a_lone_seed() -> None:
    where = space(spec("x", 2, eps=0.1))
    one = where.anchors({"x": torch.zeros(1, 2)}).take(torch.tensor([0, 0, 0]))
    assert one.values["x"].shape == one.low["x"].shape == (3, 2)
    three = where.anchors({"x": torch.arange(6.0).view(3, 2) / 10}).take(torch.tensor([2, 0]))
    assert three.values["x"].tolist() == [[pytest.approx(0.4), 0.5], [0.0, pytest.approx(0.1)]]


def test_batches() -> None:
    batch = {"b": torch.arange(6).view(3, 2), "a": torch.zeros(3)}
    assert signature(batch) == (("a", ()), ("b", (2,)))
    assert size(batch) == 3
    assert rows(batch, [2])["b"].tolist() == [[4, 5]]
    assert torch.equal(cat([rows(batch, slice(0, 1)), rows(batch, slice(1, 3))])["b"], batch["b"])


def test_space_iterates_and_indexes() -> None:
    where: InputSpace = space(spec("x", 1), spec("y", 1))
    assert [s.name for s in where] == ["x", "y"]
    assert where["y"].name == "y"
