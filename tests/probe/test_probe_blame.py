"""Which operand, and which element of it, the chain follows: the one at fault, not the largest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.probe import first_bad

ONES, ZEROS = torch.ones(3), torch.zeros(3)


def x(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float32)


def last(fn: Callable[..., Tensor], *args: Tensor) -> str:
    bad = first_bad(fn, args)
    assert bad is not None
    return str(bad.chain[-1])


Case = tuple[Callable[..., Tensor], tuple[Tensor, ...], str, str]

DOMAINS: dict[str, Case] = {
    "a negative base": (torch.pow, (x(2, -1e-6, 9), torch.tensor([0.5])), "input 0[0, 1]", "fractional exponent 0.5"),
    "a base of zero": (torch.pow, (x(2, 0, 9), torch.tensor([-3.0])), "input 0[0, 1]", "negative exponent -3"),
    "a negative variance": (
        lambda a, v, s: F.batch_norm(a, ZEROS, v, s, ZEROS),
        (x(5, 6, 7), torch.tensor([1.0, -1.0, 1.0]), 9 * ONES), "input 1[1]", "variance -1 plus epsilon 1e-05",
    ),
    "a row of equal values": (
        lambda a: F.layer_norm(a, (3,), 9 * ONES, ZEROS, eps=0.0),
        (torch.tensor([[1.0, 2, 3], [2, 2, 2]]),), "input 0[1, 0]", "equal values throughout the row",
    ),
    "a group of equal values": (
        lambda a: F.group_norm(a, 2, eps=0.0),
        (torch.tensor([[1.0, 2, 5, 5]]).reshape(1, 4, 1),), "input 0[0, 2, 0]", "equal values throughout the group",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DOMAINS)
def test_the_operand_that_left_its_domain_is_followed(case: str) -> None:
    fn, args, place, why = DOMAINS[case]
    said = last(fn, *args)
    assert place in said, said
    assert why in said, said


def image() -> Tensor:
    made = torch.linspace(1, 9, 16).reshape(1, 1, 4, 4)
    made[0, 0, 2, 1] = -0.25
    return made


def peaks() -> Tensor:
    """Beside a peak a cubic goes below zero; the higher one is far from the first place where it does."""
    made = torch.full((1, 1, 8, 8), 0.001)
    made[0, 0, 1, 1], made[0, 0, 7, 7] = 9, 20
    return made


MIXES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "nearest": (lambda a: F.interpolate(a, scale_factor=2.0).log(), image(), "[0, 0, 2, 1]"),
    "gather": (lambda a: a.gather(1, torch.tensor([[2, 0, 1]])).log(), x(3, 9, -1), "[0, 2]"),
    "index": (lambda a: a[:, torch.tensor([0, 2])].log(), x(3, 9, -1), "[0, 2]"),
    "pooling": (lambda a: (-F.max_pool2d(-a, 2)).log(), image(), "[0, 0, 2, 1]"),
    "a convolution": (lambda a: F.conv1d(a, torch.tensor([[[1.0, -1.0]]])).log(), x(3, 2, 4, 90)[None], "[0, 0, 2]"),
    "a product of matrices": (lambda a: (a @ torch.tensor([[0.1], [1.0], [-9.0]])).log(), x(50, 1, 2), "[0, 2]"),
    "cubic": (lambda a: F.interpolate(a, scale_factor=2.0, mode="bicubic").log(), peaks(), "[0, 0, 1, 1]"),
}


@pytest.mark.parametrize("case", MIXES)
def test_the_element_that_counts_is_followed(case: str) -> None:
    fn, given, place = MIXES[case]
    bad = first_bad(fn, (given,))
    assert bad is not None
    said = str(bad.chain[-1])
    assert f"input 0{place}" in said, said
