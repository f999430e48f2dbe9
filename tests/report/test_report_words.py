"""Numbers in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.loading.quantity import duration
from nnfuzz.report import words
from nnfuzz.report.facts import lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.41, "0.4 s"),
        (4.0, "4 s"),
        (12.04, "12 s"),
        (60, "60 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
    ],
)
def test_lasting(value: float, text: str) -> None:
    assert words.lasting(value) == text


@pytest.mark.parametrize(("value", "text"), [(12, "0:12"), (65, "1:05"), (3909, "1:05:09")])
def test_clock(value: float, text: str) -> None:
    assert words.clock(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (71200, "71,200"), (12_300_000, "12.3 M"), (3e9, "3.00 G")])
def test_count(value: float, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.71, "71 %"), (0.042, "4.2 %"), (0.0004, "under 0.1 %"), (0, "0 %")])
def test_percent(value: float, text: str) -> None:
    assert words.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.3123, "0.312"), (3.4e38, "3.4e+38"), (float("inf"), "∞"), (-float("inf"), "-∞"), (True, "true")],
)
def test_short(value: float, text: str) -> None:
    assert words.short(value) == text


@given(st.integers(1, 10**6))
def test_option_time_is_what_the_parser_reads(seconds: int) -> None:
    assert duration(words.option_time(seconds)) == seconds


@given(st.lists(st.floats(0, 1e9), max_size=40))
def test_bars_fit(values: list[float]) -> None:
    assert len(words.bars(values)) <= 12


def test_facts() -> None:
    told = lines({"entries": 1234, "empty": [], "per_seed": {"0": 20}, "best": [{"id": 1}, {"id": 2}], "on": True})
    assert list(told) == ["entries  1,234", "per seed", "  0  20", "best     id 1; id 2", "on       yes"]
