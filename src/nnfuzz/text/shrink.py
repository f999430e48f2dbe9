"""The shortest, most ordinary prompt that still does it.

First ids go, in runs that halve (delta debugging: Zeller & Hildebrandt, TSE 2002); then each one left becomes the most
ordinary one that will do, in the order of how often the seeds hold it. Every pass only ever makes a prompt shorter, or
more ordinary at equal length, so shrinking ends.
"""

from __future__ import annotations

from collections.abc import Callable

from nnfuzz.text.codec import Codec
from nnfuzz.text.models.base import OutOfTime

Fails = Callable[[list[list[int]]], list[bool]]
WIDTH = 128
"""Prompts tried at once at most."""
ORDINARY = 6
"""The commonest ids, which stand for ordinary."""


class TextShrinker:
    """Args:
    codec: knows what is ordinary. shortest: ids a prompt needs. fails: judges a batch of prompts.
    budget: prompts that may be tried. late: says when time is up. at_once: prompts in one call of ``fails``.
    """

    def __init__(
        self,
        codec: Codec,
        shortest: int,
        fails: Fails,
        budget: int,
        late: Callable[[], bool] = lambda: False,
        at_once: int = WIDTH,
    ):
        self.at_once = min(WIDTH, at_once)
        self.codec, self.shortest, self.fails, self.budget, self.late = codec, shortest, fails, budget, late
        self.tried = 0
        self.complete = True

    def shrink(self, ids: list[int]) -> list[int]:
        """The least failing prompt found."""
        best = ids
        while True:
            before = best
            best = self._ordinary(self._shorter(best))
            if best == before or not self.complete:
                return best

    def _shorter(self, best: list[int]) -> list[int]:
        size = len(best)
        while size >= 1 and len(best) > self.shortest:
            edges = list(range(0, len(best), size))
            runs = [range(at, min(at + size, len(best))) for at in edges]
            smaller = self._all_that_go(best, [dict.fromkeys(run) for run in runs])
            if smaller is best or size > len(smaller):
                size = min(size // 2, len(smaller))
            best = smaller
        return best

    def _ordinary(self, best: list[int]) -> list[int]:
        for id_ in sorted(self.codec.everyday, key=self.codec.rank)[:ORDINARY]:
            rank = self.codec.rank(id_)
            places = [at for at, old in enumerate(best) if rank < self.codec.rank(old)]
            best = self._all_that_go(best, [{at: id_} for at in places])
        return best

    def _all_that_go(self, best: list[int], changes: list[dict[int, int | None]]) -> list[int]:
        """As many of the changes (place → id, None: it goes) as can be made at once: first each by itself, then those
        that still fail together, as far as that goes."""
        good = [c for c, ok in zip(changes, self._ask([_changed(best, c) for c in changes]), strict=True) if ok]
        if not good:
            return best
        unions, joined = [], dict[int, int | None]()
        for change in good:
            joined = joined | change
            unions.append(_changed(best, joined))
        longest = [u for u, ok in zip(unions, self._ask(unions), strict=True) if ok]
        return longest[-1] if longest else _changed(best, good[0])

    def _ask(self, tries: list[list[int]]) -> list[bool]:
        """Which still fail; those that are too short, or beyond the budget, do not."""
        answers = [False] * len(tries)
        fit = [i for i, t in enumerate(tries) if len(t) >= self.shortest]
        for start in range(0, len(fit), self.at_once):
            some = fit[start : start + self.at_once]
            if self.tried + len(some) > self.budget or self.late():
                self.complete = False
                break
            self.tried += len(some)
            try:
                failing = self.fails([tries[i] for i in some])
            except OutOfTime:
                self.complete = False
                break
            for i, failed in zip(some, failing, strict=True):
                answers[i] = failed
        return answers


def _changed(ids: list[int], change: dict[int, int | None]) -> list[int]:
    made = []
    for at, old in enumerate(ids):
        new = change.get(at, old)
        if new is not None:
            made.append(new)
    return made
