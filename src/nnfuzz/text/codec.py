"""Prompts as numbers: what an id stands for, and which ids are ordinary.

Every prompt of a run is a row of ids, filled up with ``PAD``. Ids are indices into an alphabet (characters) or into a
tokenizer's vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError

PAD = -1
SURROGATES = range(0xD800, 0xE000)
ASCII_END = 128


class Codec(ABC):
    """Ids ↔ text.

    Attributes:
        size: ids are 0 … size − 1.
        unit: what one id is, in the user's words ("character", "token").
        everyday: ids that edits draw from when they want any one: what the seeds hold.
        legal: ids that a prompt may hold, sorted; None for all.
    """

    unit = "character"

    def __init__(self, size: int, legal: Sequence[int] | None = None):
        self.size = size
        self.legal = None if legal is None else sorted(legal)
        self.everyday: list[int] = list(range(size)) if legal is None else list(self.legal or [])
        self._rank: dict[int, int] = {}

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Raises ``UsageError`` for text that has no ids."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id by itself."""
        return [self.decode([i]) for i in ids]

    def learn(self, prompts: Iterable[Sequence[int]]) -> None:
        """Which ids the seeds hold, and how often: the commoner, the more ordinary."""
        counts = Counter(i for ids in prompts for i in ids)
        if counts:
            self.everyday = [i for i, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]
            self._rank = {i: r for r, i in enumerate(self.everyday)}

    def rank(self, id_: int) -> int:
        """0 for the most ordinary id; ids that no seed holds come last, in their own order."""
        return self._rank.get(id_, len(self._rank) + id_)


class Characters(Codec):
    """One id a character of ``alphabet`` (all different)."""

    def __init__(self, alphabet: str, legal: Sequence[int] | None = None):
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise UsageError("an alphabet is a text of different characters, at least one: this one is not")
        super().__init__(len(alphabet), legal)
        self.alphabet = alphabet
        self._of = {c: i for i, c in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        try:
            return [self._of[c] for c in text]
        except KeyError as missing:
            raise UsageError(
                f"the character {missing.args[0]!r} is not in the model's alphabet of {self.size} characters"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([self.alphabet[i] for i in ids])

    def __contains__(self, character: str) -> bool:
        return character in self._of


class CodePoints(Codec):
    """Ids are Unicode code points: the codec of what a black box answers."""

    def __init__(self) -> None:
        super().__init__(0x110000, ())

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Tokens(Codec):
    """Ids of a tokenizer.

    Args:
        tokenizer: with ``encode(text, add_special_tokens=False)``, ``decode`` and ``all_special_ids``.
        size: of the model's vocabulary.
        allow_special: whether special ids may stand in a prompt.
    """

    unit = "token"

    def __init__(self, tokenizer: Any, size: int, *, allow_special: bool = False):
        special = set() if allow_special else {int(i) for i in tokenizer.all_special_ids}
        known = min(size, len(tokenizer))
        super().__init__(size, [i for i in range(known) if i not in special])
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class Ids(Codec):
    """Ids that nobody can read: a vocabulary's size is all that is known. Their text is their numbers."""

    unit = "token"

    def __init__(self, size: int, special: Iterable[int] = ()):
        kept = set(special)
        super().__init__(size, [i for i in range(size) if i not in kept])

    def encode(self, text: str) -> list[int]:
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            raise UsageError(
                f"{text[:40]!r} is text, but this model has no tokenizer: give prompts as ids, numbers with spaces"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [f"{i} " for i in ids]


def pack(prompts: Sequence[Sequence[int]], width: int) -> Tensor:
    """int32 ``(len(prompts), width)``, filled up with ``PAD``; longer prompts are cut."""
    packed = torch.full((len(prompts), width), PAD, dtype=torch.int32)
    for row, ids in enumerate(prompts):
        cut = ids[:width]
        if len(cut):
            packed[row, : len(cut)] = torch.as_tensor(cut, dtype=torch.int32)
    return packed


def unpack(packed: Tensor) -> list[list[int]]:
    """The ids of every row before its first ``PAD``."""
    lengths = (packed != PAD).long().cumprod(1).sum(1).tolist()
    return [row[:n] for row, n in zip(packed.tolist(), lengths, strict=True)]


def lone_surrogate(text: str) -> int | None:
    """The place of the first character that no encoding can hold; None when there is none."""
    if text.isascii():
        return None
    return next((i for i, c in enumerate(text) if ord(c) in SURROGATES), None)
