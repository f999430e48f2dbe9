"""The cause of an exception: as a key, in which numbers do not count, and as the reader sees it, with those of the
case that is shown."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding

MOST = 160
"""Characters of a message."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def keyed(kind: str, message: str) -> str:
    """One line for all messages that differ only in numbers. kind: the exception's class."""
    return f"{kind}: {shorten(_NUMBER.sub('#', message), MOST, placeholder=' …')}"


def told_cause(finding: Finding) -> str:
    """``finding.cause`` with the numbers of its own message in it, where that is known."""
    kind, message = finding.details.get("exception"), finding.details.get("message")
    if finding.symptom != "exception" or not isinstance(kind, str) or not isinstance(message, str):
        return finding.cause
    key = keyed(kind, message)
    if not finding.cause.startswith(key):  # the message of a text model is told without the text
        return finding.cause
    return f"{kind}: {shorten(message, MOST, placeholder=' …')}{finding.cause.removeprefix(key)}"
