"""The seam for edits of text: one prompt as a list of ids in, another out. Legality is the space's business."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nnfuzz.mutators.base import Context, Mutator
from nnfuzz.registry import Registry
from nnfuzz.space import Batch, InputSpace, InputSpec
from nnfuzz.text.codec import Characters, Codec, pack, unpack
from nnfuzz.text.space import PROMPT

AGAIN = 0.4
"""After an edit another one follows with this chance, so that most mutants differ in one place and some in several."""
MOST_EDITS = 8


@dataclass
class Desk:
    """What an edit may use.

    Attributes:
        random: seeded per group. codec: what ids mean. width: the longest prompt.
        partner: another prompt of the corpus. words: of the user's dictionary, as ids.
    """

    random: random.Random
    codec: Codec
    width: int
    partner: list[int]
    words: Sequence[list[int]]

    def any_id(self) -> int:
        """Mostly what the seeds hold; one in eight anything legal."""
        pool = self.codec.everyday
        if self.random.random() < 0.125 or not pool:
            legal = self.codec.legal
            return self.random.choice(legal) if legal else self.random.randrange(self.codec.size)
        return self.random.choice(pool)

    def place(self, ids: Sequence[int], *, end: bool = False) -> int:
        """A place in a prompt; with ``end`` also the one after it. Of nothing: 0."""
        return self.random.randrange(max(1, len(ids) + end))

    def span(self, ids: Sequence[int], longest: int = 64) -> tuple[int, int]:
        """A run of ids, short ones more often; empty only of nothing."""
        if not ids:
            return 0, 0
        length = min(len(ids), longest, 1 + int(self.random.expovariate(0.2)))
        start = self.random.randrange(len(ids) - length + 1)
        return start, start + length


class TextMutator(Mutator):
    """Edits prompts one by one.

    Args:
        codec: of the prompts. words: of the user's dictionary, as ids.
    """

    repeats: ClassVar[bool] = True
    """Whether several such edits of one prompt make sense."""

    def __init__(self, codec: Codec, words: Sequence[list[int]] = ()):
        self.codec, self.words = codec, words
        self._known: dict[str, list[int]] = {}

    def usable(self) -> bool:
        """Whether it can change anything in this run."""
        return True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in space.mutable if s.kind == "text"] if self.usable() else []

    @abstractmethod
    def edit(self, ids: list[int], desk: Desk) -> list[int]:
        """``ids`` is owned by this call. The result may be too long, too short or hold illegal ids."""

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        x = batch[PROMPT]
        width = x.shape[1]
        partners = unpack(ctx.partners()[PROMPT])
        draw = random.Random(int(ctx.rng.integers(1 << 62)))
        made = []
        for ids, partner in zip(unpack(x), partners, strict=True):
            desk = Desk(draw, self.codec, width, partner, self.words)
            now = ids
            for _ in range(MOST_EDITS):
                now = self.edit(list(now), desk)
                if not self.repeats or draw.random() > AGAIN:
                    break
            made.append(now)
        batch[PROMPT] = pack(made, width).to(x.device)


class CharacterMutator(TextMutator):
    """For edits that speak of characters: codecs with an alphabet."""

    def usable(self) -> bool:
        return isinstance(self.codec, Characters)

    @property
    def alphabet(self) -> Characters:
        assert isinstance(self.codec, Characters)
        return self.codec

    def known(self, characters: str) -> list[int]:
        """The ids of those characters that the alphabet has."""
        if characters not in self._known:
            found = [self.alphabet.encode(c)[0] for c in characters if c in self.alphabet]
            legal = None if self.codec.legal is None else set(self.codec.legal)
            self._known[characters] = [i for i in found if legal is None or i in legal]
        return self._known[characters]


TEXT_MUTATORS: Registry[type[TextMutator]] = Registry("text_mutator")


def register(cls: type[TextMutator]) -> type[TextMutator]:
    """Class decorator: makes the mutator known under its ``name``."""
    return TEXT_MUTATORS.register(cls.name)(cls)
