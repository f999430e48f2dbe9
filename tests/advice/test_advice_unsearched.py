"""What reassures says that something was looked at: no search is claimed where none could be run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nnfuzz
from nnfuzz.advice.verify import Case, Found, try_search

QUICK: dict[str, Any] = {"max_inputs": 400, "max_seconds": None, "gradients": False, "phase": "forward"}


def two_faults(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second output is infinite on every seed as well."""
    return torch.log(x - 0.5), (x * 1e3).exp()


def fails_on_seeds(x: Tensor) -> Tensor:
    return torch.sqrt(x - 5.0)


@pytest.mark.parametrize(("found", "said"), [
    (Found((), 0), "not searched again (no input could be run in the time)"),
    (Found((None,), 0), "not searched again (repaired, it still fails elsewhere on the seed)"),
    (Found((), 7), "7 inputs searched again: nothing more at that site"),
])  # fmt: skip
def test_a_search_of_nothing_is_called_none(found: Found, said: str) -> None:
    case = Case(fails_on_seeds, (torch.zeros(1, 3),), {}, search=lambda _: found)
    check = try_search(case, [])
    assert check is not None
    assert check.text == said


@pytest.mark.parametrize("model", [two_faults, fails_on_seeds])
def test_explain_claims_no_search_of_no_inputs(model: Any, tmp_path: Path) -> None:
    run = nnfuzz.find_nans(model, 1 + torch.rand(4, 3), ranges=(0.0, 3.0), **QUICK)
    assert run.findings
    for finding in run.findings:
        said = nnfuzz.explain(finding.save(tmp_path / finding.id), model=model)
        assert re.search(r"(?<!\d)0 inputs", said) is None
