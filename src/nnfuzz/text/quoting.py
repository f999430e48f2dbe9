"""Messages that quote their prompt: they differ from prompt to prompt, though it is the same failure.

Such an error is known by its type and by the user's line that it came by. A short prompt may stand in a message by
chance, or be missed in one, so what was once seen to quote is taken to do so always.
"""

from __future__ import annotations

import ast
import re
import traceback
from pathlib import Path

from nnfuzz.findings.confirm import exception_cause
from nnfuzz.probe.sites import owner
from nnfuzz.text.telling import QUOTES

CERTAIN = 6
"""A part of a prompt that is so long hardly stands in a message by chance."""
MOST = 2000
"""Characters of a message that are looked at."""
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


class Quoting:
    """Which errors quote their prompt, as far as is known. ``causes``: of findings that are there already."""

    def __init__(self) -> None:
        self.causes: set[str] = set()
        self._places: set[str] = set()

    def plain(self, error: Exception, prompt: str) -> str | None:
        """What stands for the message, equal for all prompts; None where the message can stand for itself."""
        frames = traceback.extract_tb(error.__traceback__)
        if error.__cause__ is not None:
            frames += traceback.extract_tb(error.__cause__.__traceback__)
        users = [f for f in frames if owner(f.filename) == "user"]
        if not users:
            return None
        told = f"{QUOTES}, in {Path(users[-1].filename).name}: {users[-1].line}"
        place = f"{type(error).__name__}: {told}"
        if place not in self._places and not self._known(error, told):
            said = [piece[1:-1] for f in frames for piece in _LITERAL.findall(f.line or "")]
            if not quotes(str(error)[:MOST], prompt, said, own=frames[-1] is users[-1]):
                return None
        self._places.add(place)
        return told

    def _known(self, error: Exception, told: str) -> bool:
        if not self.causes:
            return False
        text = exception_cause(Exception(told)).text.partition(": ")[2]
        return f"{type(error).__name__}: {text}" in self.causes


def quotes(message: str, prompt: str, said: list[str], *, own: bool) -> bool:
    """Whether the message holds the prompt or a part of it.

    Args:
        said: texts of the lines it came by: what stands there is no quotation. own: raised on the user's own line.
    """
    for literal in _LITERAL.findall(message):
        content = _content(literal)
        if content in prompt and (content or not prompt) and not any(literal in s for s in said):
            return True
    whole = re.compile(rf"(?<!\w){re.escape(prompt)}(?!\w)") if prompt.strip() else None
    if own and whole and whole.search(message) and not any(s != prompt and whole.search(s) for s in said):
        return True
    pieces = (message[at : at + CERTAIN] for at in range(len(message) - CERTAIN + 1))
    return any(piece in prompt and not any(piece in s for s in said) for piece in pieces)


def _content(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        return literal[1:-1]
