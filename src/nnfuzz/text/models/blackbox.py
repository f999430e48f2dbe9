"""A function from prompts to texts, and nothing else known of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import PAD, CodePoints
from nnfuzz.text.given import counted, kind_of, shown
from nnfuzz.text.models.base import LanguageModel, Prompts, Writing

MOST_JUDGED = 100_000
"""Characters of an answer that are judged: what comes after them is left out, and counted in ``cut``."""
MOST_CHARACTERS = 1 << 25
"""Characters that the answers of one call may have together, as far as answers so far tell."""
BAD_BYTE = 0xDC80
"""Bytes that are no UTF-8 are shown as these code points, one a byte, as Python's ``surrogateescape`` does."""


class WrongAnswer(TypeError):
    """No text, from a function that has given texts before: it is the prompt's doing, and so a finding."""


class BlackBox(LanguageModel):
    """``generate(prompts) -> texts``; bytes are taken for UTF-8, and what is not is kept, since it may be the finding.

    Args:
        generate: takes a list of texts, gives as many texts (or bytes). ``max_new_tokens``, ``temperature`` and
            ``seed`` are passed where it has parameters of these names. Its whole answer is judged, however long.
        activations: optional: takes the same list, gives an array ``(n, ...)`` for coverage.
    """

    own_ids = False
    bounded = False
    shows_probabilities = False

    def __init__(self, generate: Callable[..., Any], activations: Callable[..., Any] | None = None, name: str = ""):
        super().__init__()
        if activations is not None and not callable(activations):
            raise UsageError(
                f"the model's attribute activations is {kind_of(activations)}, but it is a function from prompts to an "
                "array: make it one, or remove it"
            )
        self.name = name or getattr(generate, "__name__", type(generate).__name__)
        self.generate, self.activations = generate, activations
        self.out = CodePoints()
        self.shows_states = activations is not None
        self._takes = _parameters(generate)
        self._longest = 1
        self.cut = 0
        """Answers that were longer than ``MOST_JUDGED``."""
        self.proven = False
        """Whether it has answered as it should: from then on a wrong answer is no mistake of whoever wrote it."""

    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        options = {"max_new_tokens": writing.max_new, "temperature": writing.temperature, "seed": writing.seed}
        told = {n: v for n, v in options.items() if n in self._takes}
        if writing.apart:
            if "seed" not in self._takes:
                raise UsageError("the model takes no seed, so it cannot be asked for several draws")
            drawn = ({**told, "seed": writing.seed + i} for i in range(len(prompts)))
            answers = [self._ask([p], d)[0] for p, d in zip(prompts.texts, drawn, strict=True)]
        else:
            answers = self._in_parts(prompts.texts, told)
        tokens = torch.full((len(prompts), max(1, *map(len, answers))), PAD, dtype=torch.int64)
        ended = torch.ones(len(prompts), dtype=torch.bool)
        for row, text in enumerate(answers):
            points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)
            tokens[row, : len(points)] = torch.from_numpy(points.astype(np.int64))
        self.spent += sum(map(len, prompts.texts)) + int((tokens != PAD).sum())
        layers = {"mean": self._states(prompts.texts)} if states and self.activations is not None else {}
        return Trace({"tokens": tokens, "ended": ended}, layers)

    def _in_parts(self, texts: list[str], told: dict[str, Any]) -> list[str]:
        """All at once, unless answers have been so long that they would fill the memory."""
        answers: list[str] = []
        while len(answers) < len(texts):
            room = max(1, MOST_CHARACTERS // self._longest)
            answers += self._ask(texts[len(answers) : len(answers) + room], told)
        return answers

    def _ask(self, texts: list[str], told: dict[str, Any]) -> list[str]:
        """The answers, as far as they are judged."""
        answers = self.generate(list(texts), **told)
        if not isinstance(answers, Sequence) or isinstance(answers, str | bytes | bytearray):
            raise self._wrong(
                f"{self.name} was given a list of {counted(texts, 'prompt')} and gave {kind_of(answers)}, but "
                "generate(prompts) returns a list of as many texts",
                f"returns {kind_of(answers)}, not a list of texts",
            )
        if len(answers) != len(texts):
            raise self._wrong(
                f"{self.name} was given {counted(texts, 'prompt')} and gave {counted(answers, 'answer')}, but "
                "generate(prompts) returns a text for every prompt",
                f"returns {'fewer' if len(answers) < len(texts) else 'more'} answers than prompts",
            )
        found = [self._text(a, prompt) for a, prompt in zip(answers, texts, strict=True)]
        self.proven = True
        return found

    def _wrong(self, mistake: str, happening: str) -> Exception:
        return WrongAnswer(happening) if self.proven else UsageError(f"{mistake}: correct what it returns")

    def _text(self, answer: Any, prompt: str) -> str:
        if isinstance(answer, str | bytes | bytearray):
            self._longest = max(self._longest, len(answer))
        if isinstance(answer, bytes | bytearray):  # a character has four bytes at most
            answer = answer[: 4 * MOST_JUDGED + 4].decode("utf-8", "surrogateescape")
        if not isinstance(answer, str):
            raise self._wrong(
                f"{self.name} gave {kind_of(answer)} for the prompt {shown(prompt)}, but generate(prompts) returns a "
                "list of texts (or bytes)",
                f"returns {kind_of(answer)} for this prompt, not a text",
            )
        self.cut += len(answer) > MOST_JUDGED
        return answer[:MOST_JUDGED]

    def _states(self, texts: list[str]) -> Tensor:
        assert self.activations is not None
        given = self.activations(list(texts))
        expected = f"activations(prompts) returns an array of numbers with a row for each of {counted(texts, 'prompt')}"
        try:
            found = torch.as_tensor(given).detach().float()
        except (TypeError, ValueError, RuntimeError) as error:
            told = " ".join(str(error).split())[:120]
            raise UsageError(
                f"{self.name}: activations gave {kind_of(given)} that is no array ({told}), but {expected}: correct "
                "what it returns"
            ) from error
        if found.dim() < 1 or len(found) != len(texts):
            raise UsageError(
                f"{self.name}: activations gave shape {list(found.shape)}, but {expected}: correct what it returns"
            )
        return found.reshape(len(texts), -1)


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
