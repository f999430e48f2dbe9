"""Edits of runs of ids: cut, copied, repeated, turned round, exchanged between prompts."""

from __future__ import annotations

from nnfuzz.text.mutators.base import Desk, TextMutator, register


@register
class Duplicate(TextMutator):
    """A run is copied to some place."""

    name = "duplicate"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = desk.span(ids)
        at = desk.place(ids, end=True)
        return ids[:at] + ids[start:stop] + ids[at:]


@register
class Repeat(TextMutator):
    """A run comes several times in a row."""

    name, repeats = "repeat", False

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = desk.span(ids, longest=16)
        return ids[:start] + ids[start:stop] * desk.random.choice((2, 2, 3, 4, 8)) + ids[stop:]


@register
class Cut(TextMutator):
    """A run goes, or everything before or after it."""

    name = "cut"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = desk.span(ids)
        if desk.random.random() < 0.5:
            return ids[:start] + ids[stop:]
        return ids[start:] if desk.random.random() < 0.5 else ids[:stop]


@register
class Move(TextMutator):
    """A run goes to another place."""

    name = "move"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = desk.span(ids)
        rest = ids[:start] + ids[stop:]
        at = desk.place(rest, end=True)
        return rest[:at] + ids[start:stop] + rest[at:]


@register
class Splice(TextMutator):
    """The beginning of one prompt and the end of another, or a run of another put in."""

    name, repeats = "splice", False

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        other = desk.partner
        if desk.random.random() < 0.5:
            return ids[: desk.place(ids, end=True)] + other[desk.place(other, end=True) :]
        start, stop = desk.span(other)
        at = desk.place(ids, end=True)
        return ids[:at] + other[start:stop] + ids[at + (stop - start) * desk.random.randrange(2) :]
