"""Small courtesies before parsing: ``--range LO HI`` as two words, and ``--debug`` wherever it stands."""

from __future__ import annotations

from collections.abc import Sequence


def rewritten(argv: Sequence[str]) -> tuple[list[str], bool]:
    """``(the words to parse, whether --debug was among them)``."""
    words: list[str] = []
    debug, rest = False, list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*words, word, *rest], debug
        if word == "--debug":
            debug = True
        elif word == "--range" and len(rest) >= 2 and _is_number(rest[0]) and _is_number(rest[1]):
            words += [word, f"{rest.pop(0)}:{rest.pop(0)}"]
        else:
            words.append(word)
    return words, debug


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
