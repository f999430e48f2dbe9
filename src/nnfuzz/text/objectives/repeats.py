"""``repeat:K``, the same word K times in a row; ``loop:K``, any run of ids K times in a row."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import PAD, Characters
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective, longest_true

_WORD = re.compile(r"\w+")
SHORTEST_LOOP = 12
"""Ids that a loop must cover at least: ``....`` or ``haha`` is no failure."""


LONG, LONGEST_PERIOD = 4096, 256
"""In outputs of more ids than that, loops are looked for up to that period: all would take too long."""


class Repeat(TextObjective):
    """The same word (case-folded) ``times`` in a row, nothing between but spaces and signs.

    Words that the prompt repeats as often itself are one failure together, every other word is its own.

    The score is the longest run so far, with the chance that it goes on where the model shows it, over ``times``.
    """

    name, closes = "repeat", False
    symptom = "repeated word"

    def __init__(self, times: int = 5):
        super().__init__()
        if times < 2:
            raise UsageError(f"repeat:{times} would be no repetition: give at least 2, for instance repeat:5")
        self.times, self.spec = times, f"repeat:{times}"
        self._characters: Characters | None = None

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so it repeats nothing")
        if isinstance(model.out, Characters) and model.shows_probabilities:
            self._characters = model.out

    def needs(self, unit: str) -> int:
        return 2 * self.times - 1 if unit == "character" else 0  # a token may be several words

    def watched(self, model: LanguageModel) -> set[int]:
        return set(range(model.out.size)) if self._characters is not None else set()

    def look(self, reading: Reading) -> Look:
        watched = reading.trace.outputs.get("watched")
        shows = self._characters is not None and watched is not None and watched.shape[2] == reading.out.size
        chances = watched.exp().nan_to_num(0.0).numpy() if shows and watched is not None else None
        found, scores = reading.none(), reading.no_scores()
        for row, text in enumerate(reading.texts):
            words = list(_WORD.finditer(text))
            run, best = 1, 0.0
            for n, word in enumerate(words):
                same = n > 0 and words[n - 1][0].casefold() == word[0].casefold()
                run = run + 1 if same else 1
                if run == self.times:
                    spans = [(words[n - run + 1].start(), word.end())]
                    cause = f"the word {word[0].casefold()!r} {self.times} times in a row"
                    if self._held(reading.prompts[row], word[0]):
                        cause = f"a word {self.times} times in a row, as in the prompt"
                    if all(f.cause != cause for f in found[row]):
                        found[row].append(Found(0, self.symptom, cause, spans))
                more = 0.0
                if chances is not None and self._characters is not None and n + 1 < len(words):
                    more = self._chance(chances[row], words[n + 1].start(), word[0])
                best = max(best, run + more)
            scores[row, 0] = min(0.999, best / self.times)
        return Look(found, scores)

    def _held(self, prompt: str, word: str) -> bool:
        """Whether the prompt repeats it as often itself. What takes that up is one failure, whatever the word."""
        run = 0
        for other in _WORD.findall(prompt):
            run = run + 1 if other.casefold() == word.casefold() else 0
            if run == self.times:
                return True
        return False

    def _chance(self, chances: np.ndarray[tuple[int, ...], np.dtype[np.float32]], at: int, word: str) -> float:
        """That the next word begins as the last one did."""
        assert self._characters is not None
        return float(chances[at, self._characters.encode(word[0])[0]])

    wishes = 1

    def wish(self, goal: int, way: int, text: str) -> str | None:
        """The word that is repeated most now, or the last whole one, as often as it takes."""
        words = _WORD.findall(text)
        if not words:
            return None
        best, run, longest = words[-2] if len(words) > 1 else words[0], 1, 1
        for one, other in pairwise(words):
            run = run + 1 if one.casefold() == other.casefold() else 1
            if run > longest:
                best, longest = one, run
        return f" {best}" * self.times

    def searched(self) -> str:
        return f"a word {self.times} times in a row"


class Loop(TextObjective):
    """Any run of ids that is written ``times`` in a row (its *period*, at most a ``times``-th of the continuation),
    over at least ``SHORTEST_LOOP`` ids. The score is the number of repetitions so far over ``times``."""

    name = "loop"
    symptom = "loop"

    def __init__(self, times: int = 4):
        super().__init__()
        if times < 2:
            raise UsageError(f"loop:{times} would be no loop: give at least 2, for instance loop:4")
        self.times, self.spec = times, f"loop:{times}"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so it cannot loop")

    def needs(self, unit: str) -> int:
        return max(self.times, SHORTEST_LOOP)

    def look(self, reading: Reading) -> Look:
        repeats, period, end = loops(reading.tokens, self.times)
        found = reading.none()
        for row in (repeats >= self.times).nonzero()[:, 0].tolist():
            ids, p, stop = reading.ids[row], int(period[row]), int(end[row]) + 1
            start = max(0, stop - int(repeats[row] * p))
            span = (len(reading.out.decode(ids[:start])), len(reading.out.decode(ids[:stop])))
            details = {"period": p, "repetitions": round(float(repeats[row]), 1)}
            found[row].append(
                Found(0, self.symptom, f"a loop of {self.times} repetitions or more", [span], details=details)
            )
        return Look(found, (repeats / self.times).clamp(max=0.999).double().numpy()[:, None])

    def searched(self) -> str:
        return f"any loop of {self.times} repetitions"


def loops(tokens: Tensor, times: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of every row the most often repeated run: how often (float), its period, and the place where it ends.

    ``tokens``: int64 ``(batch, T)``, −1 where nothing was written.
    """
    long = (tokens != PAD).sum(1) > LONG
    if bool(long.any()):
        return _apart(tokens, times, long)
    return _loops(tokens[:, : max(LONG, times)] if tokens.shape[1] > LONG else tokens, times, tokens.shape[1])


def _apart(tokens: Tensor, times: int, long: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of more than ``LONG`` ids by themselves."""
    some, rest = _loops(tokens[long], times, LONGEST_PERIOD * times), _loops(tokens[~long][:, :LONG], times, LONG)
    found = []
    for mine, others in zip(some, rest, strict=True):
        column = mine.new_empty(len(tokens))
        column[long], column[~long] = mine, others
        found.append(column)
    return found[0], found[1], found[2]


def _loops(tokens: Tensor, times: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same, with periods up to a ``times``-th of ``most``."""
    count, length = len(tokens), min(tokens.shape[1], most)
    best = torch.ones(count)
    period = torch.ones(count, dtype=torch.long)
    end = torch.zeros(count, dtype=torch.long)
    for p in range(1, length // times + 1):
        same = (tokens[:, p:] == tokens[:, :-p]) & (tokens[:, p:] != PAD)
        run = longest_true(same)
        longest, at = run.max(1)
        covered = longest + p
        repeats = covered / p
        least = torch.full_like(repeats, SHORTEST_LOOP / p)
        repeats = torch.where(repeats >= least, repeats, repeats.clamp(max=times * 0.9))
        better = repeats > best
        best = torch.where(better, repeats, best)
        period, end = torch.where(better, p, period), torch.where(better, at + p, end)
    return best, period, end
