"""From logits to the next id, and what is noted on the way. One object a batch; all rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nnfuzz.text.codec import PAD
from nnfuzz.text.models.base import OutOfTime, Shown, Writing, never

_EVERY_STEP = 1_000_003
"""Noise of step t is drawn from a generator seeded with the seed times this, plus t: nothing needs to be remembered."""


BLOCK = 1 << 17
"""Logits (numbers, over rows, steps and vocabulary) that are kept before what is to be noted is made of them: some
steps in one call cost less than each by itself, but only while they are still in a processor's cache."""


class _Step(NamedTuple):
    """Of every row: the largest logit and whose it is, the id chosen, whether it was alive, whether it had no
    distribution (None: all had one)."""

    top: Tensor
    likeliest: Tensor
    chosen: Tensor
    alive: Tensor
    bad: Tensor | None


class Chooser:
    """Chooses ids step by step.

    Args:
        rows: of the batch. watch: ids whose log-probabilities are noted. ends: the ids that end a continuation.
        measures: whether the size of logits is noted. late: says that the time is up.
    """

    def __init__(
        self,
        rows: int,
        writing: Writing,
        watch: Sequence[int],
        ends: Sequence[int],
        device: torch.device,
        *,
        measures: bool = False,
        late: Callable[[], bool] = never,
    ):
        self.late = late
        self.reach = torch.zeros(rows, device=device) if measures else None
        self.rows, self.writing = rows, writing
        self.ends = torch.tensor(list(ends), dtype=torch.long, device=device)
        self.watch = torch.tensor(list(watch), dtype=torch.long, device=device)
        self.alive = torch.ones(rows, dtype=torch.bool, device=device)
        self.length = 0
        self._shown = Shown()
        self._kept: list[_Step] = []
        self._logits: Tensor | None = None
        """Room for the logits of the steps that are kept, ``(rows, steps, vocabulary)``."""

    @property
    def over(self) -> bool:
        """All rows have ended, or there is no room for more."""
        return self.length >= self.writing.max_new or (len(self.ends) > 0 and not bool(self.alive.any()))

    def step(self, logits: Tensor) -> Tensor:
        """``(rows, vocabulary)`` → the chosen ids ``(rows,)``; rows that have ended choose, but it is not noted.
        Raises ``OutOfTime``."""
        if self.late():
            raise OutOfTime(
                f"the time was up after {self.length:,} of {self.writing.max_new:,} steps of the first texts: give a "
                "longer --max-time (max_seconds), a smaller --max-new, or fewer seeds"
            )
        if self.reach is not None:
            self.reach = torch.maximum(self.reach, reach(logits) * self.alive)
        logits = logits.float()
        top, likeliest = logits.max(1)
        bad = None
        if not math.isfinite(float(top.sum())):  # or large numbers together
            bad = ~top.isfinite()
            logits = torch.where(bad[:, None], logits.nan_to_num(-1e9, 1e9, -1e9), logits)
            top, likeliest = logits.max(1)
        chosen = self._drawn(logits) if self.writing.temperature else likeliest
        self._keep(logits, _Step(top, likeliest, chosen, self.alive, bad))
        if len(self.ends):
            self.alive = self.alive & ~torch.isin(chosen, self.ends)
        self.length += 1
        return chosen

    def outputs(self) -> dict[str, Tensor]:
        """What was noted, filled up to ``max_new`` steps; the end itself is no part of the text."""
        self._note()
        made = {n: torch.cat(column, 1) for n, column in self._shown.columns.items()}
        missing = self.writing.max_new - self.length
        if missing:
            made = {n: _filled(t, missing) for n, t in made.items()}
        if len(self.ends):
            made["tokens"] = made["tokens"].masked_fill(torch.isin(made["tokens"], self.ends), PAD)
        if self.reach is not None:
            made["reach"] = self.reach
        return {**made, "ended": ~self.alive}

    def _keep(self, logits: Tensor, step: _Step) -> None:
        rows, vocabulary = logits.shape
        if self._logits is None:
            room = min(self.writing.max_new - self.length, max(1, -(-BLOCK // logits.numel())))
            self._logits = logits.new_empty(rows, room, vocabulary)
        self._logits[:, len(self._kept)] = logits
        self._kept.append(step)
        if len(self._kept) == self._logits.shape[1]:
            self._note()

    def _note(self) -> None:
        if not self._kept or self._logits is None:
            return
        logits = self._logits[:, : len(self._kept)]
        top, likeliest, chosen, alive = (
            torch.stack([getattr(step, name) for step in self._kept], 1)
            for name in ("top", "likeliest", "chosen", "alive")
        )
        none = torch.zeros_like(self.alive)
        bad = torch.stack([none if step.bad is None else step.bad for step in self._kept], 1)
        self._kept, self._logits = [], None
        logp = torch.log_softmax(logits, 2)
        mine = logp.gather(2, chosen[:, :, None])[:, :, 0]
        second = logits.scatter_(2, likeliest[:, :, None], -torch.inf).amax(2) if logits.shape[2] > 1 else top
        margin = top - second
        self._shown.add(
            tokens=chosen.masked_fill(~alive, PAD),
            logp=mine.masked_fill(~alive, torch.nan),
            margin=margin.masked_fill(~alive, torch.nan),
            bad=bad & alive,
        )
        if len(self.watch):
            self._shown.add(watched=logp[:, :, self.watch] if len(self.watch) < logp.shape[2] else logp)

    def _drawn(self, logits: Tensor) -> Tensor:
        """A draw (Gumbel's trick): the largest of log-probability plus noise."""
        logp = torch.log_softmax(logits, 1)
        rows = self.rows if self.writing.apart else 1
        noise = noise_of(self.writing, self.length, (rows, logp.shape[1]), logp.device)
        return (logp / self.writing.temperature + noise).argmax(1)


def reach(logits: Tensor) -> Tensor:
    """``(rows, vocabulary)`` → float32 ``(rows,)``, 0 … 1: the largest finite magnitude in powers of two, as a share of
    those that the dtype has. What is not finite already does not count."""
    size = logits.detach().abs()
    size = torch.where(size.isfinite(), size, 0).amax(1).double()
    limit = torch.finfo(logits.dtype if logits.is_floating_point() else torch.float32).max
    return (torch.log2(1 + size) / math.log2(limit)).clamp(max=1.0).float()


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
    """Hidden states over time: their mean and the last of each row. ``axis``: of the rows."""

    def __init__(self, axis: int = 0) -> None:
        self.axis = axis
        self._sum: Tensor | None = None
        self._count: Tensor | None = None
        self._last: Tensor | None = None

    def add(self, states: Tensor, alive: Tensor) -> None:
        """States after a step; rows that have ended are left as they were."""
        if self._sum is None or self._last is None or self._count is None:
            self._sum = torch.zeros_like(states, dtype=torch.float32)
            self._last = states.float()
            self._count = torch.zeros(len(alive), device=states.device)
        if bool(alive.all()):
            self._sum += states
            self._last = states.float()
        else:
            there = self._by_row(alive, states)
            self._sum += states * there
            self._last = torch.where(there, states.float(), self._last)
        self._count += alive

    def layers(self) -> dict[str, Tensor]:
        """``mean`` and ``last``, float32 ``(rows, features)``."""
        if self._sum is None or self._last is None or self._count is None:
            return {}
        mean = self._sum / self._by_row(self._count.clamp(min=1), self._sum)
        return {n: t.movedim(self.axis, 0).flatten(1) for n, t in (("mean", mean), ("last", self._last))}

    def _by_row(self, values: Tensor, states: Tensor) -> Tensor:
        """One value a row, in a shape that goes with the states."""
        return values.view([-1 if i == self.axis else 1 for i in range(states.dim())])
