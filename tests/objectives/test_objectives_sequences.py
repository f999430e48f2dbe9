"""Texts read from frames, and boxes."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from nnfuzz.errors import UsageError
from nnfuzz.findings.parts.boxes import ctc_text, lone_boxes
from nnfuzz.objectives import Disagreement
from nnfuzz.objectives.compare import comparison
from nnfuzz.objectives.compare_ctc import END, texts
from nnfuzz.objectives.compare_detection import iou
from nnfuzz.targets.base import Trace

frames = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4)


def said(row: list[int], blank: int) -> list[int]:
    return [label for label, _ in groupby(row) if label != blank]


def scores(labels: list[list[int]], classes: int = 4) -> Tensor:
    return one_hot(torch.tensor(labels), classes).float()


@given(frames, st.integers(0, 3))
def test_texts_are_collapsed_labels(labels: list[list[int]], blank: int) -> None:
    for row, text in zip(labels, texts(torch.tensor(labels), blank).tolist(), strict=True):
        assert [t for t in text if t != END] == said(row, blank)
        assert text == said(row, blank) + [END] * (6 - len(said(row, blank)))


@given(frames, frames, st.integers(-4, 3))
def test_another_text_is_a_disagreement_and_other_frames_are_none(a: Any, b: Any, blank: int) -> None:
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    seen = comparison(f"ctc:{blank}")({"o": scores(a)}, {"o": scores(b)})
    wanted = [said(x, blank % 4) != said(y, blank % 4) for x, y in zip(a, b, strict=True)]
    assert seen.differ.tolist() == wanted
    assert seen.tie[seen.differ].tolist() == [False] * sum(wanted)
    assert (ctc_text(scores(a), blank) != ctc_text(scores(b), blank)) == any(wanted)


def test_the_score_of_a_text_looks_at_frames_that_matter() -> None:
    """Frame 1 is in doubt between a repeat and the blank, which says the same; frame 2 between blank and letter."""
    rows = torch.tensor([[[0.0, 1.0, 0.0], [0.98, 1.0, 0.0], [1.0, 0.0, 0.5]]])
    seen = comparison("ctc")({"o": rows}, {"o": rows})
    assert seen.differ.tolist() == [False]
    assert seen.margin_a is not None
    assert seen.margin_a.tolist() == pytest.approx([0.5])


def test_what_the_texts_part_at_is_told() -> None:
    trace = Trace({"a.o": scores([[1, 1, 0, 2]]), "b.o": scores([[1, 0, 0, 3]])})
    objective = Disagreement("ctc")
    assert objective.judge(trace, {}).hits.tolist() == [True]
    assert objective.cause(trace, {}).text == "A says 2, B says 3"


@pytest.mark.parametrize(
    ("spec", "shape", "told"),
    [
        ("ctc", (1, 4), "ctc reads an output of shape (batch, time, classes), but it has shape (1, 4)"),
        ("ctc:9", (1, 4, 3), "ctc:9 names no class: the output has 3"),
        ("detection", (1, 4), "detection needs an output (batch, n, 6), or boxes (batch, n, 4) and scores (batch, n)"),
        ("detection:0.5,7", (1, 4, 6), "detection takes the least score and the least overlap, in (0, 1]"),
        ("ctc:x", (1, 4, 3), "ctc takes the class of the blank, a whole number: ctc:0"),
        ("boxes", (1, 4, 6), "the comparison 'boxes' is not known: choose argmax"),
    ],
)
def test_messages(spec: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(UsageError) as error:
        comparison(spec)({"o": torch.zeros(shape)}, {"o": torch.zeros(shape)})
    assert told in str(error.value)


# ------------------------------------------------------------------------------------------------ boxes

BOX = [0.0, 0.0, 10.0, 10.0]


def one(score: float, label: int = 1, box: list[float] = BOX) -> list[float]:
    return [*box, score, float(label)]


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ([one(0.9)], [one(0.8)], False),
        ([one(0.9)], [one(0.4)], True),
        ([one(0.4)], [one(0.3)], False),
        ([one(0.9)], [one(0.9, label=2)], True),
        ([one(0.9)], [one(0.9, box=[6.0, 0.0, 16.0, 10.0])], True),
        ([one(0.9)], [one(0.9, box=[1.0, 0.0, 11.0, 10.0])], False),
        ([one(0.9)], [one(0.9, box=[10.0, 10.0, 0.0, 0.0])], False),
        ([one(0.9), one(0.2)], [one(0.1), one(0.9)], False),
    ],
)
def test_boxes_need_a_partner(a: Any, b: Any, differ: bool) -> None:
    left, right = {"o": torch.tensor([a])}, {"o": torch.tensor([b])}
    assert comparison("detection:0.5,0.5")(left, right).differ.tolist() == [differ]
    assert comparison("detection:0.5,0.5")(right, left).differ.tolist() == [differ]
    assert (lone_boxes(left, right, 0.5, 0.5) + lone_boxes(right, left, 0.5, 0.5) > 0) == differ


def test_a_score_on_the_threshold_is_a_tie() -> None:
    a, b = torch.tensor([[one(0.5)]]), torch.tensor([[one(0.50000006)]])
    seen = comparison("detection:0.5,0.5")({"o": a}, {"o": b})
    assert seen.differ.tolist() == [True]
    assert seen.tie.tolist() == [True]


def test_boxes_scores_and_classes_are_found_by_their_shapes() -> None:
    place = torch.tensor([[BOX, [20.0, 20.0, 30.0, 30.0]]])
    labels, sure = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.9, 0.8]])
    three = {"labels": labels, "boxes": place, "scores": sure, "count": torch.tensor([2])}
    two = {"boxes": place, "scores": one_hot(labels.long(), 4).float() * sure[..., None]}
    assert comparison("detection")(three, two).differ.tolist() == [False]
    assert comparison("detection")(three, {**three, "scores": sure * 0.6}).differ.tolist() == [True]


@given(st.lists(st.floats(-5, 5, width=32), min_size=8, max_size=8))
def test_iou_is_a_share_and_symmetric(numbers: list[float]) -> None:
    x, y = torch.tensor(numbers).view(1, 2, 4).split(1, 1)
    value = iou(x, y)
    assert 0 <= float(value) <= 1 + 1e-6
    torch.testing.assert_close(value, iou(y, x))
