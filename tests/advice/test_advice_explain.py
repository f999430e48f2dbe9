"""`nnfuzz.explain`: from a finding to its text."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.findings.weights import bad_weights

SEEDS = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))


def loss(z: Tensor) -> Tensor:
    p = torch.softmax(z, -1)
    return -torch.log(p).mean(-1)


def length(x: Tensor) -> Tensor:
    return x.pow(2).sum(-1).sqrt()


class Net(nn.Module):
    """Two layers, on which a copy can differ."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def found(model: Any, **more: Any) -> nnfuzz.Run:
    run = nnfuzz.find_nans(model, SEEDS, max_inputs=3000, max_seconds=5, stop_on_first=True, **more)
    assert run.findings
    return run


def test_a_nan_is_explained_from_its_directory(tmp_path: Path) -> None:
    run = found(loss, ranges=(-100, 100), out=tmp_path / "run")
    text = nnfuzz.explain(tmp_path / "run" / "findings" / run.findings[0].id, loss, seconds=0.3, inputs=300)
    for part in (
        "first bad operation: log at test_advice_explain.py:",
        "underflow in float32",
        "return -torch.log_softmax(z, -1).mean(-1)",
        "[log.softmax]",
        "the seed and ",
        " other inputs agree within",
        "searched again: nothing more at that site",
        f"torch {torch.__version__}",
        "log_softmax of the logits cannot",
        "lineage: seed",
    ):
        assert part in text, text
    assert text.index("[log.softmax]") < text.index("[log.clamp]")


def test_a_gradient_is_explained_from_memory() -> None:
    run = found(length, ranges=(-1, 1), phase="backward")
    text = nnfuzz.explain(run.findings[0], length, seconds=0.3, inputs=300)
    assert "first bad operation: gradient of sqrt" in text
    assert "finite outputs and gradients" in text
    assert "vector_norm" in text


def test_searches_can_be_left_out() -> None:
    run = found(loss, ranges=(-100, 100))
    text = nnfuzz.explain(run.findings[0], loss, inputs=0)
    assert "[log.softmax]" in text
    assert "searched again" not in text


def test_the_model_must_be_given_when_the_finding_does_not_know_it(tmp_path: Path) -> None:
    run = found(loss, ranges=(-100, 100), out=tmp_path / "run")
    with pytest.raises(nnfuzz.UsageError, match="pass model="):
        nnfuzz.explain(tmp_path / "run" / "findings" / run.findings[0].id)


def test_a_finding_that_was_repaired_says_so() -> None:
    run = found(loss, ranges=(-100, 100))
    text = nnfuzz.explain(run.findings[0], lambda z: -torch.log_softmax(z, -1).mean(-1), inputs=0)
    assert "every operation is finite" in text


def test_a_disagreement_shows_where_the_layers_part() -> None:
    model = Net()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.second.weight[0] += 0.5
    run = nnfuzz.diff(model, other, SEEDS, max_inputs=3000, max_seconds=5, stop_on_first=True)
    assert run.findings
    text = nnfuzz.explain(run.findings[0], model, other)
    for part in ("A says", "B says", "margin", "largest output difference", "layer by layer", "second", "lineage"):
        assert part in text, text


@pytest.mark.parametrize("as_", ["fp16", "int8"])
def test_a_copy_is_compared_layer_by_layer_too(as_: str) -> None:
    model = Net()
    run = nnfuzz.diff(
        model, seeds=SEEDS, as_=as_, compare="allclose:1e-4,1e-4", ranges=(-50, 50), max_inputs=2000, max_seconds=5,
        stop_on_first=True,
    )  # fmt: skip
    assert run.findings
    text = nnfuzz.explain(run.findings[0], model)
    for part in ("relative difference layer by layer", "  first ", "  second ", "against float64"):
        assert part in text, text


def test_a_property_is_told_without_the_model() -> None:
    def violated(out: Tensor, inputs: Any) -> Tensor:
        return out > 2.5

    run = nnfuzz.fuzz(
        lambda x: x.sum(-1),
        SEEDS,
        objective=violated,
        ranges=(0, 1),
        max_inputs=3000,
        max_seconds=5,
        stop_on_first=True,
    )
    assert run.findings
    text = nnfuzz.explain(run.findings[0])
    assert "cause: " in text
    assert "distance to seed" in text


def root(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(torch.diag(x)).sum()


def test_an_operation_that_raises_is_named_and_what_keeps_it_from_raising_was_tried() -> None:
    """A singular matrix makes no NaN: torch raises. What helps is found and tried as for a NaN."""
    seeds = [{"x": torch.full((3,), 0.5)}]
    run = nnfuzz.find_nans(root, seeds, ranges=(0, 1), max_inputs=3000, max_seconds=30, stop_on_first=True)
    text = nnfuzz.explain(run.findings[0], root, seconds=0.3, inputs=300)
    assert "first bad operation: cholesky at test_advice_explain.py" in text
    assert ", raises" in text
    assert "times the identity before it" in text.partition("not verified")[0]


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_weight_that_is_not_finite_is_named(kind: str, tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.first.register_buffer("shift", torch.zeros(3))
            held = self.first.bias if kind == "parameter" else self.first.shift
            held.data[2] = float("nan")

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.first.shift

    model = Scaled()
    run = found(model, out=tmp_path / "run")
    place = tmp_path / "run" / "findings" / run.findings[0].id
    name = "parameter first.bias" if kind == "parameter" else "buffer first.shift"
    said = f"the {name} holds NaN (1 of 3 values, the first at [2])"
    text = nnfuzz.explain(place, model)
    assert text.count(said) == 1, text
    assert "does not show" not in text
    assert said in (place / "README.md").read_text()


def test_an_infinite_weight_is_named_for_an_infinity_alone() -> None:
    model = nn.Linear(2, 1)
    model.weight.data[0, 1] = float("inf")
    assert bad_weights(model, "nan") == []
    (said,) = bad_weights(model, "+inf")
    assert said.startswith("the parameter weight holds an infinity (1 of 2 values, the first at [0, 1])")
