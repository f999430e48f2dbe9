"""Characters that few programs are tried with: marks, look-alikes, right-to-left, zero width, emoji, controls."""

from __future__ import annotations

from nnfuzz.text.mutators.base import CharacterMutator, Desk, register

COMBINING = "\u0300\u0301\u0308\u0327\u0335\u034f\u0489\u20dd"
HOMOGLYPHS = {
    "a": "аɑ", "c": "сϲ", "e": "еҽ", "h": "һ", "i": "іı", "j": "ј", "k": "κ", "l": "ӏǀ", "m": "ｍ", "n": "ո",
    "o": "оο0", "p": "рρ", "s": "ѕ", "u": "υ", "v": "ѵν", "x": "хχ", "y": "уγ", "A": "АΑ", "B": "ВΒ", "C": "С",
    "E": "ЕΕ", "H": "НΗ", "I": "ІΙ", "K": "КΚ", "M": "МΜ", "N": "Ν", "O": "ОΟ", "P": "РΡ", "S": "Ѕ", "T": "ТΤ",
    "X": "ХΧ", "Y": "ΥҮ", "Z": "Ζ",
}  # fmt: skip
RIGHT_TO_LEFT = "אבגשםעربسلا\u200f\u202e\u2067\u061c"
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e"
EMOJI = "😀💥🏳️\u200d🌈👩🔬🇩🇪👍🏽♥\ufe0f"
CONTROLS = "\x00\x01\x07\x08\x0b\x0c\x1a\x1b\x7f\x85\u2028\u2029\ufffd\uffff\U0010ffff"
WIDE = "ßŁæĐ中文字龍ｆｕｌｌ½№™ﬁ∞ΩЖ한あア"

REPERTOIRE = "".join(
    dict.fromkeys(COMBINING + "".join(HOMOGLYPHS.values()) + RIGHT_TO_LEFT + ZERO_WIDTH + EMOJI + CONTROLS + WIDE)
)
"""All of them, each once: what an alphabet holds besides the seeds' own characters."""


class _Inserting(CharacterMutator):
    """Puts in characters of a list, those that the alphabet has."""

    characters = ""

    def usable(self) -> bool:
        return super().usable() and bool(self.known(self.characters))

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        at = desk.place(ids, end=True)
        more = desk.random.choices(self.known(self.characters), k=desk.random.choice((1, 1, 2, 4, 16)))
        return ids[:at] + more + ids[at:]


@register
class Combining(_Inserting):
    """Combining marks, singly or stacked."""

    name, characters = "combining", COMBINING


@register
class RightToLeft(_Inserting):
    """Letters and signs that turn the direction of writing."""

    name, characters = "right-to-left", RIGHT_TO_LEFT


@register
class ZeroWidth(_Inserting):
    """Characters that nobody sees."""

    name, characters = "zero-width", ZERO_WIDTH


@register
class Emoji(_Inserting):
    """Pictures, and the joiners and tones that they are made of."""

    name, characters = "emoji", EMOJI


@register
class Controls(_Inserting):
    """Control characters, other line ends, noncharacters."""

    name, characters = "controls", CONTROLS


@register
class Scripts(_Inserting):
    """Letters of other scripts, ligatures, full-width forms."""

    name, characters = "scripts", WIDE


@register
class Homoglyphs(CharacterMutator):
    """Letters become others that look the same."""

    name, repeats = "homoglyphs", False

    def usable(self) -> bool:
        return super().usable() and bool(self.known("".join(HOMOGLYPHS.values())))

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = (0, len(ids)) if desk.random.random() < 0.2 else desk.span(ids)
        for at in range(start, stop):
            likes = self.known(HOMOGLYPHS.get(self.alphabet.alphabet[ids[at]], ""))
            if likes:
                ids[at] = desk.random.choice(likes)
        return ids
