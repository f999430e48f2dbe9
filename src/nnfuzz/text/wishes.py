"""What each goal of a text run wishes the model to say, and which goal is next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import NnfuzzError
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives import Together

OFTEN = 16
"""A goal that stays open when it is found gets one turn where others get so many."""


class Wishes:
    """Args:
    objective: whose goals they are. model: that is to say something. most: ids that it may write.
    """

    def __init__(self, objective: Together, model: LanguageModel, most: int):
        self.objective, self.model, self.most = objective, model, most
        self.ways: dict[int, int] = {}
        """How often a goal was wished for in vain: another way is next."""
        self.taken: dict[int, int] = {}
        """Turns of each goal."""
        self._masks: tuple[Tensor, Tensor] | None = None

    def goals(self) -> list[int]:
        """Open ones that can be wished for."""
        return [g for g in self.objective.open if self._part(g).wishes]

    def next(self, goals: list[int], fulfilled: Callable[[int], bool]) -> int:
        """One whose wish is ``fulfilled`` already, else the one with the fewest turns."""

        def due(goal: int) -> tuple[bool, int]:
            again = not self._part(goal).closes and goal in self.objective.known.values()
            return not fulfilled(goal), self.taken.get(goal, 0) * (OFTEN if again else 1)

        return min(goals, key=due)

    def way(self, goal: int) -> int:
        return self.ways.get(goal, 0) % int(self._part(goal).wishes)

    def vain(self, goal: int) -> None:
        """A turn brought nothing: the goal is wished for otherwise next time."""
        self.ways[goal] = self.ways.get(goal, 0) + 1

    def ids(self, goal: int, way: int, text: str) -> list[int]:
        """The wish as the model's ids; nothing where there is none, or the model cannot say it, or not in its room."""
        wish = self._part(goal).wish(self.objective.goals[goal][1], way, text)
        for said in () if wish is None else (wish, wish.strip()):
            try:
                ids = self.model.out.encode(said)
            except NnfuzzError:
                continue
            return ids if len(ids) <= self.most else []
        return []

    def free(self, goal: int) -> list[int] | None:
        """What is wished for whatever the model says now, when that is so."""
        part, way = self._part(goal), self.way(goal)
        return self.ids(goal, way, "") or None if way in part.free_wishes else None

    def begins_word(self, wished: list[int]) -> bool:
        """Whether it is part of the word before it, if one is unfinished there."""
        return in_word(self.model.out.pieces(wished[:1])[0][:1])

    @property
    def masks(self) -> tuple[Tensor, Tensor]:
        """bool ``(vocabulary,)`` each: ids whose text ends a word; ids after whose text a word is unfinished."""
        if self._masks is None:
            pieces = self.model.out.pieces(list(range(self.model.out.size)))
            ends = [not in_word(p[:1]) for p in pieces]
            self._masks = torch.tensor(ends), torch.tensor([in_word(p[-1:]) for p in pieces])
        return self._masks

    def _part(self, goal: int) -> Any:
        return self.objective.parts[self.objective.goals[goal][0]]


def in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
