"""Which ids of a prompt the behaviour hangs on: each is removed, and exchanged, and the model is run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnfuzz.text.codec import Codec
from nnfuzz.text.telling import visible

MOST = 48
"""Ids that are looked at; of a longer prompt the last ones."""
OTHERS = 2
"""Other ids that each is exchanged for: the most ordinary ones."""


@dataclass
class Influence:
    """Of one id of the prompt: whether the behaviour ends when it goes, and for which other ids it ends."""

    place: int
    text: str
    removed: bool | None
    """None: the prompt cannot be shorter."""
    changed: list[tuple[str, bool]]

    @property
    def matters(self) -> bool:
        return bool(self.removed) or any(ended for _, ended in self.changed)

    def line(self) -> str:
        said = {None: "cannot be removed", True: "removed: it is gone", False: "removed: it stays"}[self.removed]
        to = ", ".join(f"{text} {'ends it' if ended else 'does not'}" for text, ended in self.changed)
        return f"{self.place:>4}  {self.text:<8}  {said:<19}  instead: {to or 'nothing to put there'}"


def influences(
    codec: Codec, ids: list[int], shortest: int, fails: Callable[[list[list[int]]], list[bool]]
) -> tuple[list[Influence], int]:
    """One for every id, at most ``MOST``, and how many prompts were run. ``fails``: which prompts still do it."""
    ordinary = sorted(codec.everyday or (codec.legal or []), key=codec.rank)[: OTHERS + 1]
    places = range(max(0, len(ids) - MOST), len(ids))
    tries: list[list[int]] = []
    for at in places:
        if len(ids) > shortest:
            tries.append(ids[:at] + ids[at + 1 :])
        tries += [[*ids[:at], other, *ids[at + 1 :]] for other in _others(ordinary, ids[at])]
    answers = iter(fails(tries)) if tries else iter(())
    found = []
    for at in places:
        removed = not next(answers) if len(ids) > shortest else None
        changed = [(_shown(codec, other), not next(answers)) for other in _others(ordinary, ids[at])]
        found.append(Influence(at, _shown(codec, ids[at]), removed, changed))
    return found, len(tries)


def _others(ordinary: list[int], id_: int) -> list[int]:
    return [o for o in ordinary if o != id_][:OTHERS]


def _shown(codec: Codec, id_: int) -> str:
    return f"'{visible(codec.pieces([id_])[0])}'"


def told(found: list[Influence], tried: int, unit: str, length: int) -> list[str]:
    """A sentence, then a line for each id."""
    if not found:
        return ["the prompt is empty: nothing of it can be changed, the model does it by itself"]
    needed = [i for i in found if i.matters]
    which = " ".join(i.text for i in needed[:16]) + (" …" if len(needed) > 16 else "")
    some = f"the last {len(found)} of {length}" if len(found) < length else f"all {length}" if length > 1 else "the one"
    each = "each removed and exchanged by itself" if len(found) > 1 else "removed and exchanged"
    head = f"of {some} {unit}{'s' * (length > 1)}, {each} ({tried} reruns), "
    head += (
        f"{len(needed)} end{'s' * (len(needed) == 1)} it: {which}"
        if needed
        else "none ends it: it hangs on no single one of them"
    )
    return [head, *(i.line() for i in found)]
