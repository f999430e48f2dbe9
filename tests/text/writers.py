"""Small models that write, for tests: quick, deterministic, and with behaviour that is known in advance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import CodePoints, pack
from nnfuzz.text.models import LanguageModel, Prompts, Writing, language_model
from nnfuzz.text.objectives import Look, Together, make_objectives
from nnfuzz.text.space import PROMPT

ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"


class Small(nn.Module):
    """An LSTM with random weights, large enough to write something else for every prompt."""

    alphabet = ALPHABET

    def __init__(self, seed: int = 0, hidden: int = 12, start: int | None = None, end: Any = None):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(len(ALPHABET), 6)
        self.lstm = nn.LSTM(6, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))
        for p in self.parameters():
            p.data = 0.7 * torch.randn(p.shape, generator=generator)
        self.start, self.end = start, end

    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        seen, state = self.lstm(self.embedding(ids), state)
        return self.head(seen), state


class Stateless(nn.Module):
    """The same without carrying a state."""

    def __init__(self, of: Small):
        super().__init__()
        self.of, self.alphabet = of, of.alphabet

    def logits(self, ids: Tensor) -> Tensor:
        return self.of.logits(ids)[0]


class Follower(nn.Module):
    """Writes after each character the one that ``after`` says, nearly always; a chain that is known by heart."""

    alphabet = ALPHABET

    def __init__(self, after: dict[str, str], end: int | None = None):
        super().__init__()
        size = len(ALPHABET)
        self.table = nn.Embedding(size, size)
        self.table.weight.data = torch.full((size, size), -4.0)
        for c in ALPHABET:
            self.table.weight.data[ALPHABET.index(c), ALPHABET.index(after.get(c, c))] = 4.0
        self.end = end

    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.table(ids), ids[:, -1:].float()


class Spoken(LanguageModel):
    """Says what it is told to, whatever the prompt: for looking at objectives."""

    shows_probabilities = False

    def __init__(self, texts: list[str]):
        super().__init__()
        self.texts, self.out = texts, CodePoints()

    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        raise NotImplementedError

    def trace(self) -> Trace:
        ids = [[ord(c) for c in t] for t in self.texts]
        width = max(1, *map(len, ids))
        tokens = pack(ids, width).long()
        return Trace({"tokens": tokens, "ended": torch.tensor([len(i) < width for i in ids])})


def look(objective: str, texts: list[str], prompts: list[str] | None = None) -> Look:
    """What an objective sees in these continuations."""
    model = Spoken(texts)
    (part,) = make_objectives(objective)
    codec = CodePoints()
    prompts = prompts or ["x"] * len(texts)
    together = Together([part], codec, model, None)
    packed = pack([codec.encode(p) for p in prompts], max(1, *map(len, prompts)))
    return part.look(together.read(model.trace(), {PROMPT: packed}))


def written(model: Any, prompts: list[str], **how: Any) -> list[str]:
    """The continuations of a model."""
    made = model if isinstance(model, LanguageModel) else language_model(model)
    assert made.codec is not None
    asked = Prompts([made.codec.encode(p) for p in prompts], made.codec)
    trace = made.run(asked, Writing(**how))
    return [made.out.decode([i for i in row if i >= 0]) for row in trace.outputs["tokens"].tolist()]
