"""The cause of an exception: as a key, in which numbers do not count, and as the reader sees it, with those of the
case that is shown."""

from __future__ import annotations

import math
import re
from textwrap import shorten
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding

MOST = 160
"""Characters of a message."""
SIDES_OF_ROWS = {"alone": ("in its batch", "alone"), "training": ("with eval()", "with train()")}
"""Details of a row that differs, by the other way in which it was run: what it gave together, and what that way."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def keyed(kind: str, message: str) -> str:
    """One line for all messages that differ only in numbers. kind: the exception's class."""
    return f"{kind}: {shorten(_NUMBER.sub('#', message), MOST, placeholder=' …')}"


def told_cause(finding: Finding) -> str:
    """``finding.cause`` with the numbers of its own message in it, where that is known."""
    if finding.symptom == "rows":
        return f"{finding.cause}{_told_rows(finding)}"
    kind, message = finding.details.get("exception"), finding.details.get("message")
    if finding.symptom != "exception" or not isinstance(kind, str) or not isinstance(message, str):
        return finding.cause
    key = keyed(kind, message)
    if not finding.cause.startswith(key):  # the message of a text model is told without the text
        return finding.cause
    return f"{kind}: {shorten(message, MOST, placeholder=' …')}{finding.cause.removeprefix(key)}"


def _told_rows(finding: Finding) -> str:
    """Both values of a row that differs, where no multiple of the tolerance says how far: NaN, Inf, labels."""
    for one, other in SIDES_OF_ROWS.values():
        values = [finding.details.get(name) for name in (one, other)]
        if None in values or all(isinstance(v, float) and math.isfinite(v) for v in values):
            continue
        return f": {_number(values[0])} {one}, {_number(values[1])} {other}"
    return ""


def _number(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "NaN" if math.isnan(value) else f"{value:.6g}" if math.isfinite(value) else f"{value:+}"
