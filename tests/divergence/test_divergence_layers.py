"""Layers matched and compared, the pool of hits, the least disturbance."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nnfuzz
from nnfuzz.divergence.begins import Parting
from nnfuzz.divergence.layers import Layer, compare, first_broken, first_jump, relative, table
from nnfuzz.divergence.least import Least, draw, least
from nnfuzz.divergence.matching import _in_order, match_values
from nnfuzz.divergence.pool import ANY, NEAREST, Pool
from nnfuzz.divergence.values import Limits, Value, Values
from nnfuzz.inputs import build_space
from nnfuzz.jobs import make_job
from nnfuzz.seeds import read_seeds
from nnfuzz.settings import Settings

SEEDS = torch.rand(12, 3, generator=torch.Generator().manual_seed(0)) * 0.2

INF = float("inf")


class Bent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.abs() > 3, x * 1.5, x)


def built(bend: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), Bent() if bend else nn.Identity(), nn.Linear(4, 2))


def parting(a: Any, b: Any, seeds: Tensor = SEEDS) -> Parting:
    job = make_job(Settings(job="diff"), a, b, seeds)
    job.prepare()
    return Parting(job.target, [g.batch for g in job.seeds.groups])  # type: ignore[arg-type]


def test_the_first_layer_that_jumps_is_named() -> None:
    begins = parting(built(False), built(True)).begins({"input": torch.full((1, 3), 20.0)})
    assert [x.name for x in begins.layers] == ["0", "1", "2"]
    assert begins.by == "name"
    assert begins.first is not None
    assert begins.first.name == "1"
    assert begins.layers[0].here == 0
    assert "begins at 1 (Identity)" in begins.lines()[-1]


def test_where_no_layer_jumps_none_is_named() -> None:
    a, b = built(False), built(False)
    with torch.no_grad():
        b[0].weight += 0.01
    begins = parting(a, b).begins({"input": SEEDS[:1] * 1.1})
    assert begins.first is None
    assert "no single layer" in begins.headline()


def test_modules_of_other_names_are_matched_by_what_they_give() -> None:
    class Renamed(nn.Module):
        def __init__(self, inner: nn.Sequential):
            super().__init__()
            self.head, self.tail, self.kink = inner[0], inner[2], inner[1]

        def forward(self, x: Tensor) -> Tensor:
            return self.tail(self.kink(self.head(x)))  # type: ignore[no-any-return]

    begins = parting(built(False), Renamed(built(True))).begins({"input": torch.full((1, 3), 20.0)})
    assert begins.by == "correlation"
    assert begins.first is not None
    assert begins.first.name == "1"


def test_functions_and_scripts_are_compared_operation_by_operation() -> None:
    def first(x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x) * 3)

    def second(x: Tensor) -> Tensor:
        return torch.sigmoid(torch.where(x > 2, x, torch.tanh(x)) * 3)

    begins = parting(first, second).begins({"x": torch.full((1, 3), 4.0)})
    assert begins.first is not None
    assert begins.first.kind == "mul"  # what tanh and where give is the same on the seeds
    scripted = torch.jit.trace(built(False), SEEDS)
    begins = parting(scripted, built(True)).begins({"input": torch.full((1, 3), 20.0)})
    assert begins.layers
    assert begins.first is not None


@given(st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_chain_of_pairs_is_the_best_one(n: int, m: int, random: Any) -> None:
    score = np.array([[random.choice([-np.inf, 0.9, 0.95, 1.0]) for _ in range(m)] for _ in range(n)]).reshape(n, m)
    chain = _in_order(score)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(chain))
    best = 0.0
    for k in range(1, min(n, m) + 1):
        for rows in combinations(range(n), k):
            for columns in combinations(range(m), k):
                best = max(best, sum(score[r, c] for r, c in zip(rows, columns, strict=True)))
    assert sum(score[r, c] for r, c in chain) == pytest.approx(best)


def value(t: Tensor, limits: Limits | None = None) -> Value:
    return Value("layer", "Conv", t, limits=limits)


def test_channels_at_the_end_are_brought_to_the_front() -> None:
    images = torch.rand(2, 1, 3, 4, 5)
    a: list[Values] = [{"x": value(t)} for t in images]
    b: list[Values] = [{"y": value(t.movedim(1, -1))} for t in images]
    (match,) = match_values(a, b, same_names=False)
    assert torch.equal(match.of_b(b[0]["y"].tensor), a[0]["x"].tensor)


def test_clipping_is_counted_by_what_the_float_side_reaches() -> None:
    limits = Limits(-1.0, 1.0, 0.01)
    here = ({"x": value(torch.tensor([0.5, 1.0049, 2.0, -3.0]))}, {"x": value(torch.tensor([0.5, 1, 1, -1]), limits)})
    usual = ({"x": value(torch.ones(4))}, {"x": value(torch.ones(4), limits)})
    (layer,) = compare(match_values([usual[0]], [usual[1]], same_names=True), here, [usual])
    assert (layer.clipped, layer.clipped_usually) == (0.5, 0.0)
    assert layer.reached == (-3.0, 2.0)
    assert "50 % of its values lie beyond the quantized range -1…1, they reach -3…2" in layer.told()
    assert "50.00 %" in table([layer])[1]


def test_long_tables_lose_their_middle_and_keep_what_is_marked() -> None:
    layers = [Layer(str(i), "Linear", str(i), str(i), 0.0, 0.0, 0.0) for i in range(100)]
    lines = table(layers, most=12)
    assert len(lines) == 14
    assert "…" in lines
    assert any(line.startswith("50") and line.endswith("<") for line in table(layers, 12, layers[50]))


def test_differences_are_relative_to_the_usual_size() -> None:
    assert relative(torch.tensor([1.0]), torch.tensor([float("nan")])) == float("inf")
    assert relative(torch.tensor([-INF, 1.0]), torch.tensor([-INF, 1.0])) == 0
    assert relative(torch.tensor([-INF, 1.0]), torch.tensor([INF, 1.0])) == INF
    assert relative(torch.tensor([-INF]), torch.tensor([float("nan")])) == INF
    assert relative(torch.tensor([2.0]), torch.tensor([1.0])) == 0.5
    assert relative(torch.tensor([2.0]), torch.tensor([1.0]), scale=10.0) == 0.1


def test_two_models_that_differ_always_part_at_the_first_layer_that_does() -> None:
    a, b = built(False), built(False)
    with torch.no_grad():
        b[2].weight += 0.5
    begins = parting(a, b).begins({"input": SEEDS[:1] * 1.1})
    assert begins.always
    assert begins.first is not None
    assert begins.first.name == "2"
    assert begins.headline().endswith("while all before it agree")


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=6))
def test_what_is_usual_never_jumps(sizes: list[float]) -> None:
    assert first_jump([Layer("x", "", "x", "x", s, s, s) for s in sizes], 1e-7) is None


# ------------------------------------------------------------------------------------------------ pool


def one(number: float) -> dict[str, Tensor]:
    return {"x": torch.tensor([[number]])}


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.125, 10, width=32)), max_size=60))
def test_the_nearest_stay_and_the_rest_is_bounded(hits: list[tuple[int, float]]) -> None:
    pool = Pool()
    for seed, far in hits:
        pool.add(seed, far, one(far))
    for seed, far, candidate in pool.nearest():
        assert far == min(d for s, d in hits if s == seed)
        assert float(candidate["x"]) == far
    counts = {s: sum(1 for i, _ in hits if i == s) for s, _ in hits}
    assert len(pool) == sum(min(c, NEAREST + ANY) for c in counts.values())
    assert sum(len(seeds) for _, seeds in pool.batches(1000)) == len(pool)
    assert sum(len(seeds) for _, seeds in pool.batches(3)) == min(3, len(pool))


def test_a_pool_is_the_same_after_rest(tmp_path: Path) -> None:
    pool, other = Pool(), Pool()
    for i in range(20):
        pool.add(i % 3, 1.0 + i, one(float(i)))
    pool.add(5, float("inf"), {"x": torch.zeros(1, 4)})
    pool.unchanged |= {4, 7}
    pool.save(tmp_path)
    other.load(tmp_path)
    assert [(i, d) for i, d, _ in other.nearest()] == [(i, d) for i, d, _ in pool.nearest() if i != 5]
    assert len(other) == len(pool)
    assert other.unchanged == {4, 7}


def test_seeds_that_disagree_as_they_are_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnfuzz.divergence.pool.MOST_BYTES", 4 * 3)
    pool = Pool()
    for i in range(50):
        pool.add_unchanged(i, one(float(i)))
        pool.add_unchanged(i, one(float(i)))
    assert pool.unchanged == set(range(50))
    assert [i for i, _, _ in pool.nearest()] == [0, 1, 2]


def test_every_seed_that_disagrees_as_it_is_counts_not_one_of_each_finding(tmp_path: Path) -> None:
    seeds = torch.tensor([[2.0, 0.0], [3.0, 0.5], [4.0, 1.0], [0.0, 2.0], [5.0, 0.1]])
    run = nnfuzz.diff(lambda x: x, lambda x: x.flip(1), seeds, max_inputs=64, out=tmp_path / "run")
    assert len(run.findings) == 2  # one of each pair of labels
    pool = Pool()
    pool.load(tmp_path / "run")
    assert pool.unchanged == {0, 1, 2, 3, 4}
    assert [(i, d) for i, d, _ in pool.nearest()] == [(i, 0.0) for i in range(5)]
    assert len(pool) == 5


# ------------------------------------------------------------------------------------------------ least


def test_the_least_disturbance_is_bisected() -> None:
    seeds = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.0, -0.2]])
    space = build_space(read_seeds(seeds, lambda x: x), ranges=(-1, 1))
    pool = Pool()
    for i in (0, 1):
        pool.add(i, 1.0, {"x": torch.tensor([[1.0, -0.9]])})
    found = least(pool, {i: {"x": s[None]} for i, s in enumerate(seeds)}, space, lambda b: b["x"][:, 0] > 0.75, 3)
    assert found.distances[0] == pytest.approx(0.75, abs=2e-3)
    assert found.distances[1] == pytest.approx(0.25, abs=2e-3)
    assert set(found.distances) == {0, 1}
    assert found.line().startswith("least disturbance: around 2 of 3 seeds there are disagreements, from L∞ 0.25")
    assert bool((found.candidates[1]["x"][:, 0] > 0.75).all())


def test_seeds_that_disagree_as_they_are_count_at_distance_0_and_cost_nothing() -> None:
    space = build_space(read_seeds(torch.zeros(1, 1), lambda x: x), ranges=(-1, 1))
    pool = Pool()
    pool.unchanged |= {0, 2, 9}  # 9: a seed that is not there any more
    pool.add(0, 0.0, one(0.8))
    pool.add(2, 0.1, one(0.9))
    pool.add(1, 1.0, one(1.0))
    seeds = {0: one(0.8), 1: one(0.0), 2: one(0.8), 3: one(0.0)}
    found = least(pool, seeds, space, lambda b: b["x"][:, 0] > 0.5, 4, budget=2 * 36)
    assert {i: d for i, d in found.distances.items() if i != 1} == {0: 0.0, 2: 0.0}
    assert found.distances[1] == pytest.approx(0.5, abs=2e-3)
    assert found.looked == 3
    assert "around 3 of 4 seeds (2 as they are) there are disagreements, from L∞ 0 on" in found.line()
    assert found.quantiles()["0.5"] == 0


@pytest.mark.parametrize("kill", [False, True])
def test_all_seeds_that_disagree_are_counted_though_few_are_findings(
    kill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = torch.linspace(-1, 1, 20)[:, None]

    def a(x: Tensor) -> Tensor:
        return torch.cat([x, -x], 1)

    def b(x: Tensor) -> Tensor:
        return torch.cat([x.new_zeros(len(x), 1) - 9, x], 1)

    more: dict[str, Any] = {"ranges": (-1, 1), "max_inputs": 600, "out": tmp_path / "run"}
    if kill:  # what the first look at the seeds has shown must outlive a sitting that ends without a word
        with monkeypatch.context() as broken:
            broken.setattr("nnfuzz.fuzzer.Fuzzer.loop", lambda *_: (_ for _ in ()).throw(MemoryError()))
            with pytest.raises(MemoryError):
                nnfuzz.diff(a, b, seeds, **more)
        run = nnfuzz.resume(tmp_path / "run", model=a, model_b=b)
    else:
        run = nnfuzz.diff(a, b, seeds, **more)
    assert run.least is not None
    assert sorted(i for i, d in run.least.distances.items() if d == 0) == list(range(10, 20))


def test_without_inputs_to_spend_the_hits_stand() -> None:
    space = build_space(read_seeds(torch.zeros(1, 1), lambda x: x), ranges=(-1, 1))
    pool = Pool()
    pool.add(0, 1.0, one(1.0))
    found = least(pool, {0: one(0.0)}, space, lambda b: b["x"][:, 0] > 0.5, 1, budget=0)
    assert found.distances == {0: 1.0}
    assert found.tried == 0
    assert "(0 of them bisected: --least does all)" in found.line()


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(Least({0: 0.1, 1: 0.3}, 4, 2, 0), tmp_path / "least.png")
    assert (tmp_path / "least.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ of a run


def outlier() -> nn.Sequential:
    """Its first layer has one weight so large that the others of its row have no level left in int8."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        model[0].weight[:, 0] *= 200
    return model.requires_grad_(False)


