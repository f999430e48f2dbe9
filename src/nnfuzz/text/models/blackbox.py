"""A function from prompts to texts, and nothing else known of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import PAD, CodePoints
from nnfuzz.text.models.base import LanguageModel, Prompts, Writing

BAD_BYTE = 0xDC80
"""Bytes that are no UTF-8 are shown as these code points, one a byte, as Python's ``surrogateescape`` does."""


class BlackBox(LanguageModel):
    """``generate(prompts) -> texts``; bytes are taken for UTF-8, and what is not is kept, since it may be the finding.

    Args:
        generate: takes a list of texts, gives as many texts (or bytes). ``max_new_tokens``, ``temperature`` and
            ``seed`` are passed where it has parameters of these names.
        activations: optional: takes the same list, gives an array ``(n, ...)`` for coverage.
    """

    own_ids = False
    shows_probabilities = False

    def __init__(self, generate: Callable[..., Any], activations: Callable[..., Any] | None = None, name: str = ""):
        super().__init__()
        self.name = name or getattr(generate, "__name__", type(generate).__name__)
        self.generate, self.activations = generate, activations
        self.out = CodePoints()
        self.shows_states = activations is not None
        self._takes = _parameters(generate)

    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        options = {"max_new_tokens": writing.max_new, "temperature": writing.temperature, "seed": writing.seed}
        told = {n: v for n, v in options.items() if n in self._takes}
        if writing.apart:
            if "seed" not in self._takes:
                raise UsageError("the model takes no seed, so it cannot be asked for several draws")
            answers = [self._ask([p], {**told, "seed": writing.seed + i})[0] for i, p in enumerate(prompts.texts)]
        else:
            answers = self._ask(prompts.texts, told)
        tokens = torch.full((len(prompts), writing.max_new), PAD, dtype=torch.int64)
        ended = torch.ones(len(prompts), dtype=torch.bool)
        for row, text in enumerate(answers):
            cut = text[: writing.max_new]
            tokens[row, : len(cut)] = torch.tensor([ord(c) for c in cut], dtype=torch.int64)
            ended[row] = len(text) < writing.max_new
        self.spent += sum(map(len, prompts.texts)) + int((tokens != PAD).sum())
        layers = {"mean": self._states(prompts.texts)} if states and self.activations is not None else {}
        return Trace({"tokens": tokens, "ended": ended}, layers)

    def _ask(self, texts: list[str], told: dict[str, Any]) -> list[str]:
        answers = self.generate(list(texts), **told)
        if not isinstance(answers, Sequence) or isinstance(answers, str | bytes) or len(answers) != len(texts):
            count = f"{len(answers)} answers" if isinstance(answers, list | tuple) else f"a {type(answers).__name__}"
            raise UsageError(
                f"{self.name} was given {len(texts)} prompts and gave {count}: generate(prompts) returns a list of as "
                "many texts"
            )
        return [self._text(a) for a in answers]

    def _text(self, answer: Any) -> str:
        if isinstance(answer, bytes):
            return answer.decode("utf-8", "surrogateescape")
        if not isinstance(answer, str):
            raise UsageError(f"{self.name} gave a {type(answer).__name__}: generate(prompts) returns a list of texts")
        return answer

    def _states(self, texts: list[str]) -> Tensor:
        assert self.activations is not None
        found = torch.as_tensor(self.activations(list(texts))).detach().float()
        if found.dim() < 1 or len(found) != len(texts):
            raise UsageError(f"activations(prompts) gave shape {list(found.shape)} for {len(texts)} prompts")
        return found.reshape(len(texts), -1)


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
