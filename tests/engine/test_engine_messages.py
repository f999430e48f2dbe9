"""What bad input is told: one sentence, what was given and what to do; exit status 2 for usage, 3 for the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import nnfuzz
from nnfuzz.report.choose import make_reporter

GOOD = torch.rand(4, 3)
HOLED = torch.tensor([[0.5, 0.5, 0.5], [0.5, float("nan"), 0.5]])
ONE: dict[str, Any] = {"max_inputs": 8, "max_seconds": None}


def total(x: Tensor) -> Tensor:
    return x.sum(-1)


def pair(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(-1) + y.sum(-1)


def lengths(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() + y.sum()


CASES: list[tuple[str, Any, Any, dict[str, Any]]] = [
    # seeds
    ("the list of seeds is empty", total, [], {}),
    ("the seeds are empty (first axis of length 0)", total, torch.zeros(0, 3), {}),
    ("the data source is empty", total, TensorDataset(torch.zeros(0, 3)), {}),
    ("the seeds hold no tensor", total, (3,), {}),
    ("the seeds have different dtypes", total, [torch.rand(2), torch.rand(3).double()], {}),
    ("all seeds need the same structure", pair, [(GOOD, GOOD), (GOOD,)], {}),
    ("the seeds hold 3 inputs but the model takes 2 (x, y)", pair, (GOOD, GOOD, GOOD), {}),
    ("there is no place for 'c'", pair, {"x": GOOD, "b": GOOD, "c": GOOD}, {}),
    ("is a set, but inputs are tensors", total, {1, 2}, {}),
    ("is an array of <U1, but numbers are needed", total, np.array(["a"]), {}),
    ("NaN or Inf in the input 'x' (seed 1, index [1])", total, HOLED, {}),
    # names
    ("fixed names the input 'z', but the inputs are x", total, GOOD, {"fixed": ["z"]}),
    ("fixed names the input 'label', but the inputs are x", total, GOOD, {"fixed": "label"}),
    ("ranges names the input 'z', but the inputs are x", total, GOOD, {"ranges": {"z": (0, 1)}}),
    ("kinds names the input 'z'", total, GOOD, {"kinds": {"z": "onehot"}}),
    ("shapes names the input 'z'", total, GOOD, {"shapes": {"z": ("n",)}}),
    ("eps names the input 'z'", total, GOOD, {"eps": {"z": 0.1}}),
    ("no coverage is called 'nothing'", total, GOOD, {"coverage": "nothing"}),
    ("no mutator is called 'nois': choose one of", total, GOOD, {"mutators": ["nois"]}),
    ("unexpected keyword argument 'max_input'", total, GOOD, {"max_input": 3}),
    ("no module matches --layers conv*", nn.Linear(3, 2), GOOD, {"layers": ["conv*"]}),
    # values
    ("unit is 'row', but it is one of auto, sample, batch", total, GOOD, {"unit": "row"}),
    ("watch is 'all', but it is one of outputs", total, GOOD, {"watch": "all"}),
    ("phase is 'both ways', but it is one of auto", total, GOOD, {"phase": "both ways"}),
    ("schedule is 'best', but it is one of mix", total, GOOD, {"schedule": "best"}),
    ("max_inputs is 0, but it is a limit", total, GOOD, {"max_inputs": 0}),
    ("max_seconds is -1, but it is a limit", total, GOOD, {"max_seconds": -1}),
    ("batch_size is 0, but it is a limit", total, GOOD, {"batch_size": 0}),
    ("radius is -1, but it is a distance", total, GOOD, {"radius": -1}),
    ("seed is -3, but it is a whole number", total, GOOD, {"seed": -3}),
    ("max_corpus is 3, but a corpus needs room", total, GOOD, {"max_corpus": 3}),
    ("eps for 'x' is 0, but it is the radius of a ball", total, GOOD, {"eps": 0}),
    ("eps for 'x' is inf, but it is the radius", total, GOOD, {"eps": float("inf")}),
    # ranges
    ("its low end is above its high end: swap them", total, GOOD, {"ranges": (1, 0)}),
    ("but a pair (low, high) is expected", total, GOOD, {"ranges": {"x": 5}}),
    ("but a pair (low, high) is expected", total, GOOD, {"ranges": ("a", "b")}),
    ("but a pair (low, high) is expected", total, GOOD, {"ranges": {"x": (0, 1, 2)}}),
    ("the range of 'x' holds NaN", total, GOOD, {"ranges": (float("nan"), 1)}),
    ("the list of choices for 'x' is empty", total, GOOD, {"ranges": {"x": []}}),
    ("is not legal for the input 'x': it holds", total, GOOD + 5, {"ranges": (0, 1)}),
    ("but the choices [0.0, 1.0]", total, GOOD, {"ranges": {"x": [0, 1]}}),
    ("no input can change (x is fixed)", total, GOOD, {"fixed": ["x"]}),
    ("no input can change (x is one value, 2.0)", total, torch.full((3, 2), 2.0), {}),
    ("no input can change (x has no elements, its shape is [0]): give seeds with", total, torch.ones(3, 0), {}),
    ("no input can change (x has no elements, its shape is [0])", total, torch.ones(3, 0), {"ranges": (0, 1)}),
    ("(x is fixed; y has no elements, its shape is [0])", pair, (GOOD, torch.ones(4, 0)), {"fixed": ["x"]}),
    # kinds and shapes
    ("has the kind 'colour', but kinds are", total, GOOD, {"kinds": {"x": "colour"}}),
    ("the kind choice but no choices", total, GOOD, {"kinds": {"x": "choice"}}),
    ("the kind simplex needs a floating dtype", total, torch.ones(3, 2, dtype=torch.long), {"kinds": {"x": "simplex"}}),
    ("of kind boxes needs a last axis of length 4", total, GOOD, {"kinds": {"x": "boxes"}}),
    ("is complex, and complex inputs cannot be mutated", total, GOOD.cfloat(), {}),
    ("shapes gives 3 dimensions for 'x'", total, GOOD, {"shapes": {"x": ("n", 3, 4)}}),
    ("shapes says 5 for a dimension of 'x' that is 3", total, GOOD, {"shapes": {"x": ("n", 5)}}),
    ("the dimension '3n' of 'x' is not understood", total, GOOD, {"shapes": {"x": ("3n",)}}),
    ("has n = 5 in 'x', outside the bounds", total, [torch.rand(5)], {"shapes": {"x": ("n<=4",)}}),
    ("shapes calls a dimension of 'x' and one of 'y' n", lengths, [(torch.rand(5), torch.rand(4))],
     {"shapes": {"x": ("n",), "y": ("n",)}}),
    ("unit=sample needs seeds with a first axis", total, list(GOOD), {"unit": "sample"}),
    ("unit=sample does not fit", lambda x: x.mean(), GOOD, {"unit": "sample"}),
    ("the constraint is 'sort', but a function", total, GOOD, {"constraint": "sort"}),
    ("phase=backward needs a model with gradients", lambda x: x.detach().sum(-1), GOOD, {"phase": "backward"}),
    ("the model is a int, but a module or a function", 7, GOOD, {}),
]  # fmt: skip


@pytest.mark.parametrize(("said", "model", "seeds", "more"), CASES, ids=[c[0][:50] for c in CASES])
def test_bad_input_is_told_in_one_sentence(
    said: str, model: Any, seeds: Any, more: dict[str, Any], refused: Any
) -> None:
    sentence = refused(nnfuzz.find_nans, model, seeds, **(ONE | more))
    assert said in sentence
    assert "\n" not in sentence


def test_a_model_that_fails_on_its_seeds_is_exit_status_three() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("no such layer\nat all")

    with pytest.raises(nnfuzz.ModelFailure, match=r"seeds: RuntimeError: no such layer at all \(test_") as caught:
        nnfuzz.find_nans(broken, GOOD, **ONE)
    assert caught.value.exit_status == 3


@pytest.mark.parametrize("failing", [1, 4])
def test_what_is_done_when_seeds_fail(failing: int, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.where(torch.arange(4)[:, None] < failing, -1.0, 1.0).expand(4, 3)
    run = nnfuzz.find_nans(
        lambda x: x.sum(-1).sqrt(), x, ranges=(-2, 2), phase="forward", reporter=make_reporter("plain"), **ONE
    )
    out = " ".join(capsys.readouterr().out.split())
    assert ("and the search starts from the other seeds" in out) == (failing == 1)
    assert ("no seed is left to search from, so the run ends here: give seeds" in out) == (failing == 4)
    assert run.stats.inputs == (8 if failing == 1 else 0)


def test_integer_ranges_up_to_the_last_number() -> None:
    top = torch.iinfo(torch.int64).max
    run = nnfuzz.find_nans(lambda x: x.double().sum(-1), torch.ones(3, 2, dtype=torch.long), ranges=(0, top), **ONE)
    assert run.stats.inputs == 8
