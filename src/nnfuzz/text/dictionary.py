"""Words for the mutators, in libFuzzer's dictionary format: ``"word"`` or ``name="word"`` a line, ``#`` comments,
escapes ``\\\\``, ``\\"`` and ``\\xAB``."""

from __future__ import annotations

import re
from pathlib import Path

from nnfuzz.errors import UsageError
from nnfuzz.text.reading import text_of

_ENTRY = re.compile(r'\s*(?:[^"=\s]+\s*=\s*)?"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_ESCAPE = re.compile(rb'\\(x[0-9a-fA-F]{2}|\\|"|.?)', re.DOTALL)


def load_dictionary(path: str | Path) -> list[str]:
    """The words of a file, in its order. Raises ``UsageError`` that names the line, or for no word at all."""
    advice = 'a dictionary has an entry a line, "word" or name="word"'
    text = text_of(Path(path), "a dictionary", advice, "write other bytes as \\xAB")
    words = parse_dictionary(text, str(path))
    if not words:
        raise UsageError(f"{path} holds no word: {advice}; or leave it out")
    return words


def parse_dictionary(text: str, where: str = "the dictionary") -> list[str]:
    """The words of a dictionary's text."""
    words = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise UsageError(f'{where}, line {number}: {line.strip()[:40]!r} is no entry: write name="word" or "word"')
        words.append(_unescaped(match[1], f"{where}, line {number}"))
    return [w for w in dict.fromkeys(words) if w]


def _unescaped(word: str, where: str) -> str:
    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if len(code) == 3:
            return bytes([int(code[1:], 16)])
        if code in (b"\\", b'"'):
            return code
        raise UsageError(f'{where}: \\{code.decode(errors="replace")} is no escape: use \\\\, \\" or \\xAB')

    try:
        return _ESCAPE.sub(byte, word.encode()).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the bytes are not UTF-8, so they are no word of text") from None
