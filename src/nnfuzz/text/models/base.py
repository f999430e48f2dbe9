"""The seam for models that write: prompts in, continuations and what was seen of them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import Codec

MOST_NEW = 1_000_000
"""Ids that a continuation may have: what is noted of each step is kept until a batch is judged."""


class OutOfTime(UsageError):
    """The time was up while a model wrote; what it had written is not judged."""


def never() -> bool:
    """There is no hurry."""
    return False


@dataclass(frozen=True)
class Writing:
    """How a model is asked to write.

    Attributes:
        max_new: ids (characters, tokens) at most.
        temperature: 0 is greedy; above, the distribution is softened by it and drawn from.
        seed: of the draws. Every row sees the same noise, so that what a prompt gives does not depend on its batch.
        apart: every row sees noise of its own instead: many draws for one prompt.
    """

    max_new: int = 64
    temperature: float = 0.0
    seed: int = 0
    apart: bool = False

    def check(self) -> None:
        """Raises ``UsageError``."""
        if self.max_new < 1:
            raise UsageError(f"max_new is {self.max_new}, but a continuation has at least 1 character or token")
        if self.max_new > MOST_NEW:
            raise UsageError(
                f"max_new is {self.max_new:,}, but a continuation of more than {MOST_NEW:,} characters or tokens "
                "cannot be searched: give a smaller --max-new"
            )
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}, but it is 0 (greedy) or a positive number")


@dataclass
class Prompts:
    """One batch of prompts, as ids of the run's codec and as texts (made when asked for)."""

    ids: list[list[int]]
    codec: Codec

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def texts(self) -> list[str]:
        return [self.codec.decode(ids) for ids in self.ids]


@dataclass
class Wish:
    """What gradients are asked: how far is the model from writing these ids after each prompt?

    Attributes:
        score: float64 ``(batch,)``, at most 0: the sum, over the ids wished, of what each one's logit (of draws: with
            temperature and noise) lacks to be the largest. 0: it writes them all.
        cosines: float32 ``(batch, longest prompt, vocabulary)``, -1 to 1: between the way from the embedding of a
            place to that of another id, and the gradient of ``score`` there; None unless asked for.
    """

    score: Tensor
    cosines: Tensor | None = None


class LanguageModel(ABC):
    """A model that writes.

    ``run`` gives a ``Trace``. Its outputs, with T = ``writing.max_new`` and rows in the order of the prompts:
    ``tokens`` int64 ``(batch, T)`` (−1 after the end), ``ended`` bool ``(batch,)``; and where the model shows its
    probabilities ``logp`` and ``margin`` float32 ``(batch, T)`` (of the chosen id; over the runner-up), ``bad`` bool
    ``(batch, T)`` (no distribution: NaN, +inf, or nothing but −inf), ``watched`` float32 ``(batch, T, len(watch))``
    (log-probabilities of the ids in ``watch``), ``reach`` float32 ``(batch,)`` when ``measures`` is set (how near the
    largest logit came to what its dtype can hold, see ``choosing.reach``). A classifier gives ``classes`` ``(batch,
    C)`` and no tokens. Its layers are hidden states ``mean`` and ``last``, ``(batch, d)``, when they are wanted.

    Attributes:
        name: for the reader. codec: of prompts given as the model's own ids, None for a black box.
        out: of the continuations. ends: the ids that end a continuation; none where nothing does.
        shortest: ids that a prompt needs at least. longest: prompt and continuation together at most, None without
            limit.
    """

    name: str = "model"
    codec: Codec | None = None
    out: Codec
    ends: tuple[int, ...] = ()
    shortest: int = 0
    longest: int | None = None
    device: torch.device = torch.device("cpu")
    classifies: bool = False
    shows_probabilities: bool = True
    shows_states: bool = True
    bounded: bool = True
    """Whether ``Writing.max_new`` bounds what it writes, so that T is ``max_new`` (else that of the longest text)."""
    own_ids: bool = True
    """Whether prompts are the model's own ids (else it is given texts)."""

    def __init__(self) -> None:
        self.watch: Sequence[int] = ()
        self.measures = False
        """Whether the size of logits is noted."""
        self.spent = 0
        """Characters or tokens run so far: read, written, or scored for gradients."""
        self.notes: list[str] = []
        self.late: Callable[[], bool] = never
        """Asked between the steps of writing, where it is written step by step here; True ends it by ``OutOfTime``."""

    @abstractmethod
    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        """Continues every prompt. Raises whatever the model raises."""

    def wish(
        self,
        prompts: list[list[int]],
        wishes: list[list[int]],
        writing: Writing,
        *,
        cosines: bool,
        stops: Tensor | None = None,
    ) -> Wish:
        """Scores continuations that the model would not write by itself, see ``Wish``. ``stops``: bool
        ``(vocabulary,)``, one of which must follow."""
        raise NotImplementedError

    @property
    def scores_wishes(self) -> bool:
        """Whether ``wish`` can be asked, without cosines."""
        return False

    @property
    def follows_gradients(self) -> bool:
        """Whether ``wish`` can be asked for cosines."""
        return False

    def describe(self) -> str:
        return self.name


@dataclass
class Shown:
    """The same as the outputs of a ``Trace``, while it is being written: pieces of some steps each."""

    columns: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **parts: Tensor) -> None:
        for name, part in parts.items():
            self.columns.setdefault(name, []).append(part)
