"""Prompts of unusual length: nothing, one id, very long."""

from __future__ import annotations

from nnfuzz.text.mutators.base import Desk, TextMutator, register


@register
class Tiny(TextMutator):
    """Nothing (where that is legal), or one id of the prompt."""

    name, repeats = "tiny", False

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        if not ids or desk.random.random() < 0.2:
            return []
        return [ids[desk.place(ids)]]


@register
class Huge(TextMutator):
    """As long as is allowed: the prompt again and again, another one after it, or one id."""

    name, repeats = "huge", False

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        how = desk.random.randrange(3)
        unit = ids if how == 0 else [*ids, *desk.partner] if how == 1 else [desk.any_id()]
        unit = unit or [desk.any_id()]
        return unit * -(-desk.width // len(unit))
