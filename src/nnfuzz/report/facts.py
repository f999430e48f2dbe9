"""A dict of facts as aligned lines, nested ones indented."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nnfuzz.report.words import count, short


def lines(facts: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    """``label  value``; empty values are left out."""
    shown = {str(k).replace("_", " "): v for k, v in facts.items() if v is not None and v not in ("", [], {})}
    width = max((len(k) for k, v in shown.items() if not isinstance(v, Mapping)), default=0)
    pad = " " * indent
    for label, value in shown.items():
        if isinstance(value, Mapping):
            yield f"{pad}{label}"
            yield from lines(value, indent + 2)
        else:
            yield f"{pad}{label.ljust(width)}  {said(value)}"


def said(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else short(value)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(v, Mapping) for v in value) else ", ").join(said(v) for v in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {said(v)}" for k, v in value.items())
    return str(value)