def test_the_layer_to_blame_is_found(tmp_path: Path) -> None:
    seeds = torch.rand(8, 3, generator=torch.Generator().manual_seed(3)) * torch.tensor([0.001, 1.0, 1.0])
    model = outlier()
    run = nnfuzz.diff(
        model, seeds=seeds, as_="int8", max_inputs=3000, max_seconds=20, sensitivity=True, out=tmp_path / "run"
    )
    assert run.findings
    assert run.sensitivity is not None
    assert run.sensitivity.best is not None
    assert run.sensitivity.best.layer == "0"
    assert 2 * run.sensitivity.best.agree >= run.sensitivity.inputs
    again = nnfuzz.sensitivity(tmp_path / "run", model)
    assert [(k.layer, k.agree) for k in again.layers] == [(k.layer, k.agree) for k in run.sensitivity.layers]
    assert run.least is not None
    assert run.least.distances.keys() <= set(range(8))
    assert (tmp_path / "run" / "least.json").is_file()
    assert "begins at" in (tmp_path / "run" / "findings" / "F0001" / "README.md").read_text()
    nnfuzz.diff(model, outlier(), seeds, max_inputs=100, out=tmp_path / "two")
    with pytest.raises(nnfuzz.UsageError, match="no diff of a model with its own copy"):
        nnfuzz.sensitivity(tmp_path / "two", model)


