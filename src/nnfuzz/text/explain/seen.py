"""One prompt run again with every step in view: which id was chosen, how likely it was, and what came next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nnfuzz.text.models.base import LanguageModel, Prompts, Writing
from nnfuzz.text.target import TextTarget
from nnfuzz.text.telling import first_bad, visible

UNKNOWN = "the model is a black box: it shows no probabilities, so why it chose what it wrote is not known"


@dataclass
class Seen:
    """``ids``: the continuation. ``logp``: float32 ``(steps, vocabulary)``, log-probabilities, with a step for the end
    where there is one; None of a black box."""

    model: LanguageModel
    ids: list[int]
    logp: Tensor | None
    bad: int | None = None
    """The first step without a distribution: what is written from there on is arbitrary."""

    @property
    def text(self) -> str:
        return self.model.out.decode(self.ids[: self.bad])

    def probability(self, step: int) -> float:
        """Of the id that was chosen. Needs ``logp``."""
        assert self.logp is not None
        return float(self.logp[step, self.ids[step]].exp())

    def step_at(self, character: int) -> int:
        """The step that wrote a character of the text."""
        if self.model.out.unit == "character":
            return character
        lengths = [len(self.model.out.decode(self.ids[: n + 1])) for n in range(len(self.ids))]
        return next((n for n, length in enumerate(lengths) if length > character), max(0, len(self.ids) - 1))

    def piece(self, id_: int) -> str:
        """An id as the reader sees it."""
        return "the end" if id_ in self.model.ends else f"'{visible(self.model.out.pieces([id_])[0])}'"

    def top(self, step: int, count: int = 3, but: int | None = None) -> list[tuple[str, float]]:
        """The likeliest ids of a step with their probabilities, without one of them if asked."""
        assert self.logp is not None
        row = self.logp[step].clone()
        if but is not None:
            row[but] = -torch.inf
        best = row.topk(min(count, len(row)))
        return [(self.piece(int(i)), float(p.exp())) for p, i in zip(best.values, best.indices, strict=True)]


def seen(model: LanguageModel, prompt: list[int], target: TextTarget) -> Seen:
    """Runs the prompt alone in one of the target's models."""
    watch = model.watch
    model.watch = range(model.out.size) if model.shows_probabilities else ()
    try:
        outputs = model.run(Prompts([prompt], target.codec), target.writing, states=False).outputs
    finally:
        model.watch = watch
    ids = [i for i in outputs["tokens"][0].tolist() if i >= 0]
    shown = outputs["watched"][0].float().cpu() if "watched" in outputs else None
    return Seen(model, ids, shown, first_bad(outputs))


def state_before(model: LanguageModel, ids: list[int], target: TextTarget) -> Tensor | None:
    """The hidden state ``(features,)`` out of which the id after these is chosen; None where none is shown."""
    if not model.shows_states:
        return None
    once: Writing = replace(target.writing, max_new=1)
    layers = model.run(Prompts([ids], target.codec), once, states=True).layers
    found = layers.get("mean" if model.classifies else "last")
    return None if found is None else found[0].flatten().float().cpu()


def percent(p: float) -> str:
    """``0.3 %``, ``97 %``: two figures."""
    return f"{100 * p:.2g} %" if p < 0.995 or p == 1 else f"{100 * p:.4g} %"
