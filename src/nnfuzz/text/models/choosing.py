"""From logits to the next id, and what is noted on the way. One object a batch; all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nnfuzz.text.codec import PAD
from nnfuzz.text.models.base import Shown, Writing

_EVERY_STEP = 1_000_003
"""Noise of step t is drawn from a generator seeded with the seed times this, plus t: nothing needs to be remembered."""


class Chooser:
    """Chooses ids step by step.

    Args:
        rows: of the batch. watch: ids whose log-probabilities are noted. end: the id that ends a continuation.
    """

    def __init__(self, rows: int, writing: Writing, watch: Sequence[int], end: int | None, device: torch.device):
        self.rows, self.writing, self.end = rows, writing, end
        self.watch = torch.tensor(list(watch), dtype=torch.long, device=device)
        self.alive = torch.ones(rows, dtype=torch.bool, device=device)
        self.length = 0
        self._shown = Shown()

    @property
    def over(self) -> bool:
        """All rows have ended, or there is no room for more."""
        return self.length >= self.writing.max_new or (self.end is not None and not bool(self.alive.any()))

    def step(self, logits: Tensor) -> Tensor:
        """``(rows, vocabulary)`` → the chosen ids ``(rows,)``; rows that have ended choose, but it is not noted."""
        logits = logits.float()
        top = logits.amax(1)
        bad = ~top.isfinite()
        logp = torch.log_softmax(logits, 1)
        if bool(bad.any()):
            logp = torch.where(bad[:, None], logits.nan_to_num(-1e9, 1e9, -1e9).log_softmax(1), logp)
        chosen = self._choose(logp)
        best = logp.topk(min(2, logp.shape[1]), 1).values
        gone = ~self.alive
        mine = logp.gather(1, chosen[:, None])[:, 0]
        margin = best[:, 0] - best[:, -1]
        self._shown.add(
            tokens=chosen.masked_fill(gone, PAD),
            logp=mine.masked_fill(gone, torch.nan),
            margin=margin.masked_fill(gone, torch.nan),
            bad=bad & self.alive,
        )
        if len(self.watch):
            self._shown.add(watched=logp[:, self.watch] if len(self.watch) < logp.shape[1] else logp)
        if self.end is not None:
            self.alive = self.alive & (chosen != self.end)
        self.length += 1
        return chosen

    def outputs(self) -> dict[str, Tensor]:
        """What was noted, filled up to ``max_new`` steps; the end itself is no part of the text."""
        made = {n: torch.stack(column, 1) for n, column in self._shown.columns.items()}
        missing = self.writing.max_new - self.length
        if missing:
            made = {n: _filled(t, missing) for n, t in made.items()}
        if self.end is not None:
            made["tokens"] = made["tokens"].masked_fill(made["tokens"] == self.end, PAD)
        return {**made, "ended": ~self.alive}

    def _choose(self, logp: Tensor) -> Tensor:
        """The likeliest id, or (Gumbel's trick) a draw: the largest of log-probability plus noise."""
        if not self.writing.temperature:
            return logp.argmax(1)
        rows = self.rows if self.writing.apart else 1
        noise = noise_of(self.writing, self.length, (rows, logp.shape[1]), logp.device)
        return (logp / self.writing.temperature + noise).argmax(1)


def noise_of(writing: Writing, step: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Gumbel noise of one step, float32: the same whenever it is asked for."""
    generator = torch.Generator(device).manual_seed(writing.seed * _EVERY_STEP + step)
    uniform = torch.rand(shape, generator=generator, device=device)
    return -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))


def _filled(column: Tensor, missing: int) -> Tensor:
    room = column.new_empty(len(column), missing, *column.shape[2:])
    empty = torch.nan if column.is_floating_point() else False if column.dtype == torch.bool else PAD
    return torch.cat([column, room.fill_(empty)], 1)


class Pooled:
    """Hidden states over time: their mean and the last of each row."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count: Tensor | None = None
        self._last: Tensor | None = None

    def add(self, states: Tensor, alive: Tensor) -> None:
        """``states``: ``(rows, d)`` after a step; rows that have ended are left as they were."""
        if self._sum is None or self._last is None or self._count is None:
            self._sum = torch.zeros_like(states, dtype=torch.float32)
            self._last = states.float()
            self._count = torch.zeros(len(states), device=states.device)
        if bool(alive.all()):
            self._sum += states
            self._last = states.float()
        else:
            self._sum += states * alive[:, None]
            self._last = torch.where(alive[:, None], states.float(), self._last)
        self._count += alive

    def layers(self) -> dict[str, Tensor]:
        if self._sum is None or self._last is None or self._count is None:
            return {}
        return {"mean": self._sum / self._count.clamp(min=1)[:, None], "last": self._last}
