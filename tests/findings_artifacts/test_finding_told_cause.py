"""The numbers in an exception's message: none in the key, those of the saved case wherever a reader sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import nnfuzz
from nnfuzz.findings.told_cause import keyed
from nnfuzz.report.telling import what


def picky(x: Tensor) -> Tensor:
    worst = float(x.max())
    if worst > 2:
        raise IndexError(f"idx={worst:.6g} must be within the inclusive range [-3,2]")
    return x


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_do_not_count_in_the_key(a: float, b: int) -> None:
    assert keyed("IndexError", f"idx={a} of {b}") == "IndexError: idx=# of #"


def test_the_reader_sees_the_numbers_of_the_saved_case(tmp_path: Path) -> None:
    run = nnfuzz.find_nans(picky, torch.rand(4, 3), ranges=(0.0, 50.0), max_inputs=400, max_seconds=None)
    (finding,) = run.findings
    assert finding.cause.startswith("IndexError: idx=# must be within the inclusive range [#,#]")
    said = f"IndexError: idx={float(finding.inputs['x'].max()):.6g} must be within the inclusive range [-3,2]"
    place = finding.save(tmp_path / finding.id)
    explained = nnfuzz.explain(place, model=picky)
    assert f"cause: {said}" in explained
    assert said in (place / "README.md").read_text().replace("\\", "")
    assert any(f"recorded: exception ({said}" in line for line in nnfuzz.repro(place, model=picky).lines)
    assert "idx=#" not in what(finding)


@pytest.mark.parametrize("message", [None, "of something else 7"])
def test_without_its_message_the_key_is_told(message: str | None) -> None:
    run = nnfuzz.find_nans(picky, torch.rand(4, 3), ranges=(0.0, 50.0), max_inputs=400, max_seconds=None)
    (finding,) = run.findings
    finding.site, finding.details["message"] = None, message
    assert "idx=#" in what(finding)
