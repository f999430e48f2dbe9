"""``endless``, ``empty`` and ``echo``: outputs that do not stop, that say nothing, that only say the prompt again."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import CodePoints, pack
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective, longest_true, padded_scores


class Endless(TextObjective):
    """No end within the most characters or tokens. The score is how unlikely an end was at its likeliest."""

    name = "endless"
    symptom = "endless output"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if not model.bounded:
            raise UsageError(
                f"{model.name} is a function that returned, so nothing it writes is endless: drop this objective, "
                "or ask for what it should not write, for instance loop:4"
            )
        if model.classifies or (not model.ends and model.shows_probabilities):
            raise UsageError(
                f"{model.name} has no id that ends a text, so all it writes is endless: drop this objective"
            )

    def watched(self, model: LanguageModel) -> set[int]:
        return set(model.ends)

    def look(self, reading: Reading) -> Look:
        ended = reading.trace.outputs["ended"]
        found, most = reading.none(), reading.tokens.shape[1]
        for row in (~ended & ~reading.broken).nonzero()[:, 0].tolist():
            found[row].append(Found(0, self.symptom, "the output does not end"))
        lengths = torch.tensor([len(ids) for ids in reading.ids], dtype=torch.float64)
        return Look(found, (lengths / most).clamp(max=0.999).numpy()[:, None])

    def searched(self) -> str:
        return "an output without end"


class Empty(TextObjective):
    """Nothing but white space. The score grows as less is said."""

    name = "empty"
    symptom = "empty output"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so its output is always empty: drop this objective")

    def look(self, reading: Reading) -> Look:
        found, scores = reading.none(), []
        for row, text in enumerate(reading.texts):
            said = len("".join(text.split()))
            if not said and not reading.broken[row]:
                found[row].append(Found(0, self.symptom, "the output is empty", [(0, len(text))]))
            scores.append(min(0.999, 1 / (1 + said)))
        return Look(found, padded_scores(scores))

    def searched(self) -> str:
        return "an empty output"


class Echo(TextObjective):
    """``echo:N``: at least N characters of the prompt in a row come again, word for word. The score is the longest
    such stretch over N."""

    name = "echo"
    symptom = "echo"

    def __init__(self, least: int = 20):
        super().__init__()
        if least < 2:
            raise UsageError(f"echo:{least} would be every output: give at least 2 characters, for instance echo:20")
        self.least, self.spec = least, f"echo:{least}"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so it echoes nothing")

    def needs(self, unit: str) -> int:
        return self.least if unit == "character" else 0

    def look(self, reading: Reading) -> Look:
        longest, end = common(reading.prompts, reading.texts)
        found = reading.none()
        for row in np.flatnonzero(longest >= self.least).tolist():
            stop = int(end[row]) + 1
            span = (stop - int(longest[row]), stop)
            found[row].append(Found(0, self.symptom, f"{self.least} characters of the prompt come again", [span]))
        return Look(found, np.minimum(longest / self.least, 0.999)[:, None])

    def searched(self) -> str:
        return f"{self.least} characters of the prompt again"


MOST_COMPARED = 512
"""Of a prompt the last so many characters are compared: what is further away costs more than it tells."""


LONG = 4096
"""A text of more characters is compared by itself, for which there is a quicker way."""


def common(prompts: list[str], texts: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every pair the length of the longest stretch that both hold, and where it ends in the text."""
    tails = [p[-MOST_COMPARED:] for p in prompts]
    short = [i for i, t in enumerate(texts) if len(t) <= LONG]
    longest, end = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    if short:
        longest[short], end[short] = _by_diagonals([tails[i] for i in short], [texts[i] for i in short])
    for i in sorted({*range(len(texts))} - {*short}):
        longest[i], end[i] = _by_search(tails[i], texts[i])
    return longest, end


def _by_search(prompt: str, text: str) -> tuple[int, int]:
    """One pair: a stretch that is looked for grows whenever it is there."""
    longest, end = 0, 0
    for start in range(len(prompt)):
        while start + longest < len(prompt) and (at := text.find(prompt[start : start + longest + 1])) >= 0:
            longest, end = longest + 1, at + longest
    return longest, end


def _by_diagonals(tails: list[str], texts: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Many pairs at once."""
    points = CodePoints()
    a = pack([points.encode(p) for p in tails], max(1, *map(len, tails)))
    b = pack([points.encode(t) for t in texts], max(1, *map(len, texts)))
    longest = torch.zeros(len(tails), dtype=torch.long)
    end = torch.zeros(len(tails), dtype=torch.long)
    width = b.shape[1]
    for shift in range(1 - a.shape[1], width):  # each shift is one diagonal of the table of all pairs of places
        start, stop = max(0, shift), min(width, a.shape[1] + shift)
        part, other = b[:, start:stop], a[:, start - shift : stop - shift]
        run, at = longest_true((part == other) & (part >= 0)).max(1)
        better = run > longest
        longest, end = torch.where(better, run, longest), torch.where(better, at + start, end)
    return longest.numpy(), end.numpy()
