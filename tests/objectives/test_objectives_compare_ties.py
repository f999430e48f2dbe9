"""Equal scores: the label is the first of them, as argmax has it everywhere."""

from __future__ import annotations

import pytest
import torch

import nnfuzz
from nnfuzz.objectives.compare import ROUNDING, comparison


def test_a_tie_on_one_side_is_no_other_label() -> None:
    a = torch.tensor([[0.1, 0.5, 0.4, 0.2]]).repeat(3, 1)
    b = torch.tensor([[0.1, 0.5, 0.5, 0.2], [0.5, 0.1, 0.5, 0.2], [0.2, 0.1, 0.5, 0.5]])
    compared = comparison("argmax")({"y": a}, {"y": b})
    assert compared.answer_b.tolist() == b.argmax(1).tolist() == [1, 0, 2]
    assert compared.differ.tolist() == [False, True, True]


def test_a_mask_of_infinities_makes_no_tie() -> None:
    a = torch.tensor([[2.0, 1.0, -torch.inf]])
    b = torch.tensor([[1.0, 2.0, -torch.inf]])
    compared = comparison("argmax")({"y": a}, {"y": b})
    assert compared.differ.tolist() == [True]
    assert compared.tie.tolist() == [False]


@pytest.mark.parametrize("spec", ["argmax", "topk:1"])
def test_rounding_is_a_tie_between_two_runtimes_only(spec: str) -> None:
    """A margin of 2e-6 beside a score of −2: more than 1e-6 of the top value, less than orders of summation do."""
    a = torch.tensor([[1.0, 1.0 - 2e-6, -2.0]])
    b = torch.tensor([[1.0 - 2e-6, 1.0, -2.0]])
    alike, across = comparison(spec)({"y": a}, {"y": b}), comparison(spec, rounding=ROUNDING)({"y": a}, {"y": b})
    assert (alike.differ.tolist(), alike.tie.tolist()) == ([True], [False])
    assert (across.differ.tolist(), across.tie.tolist()) == ([True], [True])


def test_a_tie_at_one_position_hides_no_disagreement_at_another() -> None:
    tie, clear = [1.0, 1.0], [2.0, 1.0]
    a = torch.tensor([[tie, clear]]).movedim(-1, 1)[..., None]  # (rows, classes, positions, 1): a picture
    b = torch.tensor([[tie, clear[::-1]]]).movedim(-1, 1)[..., None]
    for spec in ("argmax", "topk:1"):
        assert comparison(spec)({"y": a}, {"y": b}).tie.tolist() == [False]


def test_two_sides_in_torch_are_one_runtime() -> None:
    scores = torch.tensor([0.5, 0.5 - 1.5e-6, -4.0])
    run = nnfuzz.diff(
        lambda x: x.sum(-1, keepdim=True) * 0 + scores, lambda x: x.sum(-1, keepdim=True) * 0 + scores[[1, 0, 2]],
        torch.rand(3, 2), max_inputs=64, max_seconds=None,
    )  # fmt: skip
    assert run.findings
