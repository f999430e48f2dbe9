"""Text from models and files, made harmless for a terminal, which obeys some characters."""

from __future__ import annotations

import re
import sys

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but for tab and line feed, and those that turn the direction of writing."""


def harmless(text: str) -> str:
    """With escapes for what a terminal would obey; lines stay lines."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def harmless_json(text: str) -> str:
    """The same of a JSON document, which stays one, and means what it meant."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: object = "", *, err: bool = False) -> None:
    """A line on stdout, or stderr. Lone surrogates, which no encoding takes, come as escapes too."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(harmless(str(text)).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
