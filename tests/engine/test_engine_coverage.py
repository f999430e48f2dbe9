"""Proof 5: coverage guidance does something."""

from __future__ import annotations

from planted import BUDGET, search


def test_coverage_finds_what_lies_behind_three_steps() -> None:
    found = {c: sum(bool(search(seed, c, BUDGET).findings) for seed in range(10)) for c in ("auto", "none")}
    assert found["auto"] >= 9
    assert found["none"] <= 1
