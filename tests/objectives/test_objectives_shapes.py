"""Outputs whose shapes and names follow the data: compared, searched, and never a reason to break down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nnfuzz
from nnfuzz.loading import load_model
from nnfuzz.objectives import Disagreement
from nnfuzz.objectives.alike import alike, axes_apart
from nnfuzz.targets.base import Trace

SEEDS = torch.full((4, 3), 0.5)
QUICK: dict[str, Any] = {"max_inputs": 400, "max_seconds": None, "ranges": (-1, 1)}


def boxes(level: float) -> Any:
    def model(x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[x.sum(-1) > level]])

    return model


@pytest.mark.parametrize("compare", ["argmax", "topk:2", "threshold:0.1", "allclose", "cosine"])
def test_so_many_boxes(compare: str) -> None:
    run = nnfuzz.diff(boxes(0.9), boxes(1.0), [s[None] for s in SEEDS], compare=compare, max_shrink=50, **QUICK)
    causes = {f.cause for f in run.findings}
    assert "the outputs have other shapes" in causes
    finding = next(f for f in run.findings if f.cause == "the outputs have other shapes")
    assert finding.details["shapes_a"] != finding.details["shapes_b"]
    assert finding.confirmed


@pytest.mark.parametrize("compare", ["argmax", "topk:2", "threshold:0.1", "allclose", "cosine"])
def test_what_differs_on_the_seeds_is_refused_in_words(compare: str, refused: Any) -> None:
    told = refused(nnfuzz.diff, boxes(1.4), boxes(1.6), [s[None] for s in SEEDS], compare=compare, **QUICK)
    assert f"{compare.partition(':')[0]} compares equal shapes, but A gives (" in told
    assert told.endswith("use --compare detection for boxes, else file.py:fn")


def test_other_numbers_of_classes_are_no_shape(refused: Any) -> None:
    few, many = torch.nn.Linear(3, 3), torch.nn.Linear(3, 5)
    run = nnfuzz.diff(few, many, SEEDS, **QUICK)
    assert all(f.cause.startswith("A says") for f in run.findings)
    assert "cosine compares equal shapes" in refused(nnfuzz.diff, few, many, SEEDS, compare="cosine", **QUICK)


def sometimes_nothing(x: Tensor) -> Any:
    return x.log() if float(x.sum()) > 0 else None


def sometimes_other(x: Tensor) -> Any:
    return {"a": x.log()} if float(x.sum()) > 0 else {"b": x.log()}


def as_many_as_fit(x: Tensor) -> Any:
    return [row.log() for row in x if float(row.sum()) > 0]


@pytest.mark.parametrize("model", [sometimes_nothing, sometimes_other, as_many_as_fit])
@pytest.mark.parametrize("unit", ["auto", "batch"])
def test_results_without_a_name_in_common(model: Any, unit: str) -> None:
    run = nnfuzz.find_nans(model, SEEDS, unit=unit, phase="forward", max_shrink=50, **QUICK)
    assert run.stats.inputs == 400
    assert {f.symptom for f in run.findings} & {"nan", "-inf"}
    assert not [f for f in run.findings if f.symptom == "exception"]
    pair = nnfuzz.diff(model, model, SEEDS, unit=unit, compare="allclose", **QUICK)
    assert pair.stats.inputs == 400
    assert not pair.findings


@pytest.mark.parametrize("model", [sometimes_nothing, sometimes_other])
def test_rows_without_a_name_in_common(model: Any) -> None:
    run = nnfuzz.check_rows(model, SEEDS, **QUICK)
    assert run.stats.inputs == 400
    assert not [f for f in run.findings if f.symptom == "exception"]


def with_a_warning(of: Any) -> Any:
    """A second output that only some candidates have, and no seed."""

    def model(x: Tensor) -> dict[str, Tensor]:
        found = {"y": x.sum(-1, keepdim=True) * torch.ones(3)}
        if float(x.sum()) < 0:
            found["warning"] = of(x)
        return found

    return model


@pytest.mark.parametrize("phase", ["forward", "both"])
def test_a_nan_in_an_output_that_few_have(phase: str) -> None:
    run = nnfuzz.find_nans(with_a_warning(torch.log), list(SEEDS), phase=phase, max_shrink=50, **QUICK)
    assert {"nan in warning", "backward non-finite"} & {f.cause[:19] for f in run.findings} or run.findings
    assert any("warning" in f.outputs and not f.outputs["warning"].isfinite().all() for f in run.findings)
    assert all(f.confirmed for f in run.findings)


def test_an_output_that_one_side_alone_gives() -> None:
    def plain(x: Tensor) -> dict[str, Tensor]:
        return {"y": x.sum(-1, keepdim=True) * torch.ones(3)}

    for a, b in ((with_a_warning(torch.abs), plain), (plain, with_a_warning(torch.abs))):
        run = nnfuzz.diff(a, b, list(SEEDS), compare="allclose", max_shrink=50, **QUICK)
        assert [f.cause for f in run.findings] == ["one side lacks an output of the other"]
        assert run.findings[0].confirmed
        assert sorted((run.findings[0].details["outputs_a"], run.findings[0].details["outputs_b"])) == [
            ["y"], ["y", "warning"],
        ]  # fmt: skip


def test_the_order_in_which_outputs_come_does_not_matter() -> None:
    p, q = torch.ones(2, 1, 3), torch.ones(2, 1, 5)
    objective = Disagreement("allclose:0.1", unit="batch")
    objective.learn(Trace({"a.p": p, "a.q": q, "b.p": p, "b.q": q}), {})
    gone = torch.tensor([True, False])
    turned = Trace({"a.q": q, "a.p": p, "b.p": p, "b.q": q}, present={"a.p": gone, "b.p": gone})
    assert objective.judge(turned, {}).hits.tolist() == [False, False]
    turned.present = {"a.p": gone}
    verdict = objective.judge(turned, {})
    assert verdict.hits.tolist() == [False, True]
    assert objective.cause(turned.rows([1]), {}).text == "one side lacks an output of the other"


def test_sides_that_lack_the_same_agree() -> None:
    run = nnfuzz.diff(*[with_a_warning(torch.abs)] * 2, list(SEEDS), compare="allclose", **QUICK)
    assert not run.findings


def test_functions_of_ones_own_see_what_a_candidate_has() -> None:
    seen: set[tuple[str, ...]] = set()

    def violated(outputs: Any, inputs: Tensor) -> bool:
        seen.add(tuple(outputs) if isinstance(outputs, dict) else ("y",))
        return isinstance(outputs, dict) and bool(outputs["warning"].amax() > 0.9)

    run = nnfuzz.fuzz(with_a_warning(torch.abs), list(SEEDS), objective=violated, max_shrink=50, **QUICK)
    assert seen == {("y",), ("y", "warning")}
    assert run.findings

    def other(a: Any, b: Any) -> Tensor:
        both = [side["warning"] if isinstance(side, dict) else torch.zeros(len(side), 1) for side in (a, b)]
        return (both[0] - both[1]).abs().flatten(1).amax(1) > 0.5

    pair = nnfuzz.diff(
        with_a_warning(torch.abs), with_a_warning(torch.zeros_like), list(SEEDS), compare=other, max_shrink=50, **QUICK
    )
    assert pair.findings


def test_rows_whose_outputs_come_and_go() -> None:
    run = nnfuzz.check_rows(with_a_warning(torch.abs), SEEDS, **QUICK)
    assert not run.findings


lengths = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=3), st.data())
def test_alike_outputs_are(shapes: list[tuple[list[int], list[int]]], data: st.DataObject) -> None:
    a = {str(i): torch.ones(2, *p) for i, (p, _) in enumerate(shapes)}
    b = {f"b{i}": torch.ones(2, *q) for i, (_, q) in enumerate(shapes)}
    usual = [set(data.draw(st.sets(st.integers(1, 3)))) for _ in shapes]
    x, y, unlike = alike(a, b, usual)
    assert unlike == any(
        apart - known for (p, q), apart, known in zip(shapes, axes_apart(a, b), usual, strict=True) if len(p) == len(q)
    )
    for (n, before), (m, other), known in zip(a.items(), b.items(), usual, strict=True):
        assert float(x[n].sum()) == float(before.sum())  # nothing is added but zeros
        assert float(y[m].sum()) == float(other.sum())
        if before.dim() == other.dim():
            assert all(x[n].shape[d] == y[m].shape[d] for d in range(before.dim()) if d not in known)


def test_the_script_sees_an_output_that_one_side_lacks(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(PAIR)
    spec = f"{tmp_path / 'pair.py'}:"
    context = {"model": spec + "a", "model_b": spec + "b", "cwd": str(tmp_path)}
    a, b = load_model(spec + "a"), load_model(spec + "b")
    options: dict[str, Any] = {"compare": "allclose", "max_shrink": 50, "out": tmp_path / "run", "context": context}
    assert nnfuzz.diff(a, b, list(SEEDS), **options, **QUICK).findings
    found = tmp_path / "run" / "findings" / "F0001"
    assert nnfuzz.repro(found).reproduced
    script: dict[str, Any] = {"__name__": "script", "__file__": str(found / "repro.py")}
    exec(compile((found / "repro.py").read_text(), str(found / "repro.py"), "exec"), script)
    assert script["still_fails"]() is True
    assert script["still_fails"](spec + "b", spec + "b") is False


PAIR = """
import torch

def a(x):
    found = {"y": x.sum(-1, keepdim=True) * torch.ones(3)}
    return found if float(x.sum()) >= 0 else found | {"warning": x.abs()}

def b(x):
    return {"y": x.sum(-1, keepdim=True) * torch.ones(3)}
"""
