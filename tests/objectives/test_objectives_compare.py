"""Comparisons, the referee, the derived copies, the user's own property, and rows that know of each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.callform import CallForm, Leaf
from nnfuzz.findings.enrich import _error_of, _verdict
from nnfuzz.objectives import Disagreement
from nnfuzz.objectives.base import differences
from nnfuzz.objectives.compare import comparison
from nnfuzz.targets import TorchTarget
from nnfuzz.targets.base import Trace
from nnfuzz.targets.precision import QuantizedLayer, derive

INF, NAN = float("inf"), float("nan")
QUICK: dict[str, Any] = {"max_seconds": None, "max_inputs": 2000}


def compare(spec: Any, a: Any, b: Any) -> Any:
    return comparison(spec)({"output": torch.tensor(a)}, {"output": torch.tensor(b)})


@pytest.mark.parametrize(
    ("spec", "a", "b", "differ", "tie"),
    [
        ("argmax", [[1.0, 2.0]], [[1.0, 3.0]], False, True),
        ("argmax", [[1.0, 2.0]], [[2.0, 1.0]], True, False),
        ("argmax", [[1.0, 1.0000001]], [[1.0000001, 1.0]], True, True),
        ("argmax", [[1.0, 1.0000001]], [[2.0, 1.0]], True, False),
        ("topk:2", [[3.0, 2.0, 1.0]], [[2.0, 3.0, 1.0]], False, False),
        ("topk:2", [[3.0, 2.0, 1.0]], [[3.0, 1.0, 2.0]], True, False),
        ("topk:1", [[1.0, 1.0]], [[1.0, 1.0]], False, True),
        ("threshold:0.5", [[0.4]], [[0.45]], False, False),
        ("threshold:0.5", [[0.4]], [[0.55]], True, False),
        ("allclose:0.1", [[1.0, 2.0]], [[1.05, 2.0]], False, False),
        ("allclose:0.1", [[1.0, 2.0]], [[1.2, 2.0]], True, False),
        ("allclose:0,0.5", [[1.4]], [[1.0]], False, False),
        ("cosine:0.99", [[1.0, 0.0]], [[2.0, 0.0]], False, False),
        ("cosine:0.99", [[1.0, 0.0]], [[0.0, 1.0]], True, False),
        ("cosine:0.99", [[0.0, 0.0]], [[0.0, 0.0]], False, False),
    ],
)  # fmt: skip
def test_comparisons(spec: str, a: Any, b: Any, differ: bool, tie: bool) -> None:
    seen = compare(spec, a, b)
    assert seen.differ.tolist() == [differ]
    if differ:
        assert seen.tie.tolist() == [tie]


def test_ties_count_only_when_asked_for() -> None:
    trace = Trace({"a.output": torch.tensor([[1.0, 1.0000001]]), "b.output": torch.tensor([[1.0000001, 1.0]])})
    assert Disagreement("argmax").judge(trace, {}).hits.tolist() == [False]
    assert Disagreement("argmax", ties=True).judge(trace, {}).hits.tolist() == [True]


@pytest.mark.parametrize("spec", ["argmax", "topk:1", "threshold:0.5", "allclose:1e-3", "cosine:0.9"])
@pytest.mark.parametrize(("a", "b", "hit"), [(NAN, 1.0, True), (1.0, INF, True), (NAN, NAN, False), (1.0, 1.0, False)])
def test_what_is_not_finite_on_one_side_only_is_a_failure(spec: str, a: float, b: float, hit: bool) -> None:
    trace = Trace({"a.output": torch.tensor([[a, 0.0]]), "b.output": torch.tensor([[b, 0.0]])})
    objective = Disagreement(spec)
    assert objective.judge(trace, {}).hits.tolist() == [hit]
    if hit:
        assert objective.cause(trace, {}).text == ("nan in A only" if a != a else "+inf in B only")


def test_comparisons_of_ones_own() -> None:
    mask = comparison(lambda a, b: (a - b).abs().amax(1) > 1)({"o": torch.zeros(2, 2)}, {"o": torch.eye(2) * 2})
    assert mask.differ.tolist() == [True, True]
    scored = comparison(lambda a, b: (a[:, 0] > b[:, 0], a[:, 0] - b[:, 0]))(
        {"o": torch.eye(2)}, {"o": torch.zeros(2, 2)}
    )
    assert scored.differ.tolist() == [True, False]
    assert scored.score.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "shape", "said"),
    [
        ("topk:x", (2, 9), "does not fit: topk takes how many classes, at least 1: topk:5"),
        ("topk:0", (2, 9), "does not fit: topk takes how many classes"),
        ("cosine:5", (2, 9), "does not fit: cosine takes the least similarity, from -1 to 1: cosine:0.99"),
        ("allclose:-1", (2, 9), "does not fit: allclose takes an absolute and a relative tolerance from 0 up"),
        ("allclose:1,2,3", (2, 9), "does not fit: allclose takes"),
        ("threshold:nan", (2, 9), "does not fit: threshold takes a finite number"),
        ("levenshtein", (2, 9), "is not known: choose argmax"),
        ("argmax", (2, 1), "at least two classes"),
        ("argmax", (2,), "at least two classes"),
        ("argmax:7", (2, 3), "argmax:7 asks for axis 7, but the output has shape (2, 3): name another axis"),
        ("argmax:0", (2, 3), "argmax:0 asks for the axis that counts the candidates"),
        ("topk:5", (2, 5), "needs more than 5 classes"),
        ("topk:2", (9,), "at least two classes"),
    ],
)
def test_comparisons_that_do_not_fit(spec: str, shape: tuple[int, ...], said: str, refused: Any) -> None:
    t = {"output": torch.rand(shape)}
    assert said in refused(lambda: comparison(spec)(t, t))


def test_outputs_that_cannot_be_compared(refused: Any) -> None:
    ints = {"output": torch.ones(2, 3, dtype=torch.long)}
    assert "no floating-point output" in refused(comparison("threshold"), ints, ints)
    assert "needs floating-point outputs" in refused(comparison("allclose"), ints, ints)
    assert "equal shapes" in refused(comparison("allclose"), {"o": torch.ones(2, 3)}, {"o": torch.ones(2, 4)})


# ---------------------------------------------------------------------- copies and the referee


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


def test_int8_quantizes_weights_and_activations() -> None:
    model, x = small(), torch.rand(64, 4)
    twin = derive(model, "int8", lambda m: m(x))
    layers = [m for m in twin.modules() if isinstance(m, QuantizedLayer)]
    assert len(layers) == 2
    for layer in layers:
        for row in layer.layer.weight:
            levels = row / (row.abs().max() / 127)
            assert torch.allclose(levels, levels.round(), atol=1e-3)
    step = (layers[0].high - layers[0].low) / 255
    nudged = x + step * 0.001 * (x < 0.5)
    same = (twin(x) == twin(nudged)).float().mean()
    assert same > 0.9, "inputs that fall on one level give one answer"
    assert not torch.equal(twin(x), model(x))
    assert torch.allclose(twin(x), model(x), atol=0.1)
    assert torch.equal(small()[0].weight, model[0].weight), "the model itself stays"


def test_half_precision_runs_in_half_precision() -> None:
    twin = derive(small(), "fp16", lambda m: None)
    out = twin(torch.rand(5, 4))
    assert out.dtype == torch.float16
    assert {p.dtype for p in twin.parameters()} == {torch.float16}


def test_copies_that_cannot_be_made(refused: Any) -> None:
    assert "the precision 'fp8' is not known" in refused(derive, small(), "fp8", lambda m: None)
    assert "derives a copy of an nn.Module" in refused(derive, lambda x: x, "fp16", lambda m: None)
    assert "quantizes Linear and Conv layers" in refused(derive, nn.ReLU(), "int8", lambda m: None)


@pytest.mark.parametrize("as_", ["fp16", "bf16", "int8"])
def test_a_copy_is_told_from_its_model(as_: str) -> None:
    run = nnfuzz.diff(
        small(), as_=as_, seeds=torch.rand(6, 4) * 2 - 1, compare="argmax", **(QUICK | {"max_inputs": 3000})
    )
    (first, *_) = run.findings
    assert first.symptom == "disagreement"
    assert set(first.outputs) == {"a.output", "b.output"}
    assert first.details["answer_a"] != first.details["answer_b"]
    assert first.severity == min(first.details["margin_a"], first.details["margin_b"])
    assert first.details["referee"]["a"]["error"] < first.details["referee"]["b"]["error"]
    assert any("nearer to A" in note for note in first.notes)
    assert len({f.cause for f in run.findings}) == len(run.findings)


def test_the_referee_says_when_an_error_is_beyond_the_dtype() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            lost = x.float() * 1e4 + 1e8 - 1e8  # cancellation: float32 loses what float64 keeps
            return (lost if x.dtype == torch.float32 else x * 1e4).float()

    run = nnfuzz.diff(Wrong(), lambda x: x * 1e4, torch.rand(4, 3), compare="allclose:1.0", ranges=(0, 1), **QUICK)
    told = run.findings[0].details["referee"]
    assert told["a"]["beyond its dtype"] is True
    assert "unavailable" in told["b"]


def test_diff_wants_one_other_side(refused: Any) -> None:
    assert "give exactly one" in refused(nnfuzz.diff, small(), seeds=torch.rand(3, 4))
    assert "no seeds" in refused(nnfuzz.diff, small(), small())
    both = {"x": torch.rand(3, 4), "y": torch.rand(3, 4)}
    assert "model" in refused(nnfuzz.diff, lambda x, y: x + y, lambda z: z, both)


# ---------------------------------------------------------------------- the user's own property


def test_a_property_by_mask_and_by_score() -> None:
    def total(outputs: Tensor, inputs: Tensor) -> Tensor:
        return outputs > 5.5

    def scored(outputs: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return outputs > 5.5, outputs

    for objective in (total, scored):
        run = nnfuzz.fuzz(lambda x: x.sum(-1), torch.rand(4, 3), objective=objective, ranges=(0, 2), **QUICK)
        (finding,) = run.findings
        assert finding.symptom == "property"
        assert finding.inputs["x"].sum() > 5.5
        assert (run.stats.best_score > 4) == (objective is scored)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (lambda o, i: torch.zeros(3, 3, dtype=torch.bool), "answered with shape (3, 3)"),
        (lambda o, i: (o > 0, torch.zeros(1)), "gave 1 scores"),
        (lambda o, i: True, "answered with shape ()"),
        (lambda o, i: None, "answered with a NoneType"),
        (lambda o, i: "yes", "answered with a str"),
        (lambda o, i: o @ torch.zeros(99, 99), "raised RuntimeError"),
        (lambda o: o, "raised TypeError"),
        (7, "a function fn(outputs, inputs)"),
    ],
)
def test_a_property_that_does_not_answer(objective: Any, said: str, refused: Any) -> None:
    sentence = refused(nnfuzz.fuzz, lambda x: x.sum(-1), torch.rand(4, 3), objective=objective, **QUICK)
    assert said in sentence
    assert "\n" not in sentence


# ---------------------------------------------------------------------- rows


class DynamicScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax() / 7
        return (x / step).round() * step


def test_a_row_that_spoils_others_is_found() -> None:
    run = nnfuzz.check_rows(DynamicScale(), torch.rand(8, 3) + 0.1, ranges=(0, 50), max_inputs=600, max_seconds=None)
    assert run.findings
    assert run.findings[0].symptom == "rows"
    assert "its batch and alone" in run.findings[0].cause


def test_rows_that_keep_to_themselves_are_left_in_peace() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
    run = nnfuzz.check_rows(model, torch.rand(8, 3), ranges=(-2, 2), max_inputs=600, max_seconds=None)
    assert not run.findings
    assert any("Dropout is different there by design" in note for note in run.notes)


def test_training_that_differs_from_evaluation_is_found() -> None:
    class Padded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (
                x.sum(-1, keepdim=True)
                if self.training
                else torch.where(x.amax(-1, keepdim=True) > 1.5, 0, x.sum(-1, keepdim=True))
            )

    run = nnfuzz.check_rows(Padded(), torch.rand(8, 3), ranges=(0, 2), max_inputs=600, max_seconds=None)
    assert any("train() and eval()" in f.cause for f in run.findings)


def test_rows_need_rows(refused: Any) -> None:
    assert "stack them" in refused(nnfuzz.check_rows, nn.Linear(3, 2), list(torch.rand(4, 3)))
    assert "reduces over them" in refused(nnfuzz.check_rows, lambda x: x.mean(), torch.rand(4, 3))


@pytest.mark.parametrize(
    ("x", "y", "gap"),
    [
        (-math.inf, -math.inf, 0),
        (math.inf, -math.inf, math.inf),
        (math.inf, 3, math.inf),
        (3, -math.inf, math.inf),
        (math.nan, math.nan, 0),
        (math.nan, math.inf, math.inf),
        (1, math.nan, math.inf),
        (1, 3, 2),
    ],
)
def test_differences_of_numbers_that_are_not_finite(x: float, y: float, gap: float) -> None:
    assert differences(torch.tensor([x]), torch.tensor([y], dtype=torch.float64)).tolist() == [gap]


def test_a_right_infinity_is_no_error() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x.clamp(min=0)) + x.new_zeros(2)

    class Held(Log):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).clamp(min=-6)

    inputs = {"x": torch.tensor([[-1.0]])}
    told = {
        name: _error_of(TorchTarget(model, CallForm((Leaf("x"),), {})), Log().double(), inputs)
        for name, model in (("a", Log()), ("b", Held()))
    }
    assert told["a"]["error"] == 0
    assert told["a"]["beyond its dtype"] is False
    assert told["a"]["answer in float64"] is None, "of equal infinities none is the answer"
    assert _verdict(told, one_truth=True) == [
        "in float64 the referee is nearer to A (errors 0 and inf)",
        "the error of B (inf) is more than its dtype explains",
    ]
    told["a"] = told["b"]
    assert "as far from A as from B (errors inf and inf)" in _verdict(told, one_truth=True)[0]
