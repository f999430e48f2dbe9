"""All objectives of a run as the one that the loop knows: any hit counts, every goal has a score of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from nnfuzz.objectives.base import Cause, Objective, Verdict
from nnfuzz.space import Batch
from nnfuzz.targets.base import Trace, Want
from nnfuzz.text.codec import Codec
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Reading, TextObjective
from nnfuzz.text.objectives.words import Words


@dataclass
class TextVerdict(Verdict):
    """``goals``: float64 ``(batch, goals)``. ``fresh``: bool ``(batch,)``, hits whose cause is no finding yet."""

    goals: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    fresh: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


class Together(Objective):
    """Args:
    parts: the objectives. codec: of the prompts. model, other: what they judge.
    """

    name = "text"
    want = Want()

    def __init__(self, parts: list[TextObjective], codec: Codec, model: LanguageModel, other: LanguageModel | None):
        self.parts, self.codec, self.model = parts, codec, model
        for part in parts:
            part.bind(model, other)
        self.goals = [(i, g) for i, part in enumerate(parts) for g in range(len(part.goals))]
        self._at = {goal: n for n, goal in enumerate(self.goals)}
        self.known: dict[str, int] = {}
        """Causes that are findings, and the goal (an index into ``goals``) of each."""
        self.reported: dict[int, tuple[TextObjective, Found]] = {}
        """By the keys of verdicts, what they stood for: what fails only in its batch is never seen again."""
        self.said: dict[tuple[int, tuple[int, ...]], tuple[Found, str]] = {}
        """Of the batch that was judged last, by key and prompt: what a model that wavers may never say again."""
        watch = sorted({i for part in parts for i in part.watched(model)}) if model.shows_probabilities else []
        model.watch = watch
        for part in parts:
            if isinstance(part, Words):
                part.remember_watch(watch)

    @property
    def open(self) -> list[int]:
        """Goals that are still searched for."""
        over = {goal for goal in self.known.values() if self.parts[self.goals[goal][0]].closes}
        return [n for n in range(len(self.goals)) if n not in over]

    def part_of(self, goal: int) -> TextObjective:
        """Whose goal it is."""
        return self.parts[self.goals[goal][0]]

    def title(self, goal: int) -> str:
        """``blacklist: word``."""
        part = self.parts[self.goals[goal][0]]
        name = part.goals[self.goals[goal][1]]
        return name if name == part.name or len(part.goals) == 1 else f"{part.name}: {name}"

    def read(self, trace: Trace, batch: Batch) -> Reading:
        return Reading(trace, batch, self.codec, self.model.out, continues=self.model.shows_probabilities)

    def look(self, reading: Reading) -> tuple[list[list[tuple[int, Found]]], NDArray[np.float64]]:
        """Per candidate what it does wrong with the goal that is, and the scores ``(batch, goals)``."""
        found: list[list[tuple[int, Found]]] = [[] for _ in range(reading.size)]
        columns = []
        for i, part in enumerate(self.parts):
            look = part.look(reading)
            columns.append(look.scores)
            for row, several in enumerate(look.found):
                found[row] += [(self._at[i, f.goal], f) for f in several]
        return found, np.concatenate(columns, 1)

    def judge(self, trace: Trace, batch: Batch) -> TextVerdict:
        reading = self.read(trace, batch)
        found, goals = self.look(reading)
        self.said = {}
        hits = torch.tensor([bool(f) for f in found])
        keys = torch.zeros(len(found), dtype=torch.int64)
        fresh = np.zeros(len(found), np.bool_)
        for row, several in enumerate(found):
            if several:
                new = [(g, f) for g, f in several if f.cause not in self.known]
                fresh[row] = bool(new)
                goal, first = (new or several)[0]
                keys[row] = first.key
                if "tokens" in trace.outputs:
                    self.said[first.key, tuple(reading.prompt_ids[row])] = first, reading.texts[row]
                self.reported.setdefault(first.key, (self.parts[self.goals[goal][0]], first))
        goals = np.where(np.isnan(goals), -np.inf, goals)
        still = self.open
        best = goals[:, still].max(1) if still else np.full(len(found), -np.inf)
        score = torch.from_numpy(best) if np.isfinite(best).any() else None
        return TextVerdict(hits, score, keys, goals, fresh)

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        return cause_of(self.all_of(trace, batch)[0][1])

    def all_of(self, trace: Trace, batch: Batch) -> list[tuple[int, Found]]:
        """All that one candidate does wrong."""
        return self.look(self.read(trace, batch))[0][0]

    def searched(self) -> str:
        return "; ".join(part.searched() for part in self.parts)


class Only(Objective):
    """One cause alone, for confirming and shrinking: whatever else a prompt does is not looked at."""

    name = "text"
    want = Want(layers=False)

    def __init__(self, whole: Together, cause: str):
        self.whole, self.text = whole, cause

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        found, _ = self.whole.look(self.whole.read(trace, batch))
        return Verdict(torch.tensor([any(f.cause == self.text for _, f in several) for several in found]))

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        return cause_of(next(f for _, f in self.whole.all_of(trace, batch) if f.cause == self.text))


def cause_of(found: Found) -> Cause:
    return Cause(found.symptom, found.cause, severity=found.severity, details={"spans": found.spans, **found.details})
