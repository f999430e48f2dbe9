"""The seam for objectives over text. One trace is read once and judged by all of them."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.space import Batch
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import PAD, Codec, unpack
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.space import PROMPT

Spans = list[tuple[int, int]]


@dataclass
class Found:
    """One misbehaviour of one candidate.

    Attributes:
        goal: which of the objective's goals it is. cause: findings of equal cause are one finding.
        symptom: in two words. spans: where in the continuation, in characters. details: JSON-able facts.
    """

    goal: int
    symptom: str
    cause: str
    spans: Spans = field(default_factory=list)
    severity: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> int:
        """Equal for equal causes."""
        return zlib.crc32(self.cause.encode("utf-8", "backslashreplace"))


@dataclass
class Look:
    """``found``: for every candidate what it does wrong. ``scores``: float64 ``(batch, goals)``, 0 … 1, growing toward
    a hit; NaN where there is nothing to say."""

    found: list[list[Found]]
    scores: NDArray[np.float64]


class Reading:
    """A trace and its prompts as text, decoded once for all objectives. ``continues``: the model goes on with the
    prompt's own text, and does not answer it."""

    def __init__(self, trace: Trace, batch: Batch, codec: Codec, out: Codec, *, continues: bool):
        self.continues = continues
        self.trace, self.codec, self.out = trace, codec, out
        self.prompt_ids = unpack(batch[PROMPT])
        self.size = len(self.prompt_ids)

    @cached_property
    def tokens(self) -> Tensor:
        """int64 ``(batch, T)``: what is written, which ends where a step has no distribution to choose from. What comes
        after it is arbitrary, and no fault of its own."""
        tokens = self.trace.outputs["tokens"]
        broken = self.trace.outputs.get("bad")
        if broken is None or not bool(broken.any()):
            return tokens
        return tokens.masked_fill(broken.cummax(1).values, PAD)

    @cached_property
    def broken(self) -> Tensor:
        """bool ``(batch,)``: whether a step had no distribution."""
        found = self.trace.outputs.get("bad")
        return torch.zeros(self.size, dtype=torch.bool) if found is None else found.any(1)

    @cached_property
    def ids(self) -> list[list[int]]:
        return unpack(self.tokens)

    @cached_property
    def texts(self) -> list[str]:
        return [self.out.decode(ids) for ids in self.ids]

    @cached_property
    def prompts(self) -> list[str]:
        return [self.codec.decode(ids) for ids in self.prompt_ids]

    @cached_property
    def glued(self) -> list[bool]:
        """Whether a prompt ends within a word, so that its continuation does not begin with one (an answer does)."""
        return [self.continues and (p[-1:].isalnum() or p[-1:] == "_") for p in self.prompts]

    def none(self) -> list[list[Found]]:
        return [[] for _ in range(self.size)]

    def no_scores(self, goals: int = 1) -> NDArray[np.float64]:
        return np.full((self.size, goals), np.nan)


class TextObjective(ABC):
    """Judges readings.

    Attributes:
        goals: one name each; the search keeps the best prompts of every goal that is open.
        closes: whether a goal is over with its first finding (another one would be the same).
        symptom: what its findings are called.
        spec: the words that name it, as on the command line; "" for one made of live objects.
    """

    name: ClassVar[str]
    symptom: ClassVar[str] = "bad text"
    closes: bool = True

    def __init__(self) -> None:
        self.goals: list[str] = [self.name]
        self.spec = self.name

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:  # noqa: B027
        """Sees the models once. Raises ``UsageError`` when it could never judge them."""

    def needs(self, unit: str) -> int:
        """How many ids of that unit ("character", "token") an output has at least when it is a hit."""
        return 0

    def watched(self, model: LanguageModel) -> set[int]:
        """Ids whose probabilities it asks the model for."""
        return set()

    @abstractmethod
    def look(self, reading: Reading) -> Look: ...

    wishes: ClassVar[int] = 0
    """Ways to wish for a goal."""
    free_wishes: ClassVar[frozenset[int]] = frozenset()
    """Those that are the same whatever the model says now."""

    def wish(self, goal: int, way: int, text: str) -> str | None:
        """What the model should say for this goal, given what it says now; None where no text would do. After it a
        word must end."""
        return None

    def spec_of(self, found: Found) -> str:
        """The words that name this objective for one finding alone."""
        return self.spec

    def searched(self) -> str:
        """In the user's words."""
        return self.name


def padded_scores(values: list[float]) -> NDArray[np.float64]:
    """One goal's scores as a column."""
    return np.asarray(values, np.float64)[:, None]


def longest_true(mask: Tensor) -> Tensor:
    """bool ``(batch, T)`` → int64 ``(batch, T)``: how many true values in a row end at each place."""
    count = mask.long().cumsum(1)
    reset = torch.where(mask, 0, count).cummax(1).values
    return count - reset