@pytest.mark.parametrize("as_", ["fp16", "bf16"])
def test_a_layer_kept_in_float32_is_exact(as_: str) -> None:
    from nnfuzz.targets.precision import derive

    model = outlier()
    x = torch.rand(4, 3)
    kept = derive(model, as_, lambda twin: None, keep=["0", "1", "2"])
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[as_]
    step = model[2](model[1](model[0](x.to(dtype).float()).to(dtype).float()))
    torch.testing.assert_close(kept(x), step.to(dtype), rtol=0, atol=0)


def test_a_layer_is_broken_where_all_behind_it_differs_too() -> None:
    def chain(*usual: float) -> list[Layer]:
        return [Layer(str(i), "Conv", str(i), str(i), here=u, usual=u, most=u) for i, u in enumerate(usual)]

    def named(*usual: float) -> str | None:
        found = first_broken(chain(*usual))
        return found.name if found is not None else None

    assert named(0.01, 0.02, 20.0, 0.9, 0.4) == "2"
    assert named(0.01, 0.02, 20.0, 0.03, 0.04) is None  # what follows agrees: no pair
    assert named(0.01, 0.02, 8e30, 0.2, 0.9) == "4"  # A is zero at 2, which tells nothing
    assert named(0.1, 0.2, 0.4, 0.6) is None  # grows by and by


