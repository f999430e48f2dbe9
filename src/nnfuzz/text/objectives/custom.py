"""``regex:PATTERN`` and ``file.py:fn``: what only the user knows to be wrong."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np
import regex
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective, padded_scores

PATIENCE = 2.0
"""Seconds that a pattern may take on one output."""
MOST_SPANS = 20
MOST_SCORED = 1000
"""Characters of an output, its last, in which beginnings of matches are looked for."""
HALF = 4
"""Characters of a match that score one half."""


class Regex(TextObjective):
    """A regular expression (Python's) that must not be found in the continuation.

    The score is the length n of the longest part of the continuation that could be the beginning of a match, as
    n / (n + ``HALF``).
    """

    name = "regex"
    symptom = "forbidden text"

    def __init__(self, pattern: str):
        super().__init__()
        try:
            re.compile(pattern)  # as the finding's script does
            self._pattern: Any = regex.compile(pattern)
        except (re.error, regex.error) as error:
            raise UsageError(
                f"regex:{pattern} is no regular expression ({error}): write Python's, for instance regex:nan|inf"
            ) from None
        if self._pattern.search("") is not None:
            raise UsageError(
                f"regex:{pattern} matches the empty text, so every output would be a hit: let it need a character, for "
                "instance regex:a+"
            )
        self.pattern, self.spec = pattern, f"regex:{pattern}"
        self.goals = [self.spec]

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so no regular expression can match")

    def look(self, reading: Reading) -> Look:
        found = reading.none()
        for row, text in enumerate(reading.texts):
            spans = self._spans(text)
            if spans:
                found[row].append(Found(0, self.symptom, f"it matches {self.pattern}", spans))
        longest = [self._longest_begun(text[-MOST_SCORED:]) for text in reading.texts]
        return Look(found, padded_scores([min(0.999, n / (n + HALF)) for n in longest]))

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where it matches. Some patterns take time that grows exponentially with the text: ``regex`` can be told when
        to give up, and Python's own cannot."""
        try:
            return [m.span() for m in islice(self._pattern.finditer(text, timeout=PATIENCE), MOST_SPANS)]
        except TimeoutError:
            raise self._slow(text) from None

    def _longest_begun(self, text: str) -> int:
        """The length of the longest part of the text that a match could begin with."""
        longest, began = 0, time.perf_counter()
        for start in range(len(text)):
            while start + longest < len(text):
                left = max(0.001, PATIENCE - (time.perf_counter() - began))
                try:
                    if not self._pattern.match(text, start, start + longest + 1, partial=True, timeout=left):
                        break
                except TimeoutError:
                    raise self._slow(text) from None
                longest += 1
        return longest

    def _slow(self, text: str) -> UsageError:
        return UsageError(
            f"regex:{self.pattern} takes more than {PATIENCE:g} s on an output of {len(text):,} characters: write it "
            "without repetitions inside repetitions"
        )

    def searched(self) -> str:
        return f"text that matches {self.pattern}"


class Predicate(TextObjective):
    """``fn(prompt, continuation)`` gives True for a failure, or ``(failed, score)`` with a score that grows toward one;
    of a classifier ``fn(prompt, logits)`` with a list of numbers."""

    name = "predicate"
    symptom = "predicate"

    def __init__(self, function: Callable[..., Any], spec: str = ""):
        super().__init__()
        self.function, self.spec = function, spec
        self.title = spec or getattr(function, "__name__", "predicate")
        self.goals = [self.title]

    def look(self, reading: Reading) -> Look:
        classes = reading.trace.outputs.get("classes")
        said: list[Any] = reading.texts if classes is None else classes.tolist()
        found, scores = reading.none(), []
        for row, (prompt, text) in enumerate(zip(reading.prompts, said, strict=True)):
            failed, score = self._ask(prompt, text)
            if failed:
                found[row].append(Found(0, self.symptom, f"{self.title} says so"))
            scores.append(score)
        return Look(found, padded_scores(scores))

    def _ask(self, prompt: str, said: Any) -> tuple[bool, float]:
        """Whether it failed, and the score, NaN for none."""
        try:
            answer = self.function(prompt, said)
        except (Exception, SystemExit) as error:
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"the objective {self.title} raised {told} on the prompt {prompt[:40]!r}") from error
        pair = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, math.nan)
        failed, score = (v.item() if isinstance(v, Tensor | np.generic) and v.ndim == 0 else v for v in pair)
        if not (isinstance(failed, bool) or failed in (0, 1)) or not isinstance(score, Real):
            raise UsageError(
                f"the objective {self.title} returned {str(answer)[:40]!r} on the prompt {prompt[:40]!r}, but True or "
                "False, or (failed, score) with a number, is expected: correct what it returns"
            )
        return bool(failed), float(score)

    def searched(self) -> str:
        return f"what {self.title} calls a failure"
