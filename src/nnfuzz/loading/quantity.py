"""Numbers as people type them: durations, counts, ranges. No torch here."""

from __future__ import annotations

import math
import re

from nnfuzz.errors import UsageError

Number = int | float

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|min|[smhd])")


def duration(text: str) -> float:
    """Seconds: ``90``, ``60s``, ``5m``, ``1.5h``, ``1h30m``, ``500ms``; 0 means without end."""
    word = text.strip().lower()
    plain = _float(word)
    if plain is not None and math.isfinite(plain) and plain >= 0:
        return plain
    parts = _DURATION_PART.findall(word)
    if not parts or "".join(n + u for n, u in parts) != word:
        raise UsageError(f"{text!r} is not a duration: write seconds or 90s, 5m, 1.5h, 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def count(text: str) -> int:
    """A whole number of at least 1: ``5000``, ``100k``, ``2M``, ``1e6``, ``100_000``."""
    word = text.strip().lower().replace("_", "").replace(",", "")
    match = re.fullmatch(r"([\d.]+(?:e\+?\d+)?)([kmgb]?)", word)
    value = _float(match[1]) if match else None
    if match is None or value is None or not math.isfinite(value):
        raise UsageError(f"{text!r} is not a count: write a whole number such as 5000, 100k, 2M or 1e6")
    exact = int(match[1]) if match[1].isdigit() else value
    whole = exact * _TIMES[match[2]]
    if whole != int(whole) or whole < 1:
        raise UsageError(f"{text!r} is not a count: it must be whole and at least 1")
    return int(whole)


def number(text: str) -> Number:
    """An int when written as one, else a float (``1e-3``, ``.5``, ``-inf``); NaN is refused."""
    word = text.strip().replace("−", "-")
    if re.fullmatch(r"[+-]?\d+", word):
        return int(word)
    value = _float(word)
    if value is None or math.isnan(value):
        raise UsageError(f"{text.strip()!r} is not a number")
    return value


def whole(text: str) -> int:
    """A whole number from 0 up, such as a seed."""
    word = text.strip()
    if not word.isascii() or not word.isdigit():
        raise UsageError(f"{word!r} must be a whole number from 0 up")
    return int(word)


def nonnegative(text: str) -> float:
    """A finite number from 0 up."""
    value = float(number(text))
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{text.strip()!r} must be a finite number from 0 up")
    return value


def positive(text: str) -> float:
    """A finite number above zero."""
    value = float(number(text))
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{text.strip()!r} must be a finite number above 0")
    return value


def interval(text: str) -> tuple[Number, Number]:
    """``LO:HI`` or ``LO..HI``, both ends finite and in order."""
    low, found, high = text.partition("..") if ".." in text else text.partition(":")
    if not found or not low.strip() or not high.strip():
        # A shell makes two words of x={0,1}, of which the first arrives here.
        lone = not found and low.strip().lstrip("+-").replace(".", "", 1).isdigit()
        choices = ", or choices in quotes: '{0,1}'" if lone else ""
        raise UsageError(f"{text!r} is not a range: write LO:HI, for instance -1:1{choices}")
    ends = number(low), number(high)
    if not all(math.isfinite(e) for e in ends):
        raise UsageError(f"the range {text!r} has no end: give finite bounds")
    if ends[0] > ends[1]:
        raise UsageError(f"the range {text!r} is empty: its low end is above its high end")
    return ends


def choices(text: str) -> list[Number]:
    """``{0,1,4}``: the legal values, sorted, each once; infinities are allowed (attention masks)."""
    if not (text.startswith("{") and text.endswith("}")):
        raise UsageError(f"{text!r} is not a list of choices: write {{0,1}}")
    words = [w for w in text[1:-1].split(",") if w.strip()]
    if not words:
        raise UsageError("the list of choices {} is empty: write the legal values, for instance {0,1}")
    return sorted({number(w) for w in words})


def _float(word: str) -> float | None:
    try:
        return float(word) if "_" not in word else None
    except ValueError:
        return None
