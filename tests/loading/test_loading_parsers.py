"""The words of the command line: what is read, what is refused and how it is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.errors import UsageError
from nnfuzz.loading.made import Declared, parse_input
from nnfuzz.loading.options import collect, named, parse_eps, parse_fix, parse_kind, parse_range, parse_shape
from nnfuzz.loading.quantity import choices, count, duration, interval, nonnegative, number, positive, whole

GOOD: list[tuple[Callable[[str], Any], str, Any]] = [
    (duration, "60", 60.0),
    (duration, "60s", 60.0),
    (duration, " 5M ", 300.0),
    (duration, "1.5h", 5400.0),
    (duration, "1h30m", 5400.0),
    (duration, "500ms", 0.5),
    (duration, "2min", 120.0),
    (duration, "0", 0.0),
    (count, "5000", 5000),
    (count, "100k", 100_000),
    (count, "1.5M", 1_500_000),
    (count, "1e6", 1_000_000),
    (count, "100_000", 100_000),
    (count, "9007199254740993", 9007199254740993),
    (number, "-3", -3),
    (number, "1e-3", 0.001),
    (number, "−0.5", -0.5),
    (whole, "0", 0),
    (nonnegative, "0", 0.0),
    (positive, "1e-3", 0.001),
    (interval, "-1:1", (-1, 1)),
    (interval, "-1.5..-0.5", (-1.5, -0.5)),
    (interval, "0:255", (0, 255)),
    (choices, "{1,0,1}", [0, 1]),
    (choices, "{-inf, 0}", [-math.inf, 0]),
    (named, "x=3", ("x", "3")),
    (named, "state.h=0:1", ("state.h", "0:1")),
    (named, "0=1", ("0", "1")),
    (named, "0:1", (None, "0:1")),
    (parse_range, "x=0:1", ("x", (0, 1))),
    (parse_range, "mask={0,1}", ("mask", [0, 1])),
    (parse_eps, "x=0.4", ("x", 0.4)),
    (parse_kind, "y=onehot", ("y", "onehot")),
    (parse_shape, "x=n,3", ("x", ("n", 3))),
    (parse_shape, "x=[2<=n<=64, 3]", ("x", ("2<=n<=64", 3))),
    (parse_fix, "y, z", ["y", "z"]),
    (parse_input, "x=float32[1,3,32,32]:0..1", Declared("x", "float32", (1, 3, 32, 32), (0, 1))),
    (parse_input, "int64[4]:0..100", Declared(None, "int64", (4,), (0, 100))),
    (parse_input, "m=bool[2,2]", Declared("m", "bool", (2, 2), None)),
    (parse_input, "m=uint8[2]:{0,255}", Declared("m", "uint8", (2,), [0, 255])),
    (parse_input, "t=float[]:-1..1", Declared("t", "float32", (), (-1, 1))),
]

BAD: list[tuple[Callable[[str], Any], str, str]] = [
    (duration, "soon", "'soon' is not a duration: write seconds or 90s, 5m, 1.5h, 1h30m"),
    (duration, "-5", "'-5' is not a duration: write seconds or 90s, 5m, 1.5h, 1h30m"),
    (duration, "nan", "'nan' is not a duration: write seconds or 90s, 5m, 1.5h, 1h30m"),
    (count, "1.5", "'1.5' is not a count: it must be whole and at least 1"),
    (count, "0", "'0' is not a count: it must be whole and at least 1"),
    (count, "many", "'many' is not a count: write a whole number such as 5000, 100k, 2M or 1e6"),
    (count, "1e999", "'1e999' is not a count: write a whole number such as 5000, 100k, 2M or 1e6"),
    (number, "nan", "'nan' is not a number"),
    (whole, "-1", "'-1' must be a whole number from 0 up"),
    (nonnegative, "-0.1", "'-0.1' must be a finite number from 0 up"),
    (positive, "0", "'0' must be a finite number above 0"),
    (positive, "inf", "'inf' must be a finite number above 0"),
    (interval, "1", "'1' is not a range: write LO:HI, for instance -1:1, or choices in quotes: '{0,1}'"),
    (interval, ":1", "':1' is not a range: write LO:HI, for instance -1:1"),
    (interval, "2:1", "the range '2:1' is empty: its low end is above its high end"),
    (interval, "0:inf", "the range '0:inf' has no end: give finite bounds"),
    (interval, "a:b", "'a' is not a number"),
    (choices, "{}", "the list of choices {} is empty: write the legal values, for instance {0,1}"),
    (choices, "{0,1", "'{0,1' is not a list of choices: write {0,1}"),
    (named, "x y=1", "'x y' in 'x y=1' is not the name of an input: write name=value"),
    (named, "x=", "'x=' has nothing after '=': write name=value"),
    (parse_kind, "onehot", "'onehot' does not say which input: write name=kind, for instance y=onehot"),
    (parse_shape, "n,3", "'n,3' does not say which input: write name=n,3, a word for each free dimension"),
    (parse_shape, "x=1.5", "'1.5' in the shape 'x=1.5' is neither a length nor a name for a free one"),
    (parse_fix, "a b", "'a b' is not the name of an input"),
    (parse_fix, ",", "--fix names no input"),
    (parse_input, "x", "'x' does not declare an input: write name=float32[1,3,32,32]:0..1"),
    (
        parse_input,
        "x=float31[1]:0..1",
        "'float31' in 'x=float31[1]:0..1' is no dtype: choose one of float16, bfloat16, float32, float64, uint8, int8, "
        "int16, int32, int64, bool",
    ),
    (
        parse_input,
        "x=float32[0]:0..1",
        "'x=float32[0]:0..1' declares an input without elements: every length is at least 1",
    ),
    (
        parse_input,
        "x=float32[3]",
        "'x=float32[3]' does not say which values are legal: add a range such as :0..1, or :{0,1}",
    ),
    (parse_input, "x=int8[3]:0..200", "'x=int8[3]:0..200' goes beyond what int8 holds, -128..127: narrow the range"),
    (parse_input, "x=uint8[3]:-1..2", "'x=uint8[3]:-1..2' goes beyond what uint8 holds, 0..255: narrow the range"),
    (
        parse_input,
        "x=int8[3]:0..0.5",
        "'x=int8[3]:0..0.5' gives bounds that are not whole numbers to an integer input: write whole ones",
    ),
    (
        parse_input,
        "x=float32[99999,99999]:0..1",
        "'x=float32[99999,99999]:0..1' declares 9,999,800,001 elements, too many to draw 16 seeds of: give --seeds",
    ),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_read(parse: Callable[[str], Any], text: str, value: Any) -> None:
    got = parse(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(("parse", "text", "message"), BAD)
def test_refused(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == message


PARSERS = [
    duration, count, number, whole, nonnegative, positive, interval, choices, named, parse_range, parse_eps, parse_kind,
    parse_shape, parse_fix, parse_input,
]  # fmt: skip


@given(st.sampled_from(PARSERS), st.text(st.sampled_from("0123456789.,:=<>{}[]-+enifxmskhb_ \n−é"), max_size=16))
def test_any_text_is_read_or_refused(parse: Callable[[str], Any], text: str) -> None:
    told, value = "", None
    try:
        value = parse(text)
    except UsageError as error:
        told = str(error)
    assert (value is None) == bool(told.strip())
    assert len(told.splitlines()) <= 1
    assert told or parse(text) == value  # no NaN gets through: it would not equal itself


@given(st.integers(0, 10**4), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert duration(f"{hours}h{minutes}m{seconds}s") == 3600 * hours + 60 * minutes + seconds


@given(st.integers(1, 10**15))
def test_counts_are_exact(n: int) -> None:
    assert count(str(n)) == count(f"{n:,}") == n
    assert count(f"{n}k") == 1000 * n


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_ranges_come_back(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert interval(f"{low!r}:{high!r}") == (low, high)


def test_collect() -> None:
    assert collect([], "--eps") is None
    assert collect([(None, 0.4)], "--eps") == 0.4
    assert collect([("x", 0.4), ("y", 1.0)], "--eps") == {"x": 0.4, "y": 1.0}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("x", 1), ("x", 2)], "--eps is given twice for x: give it once"),
        ([(None, 1), (None, 2)], "--eps is given twice for all inputs: give it once"),
        ([(None, 1), ("x", 2)], "--eps is given for all inputs and again for x: name every input, or none"),
    ],
)
def test_collect_refuses(pairs: list, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        collect(pairs, "--eps")
    assert str(caught.value) == message
