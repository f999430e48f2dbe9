"""Whole words: of the user's dictionary, of other prompts."""

from __future__ import annotations

from nnfuzz.text.mutators.base import Desk, TextMutator, register


@register
class Dictionary(TextMutator):
    """A word of ``--dict`` comes in, over what stands there or between."""

    name = "dictionary"

    def usable(self) -> bool:
        return bool(self.words)

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        word = desk.random.choice(list(desk.words))
        at = desk.place(ids, end=True)
        return ids[:at] + word + ids[at + len(word) * desk.random.randrange(2) :]
