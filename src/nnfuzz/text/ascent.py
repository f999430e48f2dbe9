"""Rounds of exchanges that bring prompts nearer to a wish: mutants of a few are scored, and the best few go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from nnfuzz.text.exchange import Exchanger
from nnfuzz.text.models.base import LanguageModel, Writing
from nnfuzz.text.scout import Scored

ROUNDS = 12
IDLE = 4
"""Rounds without progress that end a turn."""
WIDTH = 8
"""Prompts that a round goes on with."""
TRIES = 16
"""Mutants of each."""
PATIENT = 4
"""Rounds in which every start keeps its own best mutant; in as many more it keeps two, then all compete: the start that
is nearest at first is often not the one that gets there."""

Row = tuple[float, list[int], int, list[int], int]
"""The same with the wish, and which start of the turn it descends from."""


class Ascent:
    """Args:
    stops: bool ``(vocabulary,)``, ids one of which must follow a wish. gradients: whether exchanges are led by them.
    late: says when time is up.
    """

    def __init__(
        self,
        model: LanguageModel,
        writing: Writing,
        exchanger: Exchanger,
        stops: Tensor,
        *,
        gradients: bool,
        late: Callable[[], bool],
    ):
        self.model, self.writing, self.exchanger, self.stops = model, writing, exchanger, stops
        self.gradients, self.late = gradients, late
        self.seen: dict[tuple[int, ...], Scored] = {}

    def climb(self, rows: list[Row], rng: np.random.Generator) -> list[Scored]:
        """All prompts that were scored, best first, each once."""
        best, idle = -np.inf, 0
        for n in range(ROUNDS):
            if not rows or self.late():
                break
            each = (1, 2)[n // PATIENT] if n < 2 * PATIENT else WIDTH
            rows = distinct(self._round(rows, rng), each)[:WIDTH]
            idle = 0 if rows[0][0] > best else idle + 1
            best = rows[0][0]
            if best == 0 or idle >= IDLE:  # it is written, or nothing helps
                break
        return sorted(self.seen.values(), key=lambda r: -r[0])

    def _round(self, rows: list[Row], rng: np.random.Generator) -> list[Row]:
        """Rows and their mutants, best first; notes them in ``seen``."""
        cosines: list[Tensor | None] = [None] * len(rows)
        if self.gradients or rows[0][0] == -np.inf:
            wish = self.model.wish(
                [r[1] for r in rows], [r[3] for r in rows], self.writing, cosines=self.gradients, stops=self.stops
            )
            rows = [(float(p), *r[1:]) for p, r in zip(wish.score, rows, strict=True)]
            if wish.cosines is not None:
                cosines = list(wish.cosines)
        others = [r[1] for r in rows]
        tries = [(0.0, made, *r[2:]) for r, c in zip(rows, cosines, strict=True)
                 for made in self.exchanger.mutants(r[1], others, TRIES, rng, c, self.seen)]  # fmt: skip
        if tries:  # else every prompt in reach is known
            score = score_of(self.model, [t[1] for t in tries], [t[3] for t in tries], self.writing, self.stops)
            rows += [(float(p), *t[1:]) for p, t in zip(score, tries, strict=True)]
        rows = sorted(rows, key=lambda r: -r[0])
        for p, ids, entry, *_ in rows:
            self.seen.setdefault(tuple(ids), (p, ids, entry))
        return rows


def score_of(
    model: LanguageModel, prompts: list[list[int]], wishes: list[list[int]], writing: Writing, stops: Tensor
) -> Tensor:
    """float64 ``(prompts,)``, see ``Wish.score``."""
    return model.wish(prompts, wishes, writing, cosines=False, stops=stops).score


def distinct(rows: list[Row], each: int) -> list[Row]:
    """Every prompt once, and of every start at most ``each``."""
    seen: set[tuple[int, ...]] = set()
    kept: list[Row] = []
    count: dict[int, int] = {}
    for row in rows:
        if tuple(row[1]) not in seen and count.get(row[4], 0) < each:
            kept.append(row)
            count[row[4]] = count.get(row[4], 0) + 1
        seen.add(tuple(row[1]))
    return kept