class Other(nn.Module):
    """Differs from nothing but where the input is large."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.abs() > 3, x * (1 + self.by), x)


def with_other(by: float | None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Identity() if by is None else Other(by), nn.Linear(4, 2))


def held_apart(by: float, spec: str, candidate: Tensor) -> Any:
    """Of the seeds one alone is large."""
    seeds = torch.cat([SEEDS[:3], torch.full((1, 3), 20.0)])
    job = make_job(Settings(job="diff", compare=spec), with_other(None), with_other(by), seeds)
    job.prepare()
    groups = [g.batch for g in job.seeds.groups]
    return Parting(job.target, groups, job.objectives()[0]).begins({"input": candidate})  # type: ignore[arg-type]


def test_a_seed_is_held_against_rounding_and_not_against_itself() -> None:
    begins = held_apart(1e-3, "allclose:1e-6,1e-6", torch.full((1, 3), 20.0))
    assert begins.first is not None
    assert begins.first.name == "1"
    assert begins.lines()[-1].endswith("where rounding explains 7.6e-06 and all before it differ less")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("argmax", "so the input lies near a decision boundary"),
        ("topk:1", "so the input lies near a decision boundary"),
        ("allclose:1e-9,1e-9", "so the comparison allows less than rounding gives"),
        ("cosine:0.999", "so the comparison allows less than rounding gives"),
    ],
)
def test_only_a_decision_has_a_boundary(spec: str, said: str) -> None:
    begins = held_apart(5e-7, spec, torch.full((1, 3), 20.0))
    assert begins.first is None
    assert begins.lines()[-1] == f"no single layer: none differs by more than rounding explains (7.6e-06), {said}"


def test_beside_the_seeds_too_only_a_decision_has_a_boundary() -> None:
    for spec, said in (("argmax", "near a decision boundary"), ("allclose:1e-9,1e-9", "than the comparison allows")):
        begins = held_apart(5e-7, spec, torch.full((1, 3), 19.0))
        assert begins.lines()[-1].startswith("no single layer: no difference is much larger than on the seeds, so")
        assert begins.lines()[-1].endswith(said)
