"""Whatever a model returns, by name: the same in a run and in a finding's script; a list of numbers is one output."""

from __future__ import annotations

import math
import warnings
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nnfuzz
from nnfuzz.findings.parts.running import named
from nnfuzz.targets.outputs import named_outputs

Pair = namedtuple("Pair", ["loss", "acc"])


@dataclass
class Answer:
    logits: Any
    length: Any


T = torch.zeros(2)
numbers = st.sampled_from([True, 3, 0.5, math.nan, 2j])
leaves = st.one_of(numbers, st.just(T), st.sampled_from(["text", None]), st.just(np.ones(2, np.float32)))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda p: Pair(*p)),
        st.tuples(inner, inner).map(lambda p: Answer(*p)),
    ),
    max_leaves=8,
)


@given(values)
def test_a_run_and_a_script_name_alike(value: Any) -> None:
    one, other = named_outputs(value), named(value)
    assert list(one) == list(other)
    for name, t in one.items():
        assert t.dtype == other[name].dtype
        assert torch.equal(t.nan_to_num(7.0), other[name].nan_to_num(7.0))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([1.0, math.nan, 2.0], {"output": (3,)}),
        ((1, 2.5), {"output": (2,)}),
        ({"scores": [0.1, 0.2], "n": 3}, {"scores": (2,), "n": ()}),
        ({"scores": [0.1, 0.2], "x": T}, {"x": (2,)}),
        ([[1.0, 2.0], [3.0]], {"0": (2,), "1": (1,)}),
        ([T, T], {"0": (2,), "1": (2,)}),
        (Pair(1.0, 2.0), {"loss": (), "acc": ()}),
        (np.float32(1), {"output": ()}),
        (np.zeros((2, 3)), {"output": (2, 3)}),
        (np.array(["a"]), {}),
        ([], {}),
        (["a", "b"], {}),
    ],
)
def test_names_and_shapes(value: Any, names: dict[str, tuple[int, ...]]) -> None:
    assert {n: tuple(t.shape) for n, t in named_outputs(value).items()} == names


def square_roots(x: Tensor) -> list[float]:
    return [math.sqrt(v) if v >= 0 else math.nan for v in x.flatten().tolist()]


def square_roots_in_numpy(x: Tensor) -> Any:
    with np.errstate(invalid="ignore"):
        return np.sqrt(x.numpy())


@pytest.mark.parametrize("model", [square_roots, square_roots_in_numpy])
def test_a_list_of_numbers_has_one_cause(model: Any, tmp_path: Path) -> None:
    seeds = torch.rand(12, 5, generator=torch.Generator().manual_seed(0))
    run = nnfuzz.find_nans(model, list(seeds), ranges=(-1, 1), max_inputs=400, out=tmp_path / "run")
    assert [f.cause for f in run.findings] == ["nan in output"]
    assert run.findings[0].outputs["output"].shape == (5,)
    assert nnfuzz.repro(tmp_path / "run" / "findings" / "F0001", model=model).reproduced


def test_sparse_and_nested_results_are_what_they_stand_for() -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert torch.equal(named_outputs(dense.to_sparse())["output"], dense)
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert torch.equal(named_outputs(ragged)["output"], torch.tensor([[1.0, 1, 0], [1, 1, 1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would have another way of quantizing
        few = torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8)
    assert torch.equal(named_outputs(few)["output"], dense)

    run = nnfuzz.find_nans(lambda x: torch.log(x).to_sparse(), torch.rand(6, 3), ranges=(-1, 1), max_inputs=200)
    assert run.findings
