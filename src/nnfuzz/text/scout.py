"""Where a wish would begin well: places in texts that the model itself draws after prompts of the corpus.

What a model says rarely, it says after what it has seen before it. Draws at temperature 1 bring such contexts about as
often as the model thinks them likely; and every step of a draw shows the chance of each watched id, so that one draw
serves all wishes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nnfuzz.text.codec import PAD, Codec
from nnfuzz.text.models.base import LanguageModel, Prompts, Writing

UNKNOWN = -1.5
"""Log-probability that an id of a wish is taken to have where no draw shows it."""
OWN = 4
"""The first so-manieth of a draw is no place: it would hardly be further than the prompt, which may be a dead end that
an earlier turn left in the corpus."""
ENDING = 4
"""Places whose prompts end with the same so many ids are alike: where one of them leads nowhere, so do the others."""
Start = tuple[list[int], int]
"""A prompt, and the entry of the corpus that it descends from."""
Scored = tuple[float, list[int], int]
"""The score of a prompt's wish, the prompt, and the entry of the corpus that it comes from."""


class Endings:
    """Which endings of prompts have served each goal."""

    def __init__(self) -> None:
        self.used: dict[int, dict[tuple[int, ...], None]] = {}

    def varied(self, scored: list[Scored], goal: int, count: int) -> list[Scored]:
        """The best prompt of each of ``count`` endings, those first that have not served the goal; best first."""
        used = self.used.setdefault(goal, {})
        best: dict[tuple[int, ...], Scored] = {}
        for row in sorted(scored, key=lambda r: -r[0]):
            best.setdefault(tuple(row[1][-ENDING:]), row)
        chosen = sorted(best, key=lambda end: (end in used, -best[end][0]))[:count]
        used.update(dict.fromkeys(chosen))
        return sorted((best[end] for end in chosen), key=lambda r: -r[0])

    def to_json(self) -> list[Any]:
        return [[goal, [list(end) for end in used]] for goal, used in self.used.items()]

    def load(self, data: list[Any]) -> None:
        self.used = {goal: {tuple(end): None for end in used} for goal, used in data}


@dataclass
class Draws:
    """``starts``: what was continued. ``tokens``: int64 ``(rows, T)``, −1 after the end. ``logp``: float32 ``(rows, T,
    vocabulary)`` of every step, NaN where ids were not watched. ``begins``: bool ``(rows, T)``, places before which no
    word is unfinished."""

    starts: list[Start]
    tokens: Tensor
    logp: Tensor
    begins: Tensor

    def places(self, wished: list[int], count: int, longest: int, *, within_word: bool) -> list[Start]:
        """The ``count`` prompts (cut to their last ``longest`` ids) after which the wish is likeliest, as far as the
        draw shows it: it does for the first id, and for the next ones where it said those before them.
        ``within_word``: a word may be unfinished there."""
        fit = self.tokens != PAD
        fit[:, : fit.shape[1] // OWN] = False
        fit = fit if within_word else fit & self.begins
        chance, said = torch.zeros(self.tokens.shape), torch.ones_like(fit)
        for n, id_ in enumerate(wished):
            after = self.logp[:, n:, id_]
            shown = torch.full_like(chance, UNKNOWN)
            shown[:, : after.shape[1]] = after.nan_to_num(UNKNOWN)
            chance += torch.where(said, shown, UNKNOWN)
            same = torch.zeros_like(said)
            same[:, : after.shape[1]] = self.tokens[:, n:] == id_
            said &= same
        best = chance.masked_fill(~fit, -torch.inf).flatten().topk(min(count, int(fit.sum()))).indices.tolist()
        made: dict[tuple[int, ...], Start] = {}
        for at in best:
            row, step = divmod(at, self.tokens.shape[1])
            ids, entry = self.starts[row]
            prompt = [*ids, *self.tokens[row, :step].tolist()][-longest:]
            made.setdefault(tuple(prompt), (prompt, entry))
        return list(made.values())


def draws(model: LanguageModel, codec: Codec, starts: list[Start], writing: Writing, seed: int, open_: Tensor) -> Draws:
    """Continues each start by a draw of its own.

    Args:
        open_: bool ``(vocabulary,)``, ids after whose text a word is unfinished.
    """
    drawn = replace(writing, temperature=1.0, seed=seed, apart=True)
    outputs = model.run(Prompts([ids for ids, _ in starts], codec), drawn, states=False).outputs
    tokens = outputs["tokens"].cpu()
    logp = torch.full((*tokens.shape, model.out.size), torch.nan)
    if len(model.watch) and "watched" in outputs:
        logp[:, :, torch.tensor(list(model.watch))] = outputs["watched"].cpu()
    last = torch.tensor([ids[-1] if ids else PAD for ids, _ in starts])
    before = torch.cat([last[:, None], tokens[:, :-1]], 1)
    begins = (before == PAD) | ~open_[before.clamp(min=0)]
    return Draws(starts, tokens, logp, begins)
