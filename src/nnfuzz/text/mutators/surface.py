"""How a text looks: case, white space and line breaks, digits."""

from __future__ import annotations

from nnfuzz.text.mutators.base import CharacterMutator, Desk, register

SPACES = " \n\t\r\v\f"


@register
class Case(CharacterMutator):
    """The case of one letter, a run, or everything."""

    name, repeats = "case", False

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        start, stop = (0, len(ids)) if desk.random.random() < 0.2 else desk.span(ids)
        change = desk.random.choice((str.upper, str.lower, str.swapcase))
        for at in range(start, stop):
            changed = change(self.alphabet.alphabet[ids[at]])
            if changed in self.alphabet:
                ids[at] = self.alphabet.encode(changed)[0]
        return ids


@register
class Whitespace(CharacterMutator):
    """Spaces and line breaks come in, one or many, or go."""

    name = "whitespace"

    def usable(self) -> bool:
        return super().usable() and bool(self.known(SPACES))

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        known = self.known(SPACES)
        there = [i for i, id_ in enumerate(ids) if id_ in known]
        if there and desk.random.random() < 0.3:
            del ids[desk.random.choice(there)]
            return ids
        at = desk.random.choice(there) if there and desk.random.random() < 0.5 else desk.place(ids, end=True)
        count = desk.random.choice((1, 1, 1, 2, 8, 32))
        return ids[:at] + [desk.random.choice(known)] * count + ids[at:]


@register
class Digits(CharacterMutator):
    """Digits become others, or a number comes in."""

    name = "digits"

    def usable(self) -> bool:
        return super().usable() and bool(self.known("0123456789"))

    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        known = self.known("0123456789")
        there = [i for i, id_ in enumerate(ids) if id_ in known]
        if there and desk.random.random() < 0.5:
            ids[desk.random.choice(there)] = desk.random.choice(known)
            return ids
        at = desk.place(ids, end=True)
        return ids[:at] + desk.random.choices(known, k=desk.random.choice((1, 2, 4, 12))) + ids[at:]
