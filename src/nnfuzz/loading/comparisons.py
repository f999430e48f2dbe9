"""``--compare``: a word with its numbers, checked where it is typed, or the name of a function. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable

from nnfuzz.errors import UsageError

OWN_OBJECTIVES = ("dead-gradient",)
"""Words for ``--objective`` that name no function."""
_FILES = (".py",)


def is_function(text: str) -> bool:
    """Whether the text names a function, ``pkg.mod:fn`` or ``file.py:fn``, and no comparison of nnfuzz's own."""
    head, colon, rest = text.partition(":")
    if head in _RULES or not colon:
        return False
    return head.endswith(_FILES) or "." in head or "/" in head or rest.replace(".", "_").isidentifier()


def check_comparison(text: str) -> str:
    """The text as it is. Raises ``UsageError`` when the numbers after one of nnfuzz's own words do not fit it."""
    name, _, rest = text.partition(":")
    rule = _RULES.get(name)
    if rule is not None and rest.strip():
        fits, takes = rule
        try:
            good = fits([float(v) for v in rest.split(",")])
        except (ValueError, OverflowError):
            good = False
        if not good:
            raise UsageError(f"the comparison {text!r} does not fit: {name} takes {takes}")
    return text


Rule = tuple[Callable[[list[float]], bool], str]


def _whole(v: float) -> bool:
    return math.isfinite(v) and v == int(v)


_RULES: dict[str, Rule] = {
    "argmax": (lambda v: len(v) == 1 and _whole(v[0]), "the axis of the classes, a whole number: argmax:1"),
    "topk": (lambda v: len(v) == 1 and _whole(v[0]) and v[0] >= 1, "how many classes, at least 1: topk:5"),
    "threshold": (lambda v: len(v) == 1 and math.isfinite(v[0]), "a finite number: threshold:0.5"),
    "allclose": (
        lambda v: len(v) <= 2 and all(math.isfinite(t) and t >= 0 for t in v),
        "an absolute and a relative tolerance from 0 up: allclose:1e-3,1e-2",
    ),
    "cosine": (lambda v: len(v) == 1 and -1 <= v[0] <= 1, "the least similarity, from -1 to 1: cosine:0.99"),
    "ctc": (lambda v: len(v) == 1 and _whole(v[0]), "the class of the blank, a whole number: ctc:0"),
    "detection": (
        lambda v: len(v) <= 2 and math.isfinite(v[0]) and 0 < v[-1] <= 1,
        "the least score and the least overlap, in (0, 1]: detection:0.5,0.5",
    ),
}
"""By word: whether numbers fit it, and what it takes."""
