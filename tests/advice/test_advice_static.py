"""Static warnings: each pattern is noticed from one ordinary run, and its stable form is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnfuzz.advice import static_warnings

X = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 0.1


class Gaussian(nn.Module):
    """exp of a layer's output, as variational encoders have it."""

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.head, self.bounded = nn.Linear(3, 3), bounded

    def forward(self, x: Tensor) -> Tensor:
        s = self.head(x)
        return torch.exp(0.5 * (s.clamp(max=10) if self.bounded else s))


def one_pass(x: Tensor) -> Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


WARNED: list[tuple[Callable[..., Any], Tensor, str]] = [
    (lambda x: x / (x.sum(-1, keepdim=True) + 1e-8), X.half(), "the constant 1e-08 is 0 in float16"),
    (lambda x: F.normalize(x, dim=-1), X.half(), "the constant 1e-12 is 0 in float16"),
    (lambda x: x.clamp(1e-7, 1 - 1e-7), X.half(), "the bound 0.9999999 rounds to 1 in float16"),
    (lambda x: x.clamp(1e-3, 1 - 1e-9), X, "rounds to 1 in float32"),
    (lambda x: torch.log(torch.softmax(x, -1)), X, "log_softmax of the logits cannot"),
    (lambda x: x.sigmoid().log(), X, "logsigmoid of the logits cannot"),
    (lambda x: x / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-8), X, "put it inside"),
    (lambda x: x**0.3, X, "power 0.3 of something that can be negative"),
    (lambda x: torch.relu(x) ** 0.3, X, "its gradient is infinite"),
    (Gaussian(False), X, "exp of a linear output that nothing bounds: it overflows above 88.7"),
    (lambda x: torch.minimum(torch.rsqrt(x), torch.tensor(1e6)), X, "minimum comes after rsqrt"),
    (lambda x: x.log().clamp(min=-100), X, "clamp comes after log"),
    (one_pass, X, "E[x^2] - E[x]^2 cancels"),
]
QUIET: list[tuple[Callable[..., Any], Tensor]] = [
    (lambda x: x / (x.sum(-1, keepdim=True) + 1e-3), X.half()),
    (lambda x: x / (x.sum(-1, keepdim=True) + 1e-8), X),
    (lambda x: F.log_softmax(x, -1), X),
    (lambda x: torch.log(torch.softmax(x, -1).clamp(min=1e-12)), X),
    (lambda x: (x.pow(2).sum(-1) + 1e-8).sqrt(), X),
    (lambda x: x.clamp(min=1e-6) ** 0.3, X),
    (lambda x: x**2, X),
    (Gaussian(True), X),
    (lambda x: torch.exp(x - x.amax(-1, keepdim=True)), X),
    (lambda x: torch.rsqrt(x.clamp(min=1e-12)), X),
    (lambda x: (x - x.mean(-1, keepdim=True)).square().mean(-1), X),
    (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2), nn.Softmax(-1)), X),
]


@pytest.mark.parametrize(("fn", "x", "said"), WARNED)
def test_a_dangerous_pattern_is_noticed(fn: Callable[..., Any], x: Tensor, said: str) -> None:
    warnings = static_warnings(fn, x)
    assert any(said in w for w in warnings), warnings
    assert all(w.startswith("test_advice_static.py:") for w in warnings)


@pytest.mark.parametrize(("fn", "x"), QUIET)
def test_the_stable_form_is_not(fn: Callable[..., Any], x: Tensor) -> None:
    assert static_warnings(fn, x) == []


def test_a_place_is_named_once_and_with_its_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Gaussian(False))
    (warning,) = static_warnings(model, X)
    assert "[1]" in warning
    assert warning.startswith("test_advice_static.py:")


def test_candidates_come_in_the_usual_forms() -> None:
    def ratio(a: Tensor, b: Tensor) -> Tensor:
        return torch.log(torch.softmax(a / b, -1))

    for candidate in ((X, X), {"a": X, "b": X}, ((X,), {"b": X})):
        assert len(static_warnings(ratio, candidate)) == 1
