"""The options that speak about inputs, each word checked where it is typed. No torch here.

Names before ``=`` are the model's parameter names, indices, or dotted paths into nested inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.loading.quantity import Number, choices, interval, positive

NAME = r"[A-Za-z_][\w.]*|\d+(?:\.\w+)*"
_FREE = re.compile(r"(?:\d+\s*<=\s*)?[A-Za-z_]\w*(?:\s*>=\s*\d+)?(?:\s*<=\s*\d+)?")
Legal = tuple[Number, Number] | list[Number]


def named(text: str) -> tuple[str | None, str]:
    """``name=value`` → (name, value); a value alone → (None, value)."""
    name, found, value = text.partition("=")
    if not found:
        return None, text.strip()
    if not re.fullmatch(NAME, name.strip()):
        raise UsageError(f"{name.strip()!r} in {text!r} is not the name of an input: write name=value")
    if not value.strip():
        raise UsageError(f"{text!r} has nothing after '=': write name=value")
    return name.strip(), value.strip()


def legal_values(text: str) -> Legal:
    """``LO:HI`` → a pair; ``{a,b}`` → a list of choices."""
    return choices(text) if text.startswith("{") else interval(text)


def parse_range(text: str) -> tuple[str | None, Legal]:
    """One ``--range``: ``LO:HI``, ``name=LO:HI`` or ``name={a,b}``."""
    name, value = named(text)
    return name, legal_values(value)


def parse_eps(text: str) -> tuple[str | None, float]:
    """One ``--eps``: ``R`` or ``name=R``."""
    name, value = named(text)
    return name, positive(value)


def parse_kind(text: str) -> tuple[str, str]:
    """One ``--kind``: ``name=kind``."""
    name, value = named(text)
    if name is None:
        raise UsageError(f"{text!r} does not say which input: write name=kind, for instance y=onehot")
    return name, value


def parse_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """One ``--shape``: ``name=n,3``; a word is a dimension of free length, shared where it is repeated.

    A word may have bounds: ``n<=64``, ``2<=n<=64``, ``n>=0``.
    """
    match = re.fullmatch(rf"\s*({NAME})\s*=(?![=>])(.*)", text)
    name, value = (match[1], match[2].strip()) if match else (None, text)
    if not value:
        raise UsageError(f"{text!r} has nothing after '=': write name=n,3")
    if name is None:
        raise UsageError(f"{text!r} does not say which input: write name=n,3, a word for each free dimension")
    dims: list[int | str] = []
    for word in (w.strip() for w in value.strip("[]()").split(",")):
        if word.isdigit():
            dims.append(int(word))
        elif _FREE.fullmatch(word):
            dims.append(word)
        elif word:
            raise UsageError(f"{word!r} in the shape {text!r} is neither a length nor a name for a free one")
    return name, tuple(dims)


def parse_fix(text: str) -> list[str]:
    """One ``--fix``: a name, or several with commas."""
    names = [w.strip() for w in text.split(",") if w.strip()]
    for name in names:
        if not re.fullmatch(NAME, name):
            raise UsageError(f"{name!r} is not the name of an input")
    if not names:
        raise UsageError("--fix names no input")
    return names


def collect(pairs: Iterable[tuple[str | None, Any]], option: str) -> Any:
    """All uses of one repeatable option: None, one bare value for every input, or a dict by name."""
    found: dict[str | None, Any] = {}
    for name, value in pairs:
        if name in found:
            whose = f"for {name}" if name else "for all inputs"
            raise UsageError(f"{option} is given twice {whose}: give it once")
        found[name] = value
    if None in found and len(found) > 1:
        others = ", ".join(n for n in found if n)
        raise UsageError(f"{option} is given for all inputs and again for {others}: name every input, or none")
    return found.get(None, found or None)
