"""When a stretch of text is a word: both brought into one form, and the disguises that are seen through."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

LOOKALIKES = {
    "a": "a4@", "b": "b8", "e": "e3", "g": "g9", "i": "i1!|", "l": "l1|", "o": "o0", "s": "s5$", "t": "t7+",
}  # fmt: skip
LONG = 4
"""From this length on letters may stand apart (b-a-d): in shorter words that would be chance."""
INVISIBLE = {"\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad"}
_SELECTORS = {*map(chr, (*range(0x180B, 0x180E), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))}
"""They choose how a character is drawn, and are no part of a word."""


@dataclass
class Formed:
    """A text without its marks, in one form: decomposed (NFKD), case-folded, without invisible characters.

    Attributes:
        bare: the letters. marks: those on each, in canonical order. places: of each in the text, with the place after.
    """

    bare: str
    marks: Sequence[str]
    places: Sequence[tuple[int, int]]


def bare(text: str) -> str:
    """``formed(text).bare``, at once where a text is ASCII, as most are."""
    return text.lower() if text.isascii() else formed(text).bare


@lru_cache(1 << 16)
def _decomposed(character: str) -> str:
    return unicodedata.normalize("NFKD", character)


def formed(text: str) -> Formed:
    """Marks before any letter are left out."""
    if text.isascii():
        return Formed(text.lower(), [""] * len(text), [(i, i + 1) for i in range(len(text))])
    letters: list[str] = []
    marks: list[list[str]] = []
    places: list[tuple[int, int]] = []
    for place, character in enumerate(text):
        if character in INVISIBLE:
            continue
        for c in _decomposed(character):
            if not unicodedata.combining(c):
                letters.append(c)
                marks.append([])
                places.append((place, place + 1))
            elif letters:
                marks[-1].append(c)
                places[-1] = (places[-1][0], place + 1)
    plain, kept, there = [], [], []
    for letter, own, at in zip(letters, marks, places, strict=True):
        folded = letter.casefold()
        plain.append(folded)
        there += [at] * len(folded)
        ordered = "".join(sorted(own, key=unicodedata.combining))
        kept += [""] * (len(folded) - 1) + [ordered]
    return Formed("".join(plain), kept, there)


@dataclass
class Spelling:
    """A word, and where it stands in texts: its letters with at least its own marks, or disguised.

    Attributes:
        word: as it is told. pattern: a regular expression for its bare letters in bare text.
    """

    word: str

    def __post_init__(self) -> None:
        seen = formed(" ".join(self.word.split()))
        self.bare, self.marks = seen.bare, seen.marks
        letters = [
            r"\s+" if c == " " else f"[{re.escape(LOOKALIKES[c])}]" if c in LOOKALIKES else re.escape(c)
            for c in self.bare
        ]
        whole = "".join(letters)
        if len(self.bare) >= LONG and " " not in self.bare:
            whole += "|" + r"[^\w\s]".join(letters) + "|" + "_".join(letters)
        self.pattern = rf"(?<!\w)(?:{whole})(?!\w)"
        self._compiled = re.compile(self.pattern)

    def spans(self, text: Formed) -> Iterator[tuple[int, int]]:
        """Where it stands, in characters of the text."""
        for m in self._compiled.finditer(text.bare):
            around = text.bare[m.start() - 1 : m.start()] if m.start() else "", text.bare[m.end() : m.end() + 1]
            if not any(map(_is_vowel_sign, around)) and self._marked(text, m.start(), m.end()):
                yield text.places[m.start()][0], text.places[m.end() - 1][1]

    def _marked(self, text: Formed, start: int, stop: int) -> bool:
        """Whether its own marks are on its letters."""
        if not any(self.marks):
            return True
        if " " in self.bare:
            at = [i for i in range(start, stop) if not text.bare[i].isspace()]
            own = [m for c, m in zip(self.bare, self.marks, strict=True) if c != " "]
        else:
            at, own = list(range(start, stop, 2 if stop - start > len(self.bare) else 1)), list(self.marks)
        return all(_holds(text.marks[i], m) for i, m in zip(at, own, strict=True))


def spellings(words: Sequence[str]) -> list[Spelling]:
    """One for each word that is another; what holds no letter is none. Composed (NFC), and case-folded where that
    leaves a word what it is."""
    found: dict[tuple[str, ...], Spelling] = {}
    for given in words:
        composed = unicodedata.normalize("NFC", " ".join(given.split()))
        folded = unicodedata.normalize("NFC", composed.casefold())
        word = folded if _key(folded) == _key(composed) else composed
        if bare(word).strip():
            found.setdefault(_key(word), Spelling(word))
    return list(found.values())


def start_of_a_word(text: str, start: str) -> int | None:
    """The first place where a word begins so."""
    at = text.find(start)
    while at >= 0:
        if at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_"):
            return at
        at = text.find(start, at + 1)
    return None


def is_letter(character: str, letter: str) -> bool:
    """Whether a character stands for one of a word: the same in form, or one that looks like it."""
    if unicodedata.combining(letter[0]):
        return character == letter
    mine, wanted = formed(character), formed(letter)
    if any(wanted.marks) or len(wanted.bare) != 1:
        return bool(mine.bare) and (mine.bare, mine.marks) == (wanted.bare, wanted.marks)
    return len(mine.bare) == 1 and mine.bare in LOOKALIKES.get(wanted.bare, wanted.bare)


def is_inside(character: str) -> bool:
    """Whether a word goes on over it."""
    return bool(unicodedata.combining(character)) or any(
        c.isalnum() or c == "_" or _is_vowel_sign(c) for c in bare(character)
    )


def _key(word: str) -> tuple[str, ...]:
    seen = formed(word)
    return seen.bare, *seen.marks


def _holds(marks: str, wanted: str) -> bool:
    """Whether these marks are among those, in this order."""
    rest = iter(marks)
    return all(m in rest for m in wanted)


def _is_vowel_sign(c: str) -> bool:
    """Signs that are part of a word though they are no letters, as those of Hindi vowels."""
    return not c.isascii() and c not in _SELECTORS and unicodedata.category(c) in ("Mn", "Mc")
