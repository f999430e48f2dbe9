"""TensorFuzz's three edits (delete, insert, substitute one at random), and two neighbours that change places."""

from __future__ import annotations

from nnfuzz.text.mutators.base import Desk, TextMutator, register


@register
class Delete(TextMutator):
    """One id goes."""

    name = "delete"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        if ids:
            del ids[desk.place(ids)]
        return ids


@register
class Insert(TextMutator):
    """One comes in, anywhere."""

    name = "insert"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        ids.insert(desk.place(ids, end=True), desk.any_id())
        return ids


@register
class Substitute(TextMutator):
    """One becomes another."""

    name = "substitute"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        if ids:
            ids[desk.place(ids)] = desk.any_id()
        return ids


@register
class Swap(TextMutator):
    """Two neighbours change places."""

    name = "swap"

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        if len(ids) > 1:
            at = desk.place(ids[1:])
            ids[at], ids[at + 1] = ids[at + 1], ids[at]
        return ids
