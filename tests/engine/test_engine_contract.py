"""The Python contract: every form of seeds and every word about inputs that ``find_nans`` promises to understand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import nnfuzz

QUICK: dict[str, Any] = {"max_seconds": None, "max_inputs": 1500}


def root(x: Tensor) -> Tensor:
    """NaN as soon as a row's largest element is above 1.5."""
    return torch.sqrt(1.5 - x.amax(-1))


def find(model: Any, seeds: Any, **more: Any) -> nnfuzz.Run:
    return nnfuzz.find_nans(model, seeds, **(QUICK | {"ranges": (0, 2)} | more))


# ---------------------------------------------------------------------- forms of seeds


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((4,), i / 8), i


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.full((4,), i / 8) for i in range(6)])


FORMS = {
    "tensor": torch.rand(6, 4),
    "tuple": (torch.rand(6, 4),),
    "dict by name": {"x": torch.rand(6, 4)},
    "dict by another name": {"pixels": torch.rand(6, 4)},
    "numpy": np.random.default_rng(0).random((6, 4)).astype(np.float32),
    "list of numpy": list(np.random.default_rng(0).random((6, 4)).astype(np.float32)),
    "list of tensors": list(torch.rand(6, 4)),
    "list of tuples": [(t,) for t in torch.rand(6, 4)],
    "list of dicts": [{"x": t} for t in torch.rand(6, 4)],
    "list of several shapes": [torch.rand(3), torch.rand(5), torch.rand(3)],
    "dataset": TensorDataset(torch.rand(6, 4)),
    "dataset with labels": Pairs(),
    "iterable dataset": Stream(),
    "loader": DataLoader(TensorDataset(torch.rand(6, 4)), batch_size=4),
    "loader with labels": DataLoader(Pairs(), batch_size=4),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_seeds(form: str) -> None:
    run = find(root, FORMS[form], phase="forward")
    assert [f.symptom for f in run.findings] == ["nan"]
    (name,) = run.findings[0].inputs
    assert name in ("x", "pixels")
    assert torch.isnan(root(run.findings[0].inputs[name])).any()


def test_a_list_of_whole_candidates_is_passed_as_it_is() -> None:
    seen: set[tuple[int, ...]] = set()

    def model(x: Tensor) -> Tensor:
        if not torch._C._functorch.is_batchedtensor(x):
            seen.add(tuple(x.shape))
        return torch.sqrt(1.5 - x.max())

    run = find(model, [torch.rand(2, 3), torch.rand(5), torch.rand(())], max_inputs=300)
    assert run.stats.unit == "batch"
    assert {(2, 3), (5,), ()} <= seen
    assert tuple(run.findings[0].inputs["x"].shape) in {(2, 3), (5,), ()}


def test_labels_that_the_model_does_not_take_are_dropped_and_said() -> None:
    assert any("left out" in note for note in find(root, Pairs(), max_inputs=64).notes)


# ---------------------------------------------------------------------- where inputs go


def two(x: Tensor, scale: Tensor) -> Tensor:
    return torch.sqrt(1.5 - x.amax(-1)) + 0 * scale.sum(-1)


@pytest.mark.parametrize(
    ("seeds", "names"),
    [
        ({"scale": torch.ones(4, 1) / 2, "x": torch.rand(4, 3)}, {"x", "scale"}),
        ({"a": torch.rand(4, 3), "b": torch.ones(4, 1) / 2}, {"a", "b"}),
        ({"scale": torch.ones(4, 1) / 2, "picture": torch.rand(4, 3)}, {"picture", "scale"}),
        ((torch.rand(4, 3), torch.ones(4, 1) / 2), {"x", "scale"}),
    ],
    ids=["by name", "in order", "one by name, one in order", "tuple"],
)
def test_keys_go_to_parameters(seeds: Any, names: set[str]) -> None:
    run = find(two, seeds, phase="forward")
    assert [f.symptom for f in run.findings] == ["nan"]
    assert set(run.findings[0].inputs) == names
    first = next(n for n in run.findings[0].inputs if run.findings[0].inputs[n].shape[-1] == 3)
    assert run.findings[0].inputs[first].max() > 1.5


def test_a_whole_dict_goes_to_a_model_of_one_parameter() -> None:
    def model(batch: dict[str, Tensor]) -> Tensor:
        return torch.sqrt(1.5 - batch["image"].amax(-1)) + batch["bias"].sum(-1)

    seeds = {"image": torch.rand(4, 3), "bias": torch.zeros(4, 2)}
    run = find(model, seeds, ranges={"image": (0, 2)}, fixed=["bias"])
    assert [f.symptom for f in run.findings] == ["nan"]
    assert set(run.findings[0].inputs) == {"batch.image", "batch.bias"}
    assert torch.isnan(run.findings[0].call.call(model, run.findings[0].inputs)).any()


def test_nested_inputs_have_dotted_names() -> None:
    def model(x: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        h, (c, d) = state["h"], state["pair"]
        return {"y": torch.sqrt(1.5 - h.amax(-1)) + x.sum(-1), "rest": (c, d)}

    seeds = (torch.rand(4, 2), {"h": torch.rand(4, 3), "pair": (torch.rand(4, 1), torch.rand(4, 1))})
    run = find(model, seeds, fixed=["state.pair.0"])
    assert set(run.findings[0].inputs) == {"x", "state.h", "state.pair.0", "state.pair.1"}
    assert set(run.findings[0].outputs) == {"y", "rest.0", "rest.1"}
    assert torch.equal(run.findings[0].inputs["state.pair.0"], run.findings[0].seed["state.pair.0"])


def test_positional_inputs_are_named_by_index_too() -> None:
    seeds = (torch.rand(4, 3), torch.ones(4, 1) / 2)
    run = find(two, seeds, ranges={0: (0, 2)}, fixed=[1], kinds={"0": "real"})
    assert run.findings[0].inputs["x"].max() > 1.5
    assert torch.equal(run.findings[0].inputs["scale"], run.findings[0].seed["scale"])


def test_constants_among_the_inputs_are_passed_on() -> None:
    def model(x: Tensor, power: int) -> Tensor:
        return torch.sqrt(1.5 - x.amax(-1)) ** power

    assert find(model, [(t, 2) for t in torch.rand(4, 3)]).findings


# ---------------------------------------------------------------------- kinds of inputs


def test_ints_choices_bools_onehot_keep_to_what_is_legal() -> None:
    seen: dict[str, set[Any]] = {"token": set(), "level": set(), "mask": set(), "flag": set(), "y": set()}

    def model(token: Tensor, level: Tensor, mask: Tensor, flag: Tensor, y: Tensor) -> Tensor:
        for name, t in (("token", token), ("level", level), ("mask", mask), ("flag", flag)):
            seen[name] |= set(t.flatten().tolist())
        seen["y"] |= {tuple(row) for row in y.tolist()}
        return token.float().sum(-1) + level.sum(-1) + mask.float().sum(-1) + flag.float().sum(-1) + y.sum(-1)

    seeds = {
        "token": torch.tensor([[1, 2], [3, 4]]),
        "level": torch.tensor([[0.25], [4.0]]),
        "mask": torch.tensor([[0.0, 1.0], [1.0, 1.0]]),
        "flag": torch.tensor([[True], [False]]),
        "y": torch.eye(3)[[0, 1]],
    }
    ranges = {"token": (0, 9), "level": [0.25, 1.0, 4.0], "mask": [0, 1]}
    nnfuzz.find_nans(model, seeds, ranges=ranges, kinds={"y": "onehot", "mask": "mask"}, phase="forward", **QUICK)
    assert seen["token"] <= set(range(10))
    assert len(seen["token"]) == 10
    assert seen["level"] == {0.25, 1.0, 4.0}
    assert seen["mask"] == {0.0, 1.0}
    assert seen["flag"] == {True, False}
    assert seen["y"] == {(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)}


def test_fixed_labels_never_change() -> None:
    labels = torch.eye(3)[[0, 1, 2, 0]]
    seen: set[tuple[float, ...]] = set()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.update(tuple(row) for row in y.reshape(-1, 3).tolist())
        return -(y * torch.log(x)).sum(-1)

    run = nnfuzz.find_nans(
        loss, {"x": torch.rand(4, 3) / 2 + 0.25, "y": labels}, ranges={"x": (0, 1)}, kinds={"y": "onehot"},
        fixed=["y"], **QUICK,
    )  # fmt: skip
    assert run.findings
    assert seen == {tuple(row) for row in labels.tolist()}
    for finding in run.findings:
        assert torch.equal(finding.inputs["y"], finding.seed["y"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_floating_dtypes_are_kept(dtype: torch.dtype) -> None:
    kinds: set[torch.dtype] = set()

    def model(x: Tensor) -> Tensor:
        kinds.add(x.dtype)
        return torch.sqrt(1.5 - x.amax(-1))

    run = find(model, torch.rand(4, 3).to(dtype))
    assert kinds == {dtype}
    assert run.findings[0].inputs["x"].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_integer_dtypes_are_kept(dtype: torch.dtype) -> None:
    def model(x: Tensor) -> Tensor:
        return torch.sqrt(90.0 - x.amax(-1))

    run = find(model, torch.randint(0, 50, (4, 3)).to(dtype), ranges=(0, 100))
    assert run.findings[0].inputs["x"].dtype == dtype
    assert 90 < run.findings[0].inputs["x"].max() <= 100


def test_scalars_without_any_axis() -> None:
    def model(x: Tensor, t: Tensor) -> Tensor:
        return torch.log(1.5 - t) + x.sum()

    run = find(model, [(torch.rand(3), torch.tensor(0.5)), (torch.rand(3), torch.tensor(1.0))])
    assert run.findings[0].inputs["t"].shape == ()
    assert run.findings[0].inputs["t"] >= 1.5


def test_a_scalar_for_every_candidate() -> None:
    run = find(lambda x: torch.sqrt(1.5 - x), torch.rand(4))
    assert run.stats.unit == "sample"
    assert run.findings[0].inputs["x"].shape == (1,)


def test_ranges_default_to_what_the_seeds_span() -> None:
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return x.sum(-1)

    seeds = torch.rand(4, 3) * 3 - 1
    nnfuzz.find_nans(model, seeds, phase="forward", **QUICK)
    lowest, highest = min(float(t.min()) for t in seen), max(float(t.max()) for t in seen)
    assert lowest == seeds.min()
    assert highest == seeds.max()


def test_ranges_given_element_by_element() -> None:
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().reshape(-1, 2).clone())
        return x.sum(-1)

    low, high = torch.tensor([0.0, 10.0]), torch.tensor([1.0, 20.0])
    nnfuzz.find_nans(model, torch.tensor([[0.5, 15.0]] * 3), ranges={"x": (low, high)}, phase="forward", **QUICK)
    everything = torch.cat(seen)
    assert (everything.amin(0) == low).all()
    assert (everything.amax(0) == high).all()


# ---------------------------------------------------------------------- shapes, eps, constraint


def test_free_dimensions_change_together_and_in_bounds() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        return (w @ x).sum() / (x.shape[-2] - 1)

    seeds = [(torch.rand(4, 3), torch.rand(4)), (torch.rand(6, 3), torch.rand(6))]
    run = find(model, seeds, shapes={"x": ("1<=n<=9", 3), "w": ("n",)}, max_inputs=3000)
    shapes = [{n: t.shape for n, t in run.corpus.candidate(i).items()} for i in run.corpus]
    shapes += [{n: t[None].shape for n, t in f.inputs.items()} for f in run.findings]
    assert all(s["x"][1] == s["w"][1] and 1 <= s["x"][1] <= 9 for s in shapes)
    assert {1, 9} <= {s["x"][1] for s in shapes}
    assert any(f.inputs["x"].shape == (1, 3) and f.distance["linf"] == float("inf") for f in run.findings)


def test_shapes_may_count_the_first_axis_of_stacked_seeds() -> None:
    run = find(lambda x: x.sum(0) / (len(x) - 1), torch.rand(6, 3), shapes={"x": ("n", 3)}, max_inputs=6000)
    assert run.stats.unit == "batch"
    assert any(f.inputs["x"].shape == (1, 3) for f in run.findings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("eps", [0.1, 0.3, 1 / 3])
def test_no_finding_leaves_the_ball(dtype: torch.dtype, eps: float) -> None:
    seeds = torch.rand(4, 3).to(dtype)
    edge = float(seeds.double().max()) + eps / 2
    run = find(lambda x: torch.sqrt(edge - x.amax(-1)), seeds, eps=eps, max_inputs=2000)
    assert run.findings
    for i in run.corpus:
        gap = run.corpus.candidate(i)["x"].double() - seeds[run.corpus.seed_index[i]].double()
        assert gap.abs().max() <= eps
    for finding in run.findings:
        gap = (finding.inputs["x"].double() - finding.seed["x"].double()).abs().max()
        assert finding.distance["linf"] == gap <= eps


def test_no_ball_is_left_by_discrete_inputs() -> None:
    def model(x: Tensor, flag: Tensor, n: Tensor) -> Tensor:
        return x.sum(-1) / (n.sum(-1) - flag.float().sum(-1) - 3)

    seeds = {"x": torch.rand(3, 2), "flag": torch.zeros(3, 2, dtype=torch.bool), "n": torch.tensor([[5], [6], [7]])}
    run = nnfuzz.find_nans(model, seeds, eps=0.5, **QUICK)
    for i in run.corpus:
        entry, seed = run.corpus.candidate(i), run.corpus.seed_index[i]
        for name, x in entry.items():
            assert (x.double() - seeds[name][seed].double()).abs().max() <= 0.5, name
    assert all(f.distance["linf"] <= 0.5 for f in run.findings)


def test_eps_by_name() -> None:
    seeds = {"x": torch.rand(3, 2), "scale": torch.rand(3, 1)}
    run = find(two, seeds, eps={"x": 0.05}, max_inputs=1000)
    moved = [run.corpus.candidate(i)["scale"] - seeds["scale"][run.corpus.seed_index[i]] for i in run.corpus]
    near = [run.corpus.candidate(i)["x"] - seeds["x"][run.corpus.seed_index[i]] for i in run.corpus]
    assert max(float(m.abs().max()) for m in moved) > 0.1
    assert max(float(m.abs().max()) for m in near) <= 0.05


def test_the_users_own_projection_holds_for_all_that_runs() -> None:
    seen: list[Tensor] = []

    def ordered(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"x": batch["x"].sort(-1).values}

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().reshape(-1, 3).clone())
        return torch.sqrt(1.5 - x[..., 0])

    run = find(model, torch.rand(4, 3).sort(-1).values, constraint=ordered, phase="forward")
    assert (torch.cat(seen).diff(dim=-1) >= 0).all()
    assert (run.findings[0].inputs["x"] > 1.5).all()


# ---------------------------------------------------------------------- what comes back


def test_a_finding_tells_all_that_was_promised(tmp_path: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(1.5 - x).sum(-1)

    run = find(Model(), torch.rand(5, 4))
    (finding,) = run.findings
    assert finding.id == "F0001"
    assert finding.symptom == "nan"
    assert finding.phase == "forward"
    assert finding.site.op == "sqrt"
    assert finding.site.module == ""
    assert finding.site.file.endswith("test_engine_contract.py")
    assert "torch.sqrt(1.5 - x)" in finding.site.source
    assert finding.inputs["x"].shape == (1, 4)
    assert torch.isnan(finding.outputs["output"]).all()
    assert 0 <= finding.seed_index < 5
    assert finding.lineage[0] == {"id": finding.seed_index, "op": "seed"}
    assert finding.lineage[-1]["id"] is None
    gap = (finding.inputs["x"].double() - finding.seed["x"].double()).abs()
    assert finding.distance["linf"] == gap.max()
    assert finding.distance["l2"] == pytest.approx(float(gap.square().sum().sqrt()))
    assert finding.distance["l0"] == (gap > 0).sum() == 1  # shrunk: one element is enough
    assert 0 < finding.inputs_tried <= run.stats.inputs
    assert 0 < finding.seconds <= run.stats.seconds
    assert finding.confirmed is True
    assert "nan" in finding.headline()
    place = finding.save(tmp_path / "one")
    assert {"finding.json", "input.safetensors", "seed.safetensors"} <= {p.name for p in place.iterdir()}


def test_a_run_tells_all_that_was_promised() -> None:
    run = find(root, torch.rand(5, 4))
    assert run.stats.inputs == 1500
    assert run.stats.stopped == "max-inputs"
    assert run.stats.unit == "sample"
    assert run.stats.findings == len(run.findings) == 1
    assert run.stats.corpus == len(run.corpus) == len(list(run.corpus))
    assert run.path is None
    assert sum(y.tried for y in run.stats.yields.values()) == run.stats.inputs
    deepest = max(run.corpus, key=lambda i: run.corpus.depth[i])
    chain = run.corpus.lineage(deepest)
    assert chain[0]["op"] == "seed"
    assert chain[-1]["id"] == deepest
    assert len(chain) == run.corpus.depth[deepest] + 1
    assert "inputs" in repr(run)


@pytest.mark.parametrize("most", [1, 63, 64, 65, 1777, 3000])
@pytest.mark.parametrize("model", [root, lambda x: torch.sqrt(1.5 - x).sum(-1)], ids=["flat", "steep"])
def test_the_limit_of_inputs_is_kept_exactly(model: Any, most: int) -> None:
    assert find(model, torch.rand(5, 4), max_inputs=most).stats.inputs == most


def test_stop_on_first() -> None:
    run = find(root, torch.rand(5, 4), stop_on_first=True, max_inputs=100_000)
    assert run.stats.stopped == "first-finding"
    assert len(run.findings) == 1
    assert run.stats.inputs < 5000


def test_max_seconds_ends_a_run() -> None:
    run = nnfuzz.find_nans(lambda x: x.sum(-1), torch.rand(3, 2), max_inputs=None, max_seconds=0.3)
    assert run.stats.stopped == "max-time"


def test_the_model_is_given_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model[1].eval()
    modes = [m.training for m in model.modules()]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    seeds = torch.rand(4, 3)
    state = torch.get_rng_state()
    run = nnfuzz.find_nans(model, seeds, **QUICK)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert any("training mode" in note for note in run.notes)


def test_flushing_of_subnormals_ends_with_the_run() -> None:
    tiny = torch.tensor([1e-40])
    nnfuzz.find_nans(root, torch.rand(3, 2), flush_denormal=True, **(QUICK | {"max_inputs": 64}))
    assert float((tiny * 1.0)[0]) != 0.0
