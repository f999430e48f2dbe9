"""Equal scores: the label is the first of them, as argmax has it everywhere."""

from __future__ import annotations

import torch

from nnfuzz.objectives.compare import comparison


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
