"""Batches of results of which some lack an output: nothing is lost, nothing is invented."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nnfuzz.targets.base import Trace
from nnfuzz.targets.drive import drive_loop
from nnfuzz.targets.ragged import HAS, alike_rows, joined, rows_that_have

results = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 3), min_size=0, max_size=2), max_size=3)


def made(shapes: dict[str, list[int]], count: int | None = None) -> dict[str, Tensor]:
    return {n: torch.ones([*([] if count is None else [count]), *s]) for n, s in shapes.items()}


@given(st.lists(results, min_size=1, max_size=5))
def test_every_output_of_every_candidate_is_kept(each: list[dict[str, list[int]]]) -> None:
    it = iter(each)
    stacked = drive_loop(lambda _: made(next(it)), {"x": torch.zeros(len(each))})
    names = {n for one in each for n in one}
    assert {n for n in stacked if not n.startswith(HAS)} == names
    for name in names:
        assert [int(t.sum()) for t in stacked[name]] == [int(made(one).get(name, torch.zeros(1)).sum()) for one in each]
        lacking = [name not in one for one in each]
        assert (HAS + name in stacked) == any(lacking)
        if any(lacking):
            assert stacked[HAS + name].tolist() == [not gone for gone in lacking]


@given(st.lists(st.tuples(results, st.integers(1, 3)), min_size=1, max_size=4))
def test_traces_are_joined_as_candidates_are(parts: list[tuple[dict[str, list[int]], int]]) -> None:
    traces = [Trace(made(shapes, count)) for shapes, count in parts]
    counts = [count for _, count in parts]
    whole = Trace.cat(traces, counts)
    again = Trace.cat([whole, whole], [sum(counts)] * 2)
    for trace, each in ((whole, counts), (again, counts * 2)):
        owners = [shapes for (shapes, _), n in zip(parts * 2, each, strict=False) for _ in range(n)]
        for row, shapes in enumerate(owners):
            assert trace.lone(row).keys() == shapes.keys()
        for index, without in alike_rows(trace.present, len(owners)):
            assert all(set(trace.outputs) - set(owners[i]) == without for i in index.tolist())
        for name in trace.outputs:
            has = rows_that_have(trace.present, trace.outputs, name, len(owners))
            assert has.tolist() == [name in shapes for shapes in owners]


def test_parts_of_one_form_are_just_joined() -> None:
    a, b = {"y": torch.ones(2, 3)}, {"y": torch.zeros(1, 3)}
    tensors, present = joined([a, b], [2, 1])
    assert torch.equal(tensors["y"], torch.cat([a["y"], b["y"]]))
    assert not present


def test_a_trace_of_some_rows_keeps_their_marks() -> None:
    trace: Any = Trace.cat([Trace({"a": torch.ones(1)}), Trace({"b": torch.ones(2)})], [1, 2])
    assert trace.rows([0, 2]).present["a"].tolist() == [True, False]
    assert trace.rows(slice(1, 2)).lone(0).keys() == {"b"}
