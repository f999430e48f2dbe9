"""Which of the known words a mistyped one may stand for: none rather than one that is far."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

CUTOFF = 0.77
"""Least likeness (``SequenceMatcher.ratio``): a letter too many or too few of four, two exchanged of five."""
AS_NEAR = 0.02
"""Others within this of the nearest are named as well."""
OF_CASE = 0.05
"""What a word in the same case has ahead of one with capitals that nobody typed."""


def nearest(word: str, known: Iterable[str], most: int = 2) -> list[str]:
    """The nearest first, at most ``most``. Dashes in front do not count; a whole part of a word (``time`` of
    ``--max-time``) is near it, and so is a word in which one letter is another."""
    likeness = sorted((-_alike(word, k), k) for k in dict.fromkeys(known))
    return [k for minus, k in likeness if -minus >= CUTOFF and minus <= likeness[0][0] + AS_NEAR][:most]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``: did you mean 'net'?``, or "" where nothing is near."""
    near = nearest(word, known)
    return f": did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _alike(word: str, known: str) -> float:
    a, b = (w.lstrip("-").lower() for w in (word, known))
    if not a or not b:
        return 0.0
    parts_a, parts_b = (w.replace("_", "-").split("-") for w in (a, b))
    part = len(min(a, b, key=len)) > 2 and (a in parts_b or b in parts_a or b.startswith(a) or a.startswith(b))
    slip = len(a) == len(b) > 2 and sum(p != q for p, q in zip(a, b, strict=True)) == 1
    alike = max(SequenceMatcher(None, a, b).ratio(), 0.9 if part or slip else 0.0)
    other_case = a == word.lstrip("-") and b != known.lstrip("-")
    return alike - (OF_CASE if other_case else 0.0)
