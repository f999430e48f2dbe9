"""Zeros, equal rows, one input equal to another: one batch away, and no slope leads there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import linear, sgd

from nnfuzz.errors import UsageError
from nnfuzz.training import find_nans_in_training
from nnfuzz.training.program import Input
from nnfuzz.training.structured import forms

RANGES = st.tuples(st.floats(-100, 100), st.floats(0.5, 100)).map(lambda t: (t[0], t[0] + t[1]))


@settings(deadline=None)
@given(RANGES, st.integers(1, 5), st.integers(1, 4), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_forms_are_legal_and_different(ends, rows, columns, dtype):
    low, high = float(int(ends[0])), float(int(ends[1]) + 1)
    value = (torch.rand(rows, columns) * (high - low) + low).to(dtype)
    about = Input("x", "data", low, high)
    made = list(forms(value, about, rowwise=True))
    for i, form in enumerate(made):
        assert about.holds(form)
        assert form.shape == value.shape
        assert form.dtype == dtype
        assert not any(torch.equal(form, other) for other in [value, *made[:i]])


def batches_of(**shapes):
    def batches(seed):
        g = torch.Generator().manual_seed(seed)
        while True:
            yield {k: torch.rand(*shape, generator=g) for k, shape in shapes.items()}

    return batches


def relative_error(model, batch):
    return ((model(batch["x"])[:, :1] - batch["y"]).abs() / batch["y"].abs()).mean()


def distance(model, batch):
    return (model(batch["x"]) - model(batch["z"])).square().sum(1).sqrt().mean()


def spread(model, batch):
    out = model(batch["x"])
    return ((out - out.mean(0)) / out.std(0)).square().mean()


def masked_mean(model, batch):
    mask = (batch["m"] > 0.5).float()
    return (model(batch["x"])[:, 0] * mask).sum() / mask.sum()


def run(loss, **shapes):
    inputs = {k: {"low": -1.0 if k == "y" else 0.0, "high": 1.0, "role": "data"} for k in shapes}
    return find_nans_in_training(linear, loss, batches_of(**shapes), optimizer=sgd, inputs=inputs, max_steps=12)


@pytest.mark.parametrize(
    ("loss", "shapes", "op"),
    [
        (relative_error, {"x": (6, 3), "y": (6, 1)}, "div"),
        (distance, {"x": (6, 3), "z": (6, 3)}, "sqrt"),
        (spread, {"x": (6, 3)}, "div"),
        (masked_mean, {"x": (6, 3), "m": (6,)}, "div"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_what_only_a_structure_reaches_is_found_at_once(loss, shapes, op):
    finding = run(loss, **shapes).findings[0]
    assert finding.arm == "structure"
    assert finding.step == 0
    assert finding.site.op == op


def test_discrete_inputs_take_the_values_that_are_named():
    def batches(seed):
        while True:
            yield {"x": torch.rand(4, 3), "m": torch.tensor([1.0, 0.0, 1.0, 1.0])}

    inputs = {"x": {"low": 0, "high": 1}, "m": {"choices": [0, 1], "role": "data"}}
    found = find_nans_in_training(linear, masked_mean, batches, optimizer=sgd, inputs=inputs, max_steps=12)
    assert found.findings[0].site.op == "div"
    assert not bool(found.findings[0].batches[0]["m"].any())


def test_choices_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match=r"inputs\['m'\] has choices 'ab', but they are a list of numbers"):
        find_nans_in_training(
            linear, masked_mean, batches_of(x=(4, 3)), optimizer=sgd, inputs={"m": {"choices": "ab", "role": "data"}}
        )


def test_whole_numbers_stay_within_a_range_with_broken_ends():
    value, about = torch.tensor([[1], [2]]), Input("x", "data", 0.5, 2.5)
    made = list(forms(value, about, rowwise=True))
    assert made
    assert all(about.holds(form) for form in made)
