"""The gradient mutator: a turn takes a few entries of the corpus several steps toward their targets.

Nothing lives on between turns but the table of targets and the corpus: the nearest candidate of each slot is admitted,
and the next turn may start from it. So a run resumes exactly, and mutation and gradients feed one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.breed import Brood, Group
from nnfuzz.corpus import Bucket, Corpus
from nnfuzz.gradient.allowance import Allowance
from nnfuzz.gradient.guides import Distances, Guide, ScoreGuide, SiteGuide
from nnfuzz.gradient.steps import FIRST_STEP, Stepper, followable
from nnfuzz.gradient.targets import TargetTable
from nnfuzz.schedule import Schedule
from nnfuzz.space import Anchors, Batch, InputSpace, cat, size

NAME = "gradient"
SLOTS = {"sample": 32, "batch": 4}
"""Slots of a turn: independent rows share one traced run, whole candidates are traced one by one."""
STEPS = {"sample": 8, "batch": 8}
OFTEN = 4
"""A turn comes with each so many batches at least, where turns have no allowance."""
COST = 8
"""A traced candidate costs about as much as so many plain ones; the bandit weighs what it earns by that."""
MOST_DEAD = 6
"""So many turns in a row without a gradient end all turns."""
CONSTANT = 3
"""A turn counts as so many where no distance depends on the input at all, as in a network that divides by constants
only: but for the control flow of a model that is how it stays."""


@dataclass
class Turn:
    """What one turn made. ``best``: per slot the row of ``brood`` that came nearest to its target (−1: none)."""

    brood: Brood
    keys: list[str | None]
    best: list[int]
    nearest: list[float]
    improved: int = 0


class Climber:
    """Makes gradient broods.

    Args:
        guides: asked in turn; each names its own targets.
        confirmed: site keys of findings so far (asked at each turn), whose targets drop out.
        slots: candidates that a turn takes; by default as many as usual with this unit.
        allowance: what turns may take of the run, where plain candidates run elsewhere and cost much less.
    """

    name = NAME
    """Of its turns, for the bandit and the statistics."""
    allowance: Allowance | None = None
    _constant = False
    """Whether nothing that the latest look showed depends on the input."""

    def __init__(
        self,
        guides: Sequence[Guide],
        space: InputSpace,
        corpus: Corpus,
        schedule: Schedule,
        unit: str,
        device: torch.device,
        confirmed: Callable[[], set[str]],
        slots: int | None = None,
        allowance: Allowance | None = None,
    ):
        self.guides, self.space, self.corpus, self.schedule = guides, space, corpus, schedule
        self.unit, self.device, self.confirmed = unit, device, confirmed
        self.slots, self.allowance = slots or SLOTS[unit], allowance
        self.tables = [TargetTable() for _ in guides]
        self.specs = followable(space)
        self.generator = torch.Generator(device)
        self.dead = 0
        self.trouble = ""
        self.late: Callable[[], bool] = lambda: False

    @property
    def alive(self) -> bool:
        """False once no gradient ever reaches an input, or tracing fails: the turns go to mutation."""
        return bool(self.specs) and self.dead < MOST_DEAD and not self.trouble

    @property
    def over(self) -> bool:
        """True once no turn can bring anything, whoever asks for one: what is dead otherwise may come back."""
        return self._constant and not self.alive

    def wants_turn(self, batch: int) -> bool:
        """The first batches, and then one in four while targets are open, or as many as there is an allowance for;
        more turns come from the bandit."""
        if not self.alive or batch <= 2:
            return self.alive
        often = self.allowance is not None or batch % OFTEN == 0
        return often and any(t.open() for t in self.tables)

    @property
    def most(self) -> int:
        """Candidates that one turn may make."""
        return self.slots * STEPS[self.unit]

    def turn(self, batch: int, rng: np.random.Generator) -> Turn | None:
        """Several steps for a few slots; None when there was nothing to follow."""
        at = batch % len(self.guides) if len(self.guides) > 1 else 0
        guide, table = self.guides[at], self.tables[at]
        self._drop_confirmed(guide, table)
        self.generator.manual_seed(int(rng.integers(1 << 62)))
        bucket, picked = self._starts(table, rng)
        try:
            made = self._climb(guide, table, bucket, picked, rng)
        except (Exception, SystemExit) as error:  # what cannot be traced is still mutated; the run says so
            self.trouble = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            return None
        self.dead = 0 if made is not None else self.dead + (CONSTANT if self._constant else 1)
        return made

    # ------------------------------------------------------------------ starting points

    def _starts(self, table: TargetTable, rng: np.random.Generator) -> tuple[Bucket, NDArray[np.int64]]:
        """Half the slots start where an open target was nearest, the others anywhere in the corpus."""
        count = self.slots
        bucket, picked = self.schedule.draw(count, rng)
        best = [table.states[k].entry for k in table.open() if table.states[k].entry in self.corpus.place]
        near = [i for i in best if self.corpus.buckets[self.corpus.place[i][0]] is bucket]
        if near:
            half = count // 2
            chosen = rng.integers(0, len(near), half)
            picked = picked.copy()
            picked[:half] = [self.corpus.place[near[int(c)]][1] for c in chosen]
        return bucket, picked

    def _preferred(self, table: TargetTable, bucket: Bucket, picked: NDArray[np.int64]) -> list[str | None]:
        """A slot that starts at a target's nearest entry goes on with that target."""
        owner = {s.entry: k for k, s in table.states.items() if k not in table.done}
        half = len(picked) // 2
        return [owner.get(int(bucket.ids[int(r)])) if i < half else None for i, r in enumerate(picked)]

    # ------------------------------------------------------------------ the climb

    def _climb(
        self, guide: Guide, table: TargetTable, bucket: Bucket, picked: NDArray[np.int64], rng: np.random.Generator
    ) -> Turn | None:
        index = torch.from_numpy(picked).to(self.device)
        anchor_index = torch.from_numpy(bucket.anchor_rows[picked]).to(self.device)
        anchors = bucket.anchors(self.space).take(anchor_index)
        x = bucket.gather(index)
        count = len(picked)
        keys = self._preferred(table, bucket, picked)
        signed = torch.from_numpy(rng.random(count) < 0.6).to(self.device)
        first = torch.from_numpy(FIRST_STEP * np.exp(rng.uniform(-2.0, 1.0, count))).to(self.device)
        stepper = Stepper(self.specs, count, signed, first)
        nearest = torch.full((count,), math.inf, dtype=torch.float64, device=self.device)
        best_row, best_x = [-1] * count, {n: t.clone() for n, t in x.items()}
        emitted: list[Batch] = []
        for step in range(STEPS[self.unit] + 1):
            distance, gradients = self._measure(guide, table, x, keys, rng)
            if distance is None:
                break
            better = distance < nearest
            for slot in better.nonzero()[:, 0].tolist():
                best_row[slot] = (step - 1) * count + slot if step else -1
            nearest = torch.where(better, distance, nearest)
            best_x = {n: _where(better, t, best_x[n]) for n, t in x.items()}
            if step:
                stepper.learn(better)
            edge = torch.tensor([k is not None and guide.has_edge(k) for k in keys], device=self.device)
            frozen = (edge & (distance <= 0)) | ~distance.isfinite()
            if step == STEPS[self.unit] or bool(frozen.all()) or self.late():
                break
            x = stepper.move(
                {n: _where(better, t, best_x[n]) for n, t in x.items()}, gradients, distance, frozen, self.generator
            )
            x = {n: t.clone() for n, t in self.space.project(x, anchors).items()}
            emitted.append(x)
        return self._finish(table, bucket, picked, anchor_index, keys, emitted, best_row, nearest)

    def _measure(
        self, guide: Guide, table: TargetTable, x: Batch, keys: list[str | None], rng: np.random.Generator
    ) -> tuple[Tensor | None, Batch]:
        """Distance of every slot to its target (inf where it has none) and the gradients; slots without a target
        choose one of those that their candidate shows."""
        movable = {s.name for s in self.specs}
        if self.allowance is not None:
            self.allowance.pay(len(keys))
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {n: t.detach().clone().requires_grad_(n in movable) for n, t in x.items()}
            found: Distances = guide.look(leaves, table.skip)
            distances = [d for seen in found for d in seen.values()]
            lone = len(self.guides) == 1  # another guide may have what this one lacks
            self._constant = lone and bool(distances) and not any(d.requires_grad for d in distances)
            live: list[Tensor] = []
            values = torch.full((len(keys),), math.inf, dtype=torch.float64)
            for slot, seen in enumerate(found):
                if keys[slot] is None or keys[slot] not in seen:
                    keys[slot] = table.choose([k for k, d in seen.items() if d.requires_grad], rng)
                key = keys[slot]
                if key is None or key not in seen:
                    continue
                values[slot] = seen[key].detach().double().nan_to_num(math.inf, math.inf, -1.0)
                if seen[key].requires_grad and bool(seen[key].isfinite()):
                    live.append(seen[key].double())
            if not live:
                return None, {}
            wrt = [leaves[s.name] for s in self.specs]
            got = torch.autograd.grad(torch.stack(live).sum(), wrt, allow_unused=True)
        gradients = {s.name: g.detach() for s, g in zip(self.specs, got, strict=True) if g is not None}
        if not any(bool((g != 0).any()) for g in gradients.values()):
            return None, {}
        return values.to(self.device), gradients

    def _finish(
        self,
        table: TargetTable,
        bucket: Bucket,
        picked: NDArray[np.int64],
        anchor_index: Tensor,
        keys: list[str | None],
        emitted: list[Batch],
        best_row: list[int],
        nearest: Tensor,
    ) -> Turn | None:
        if not emitted:
            return None
        turns = len(emitted)
        batch = cat(emitted)
        rows = np.tile(picked, turns)
        anchors: Anchors = bucket.anchors(self.space).take(anchor_index.repeat(turns))
        group = Group(NAME, slice(0, size(batch)))
        cost = COST if self.allowance is None else max(COST, round(self.allowance.price(len(keys)) / len(keys)))
        turn = Turn(Brood(batch, bucket, rows, [group], anchors, cost=cost), keys, best_row, nearest.tolist())
        keep = []
        for slot, key in enumerate(keys):
            if key is None or not math.isfinite(turn.nearest[slot]):
                continue
            turn.improved += table.measured(key, turn.nearest[slot])
            if best_row[slot] >= 0 and turn.nearest[slot] <= table.states[key].best:
                keep.append(best_row[slot])
        turn.brood.keep = np.unique(np.array(keep, np.int64))
        return turn

    # ------------------------------------------------------------------ what came of it

    def judged(self, turn: Turn) -> None:
        """After the objectives have seen the brood: the next turn starts from what was admitted, and targets that were
        reached without a finding at their site lose attention."""
        sites = self.confirmed()
        for table in self.tables:
            for slot, key in enumerate(turn.keys):
                state = table.states.get(key or "")
                if state is not None and turn.nearest[slot] <= state.best:
                    state.entry = turn.brood.admitted.get(turn.best[slot], state.entry)
        for guide, table in zip(self.guides, self.tables, strict=True):
            for slot, key in enumerate(turn.keys):
                if (
                    key in table.states
                    and isinstance(guide, SiteGuide)
                    and turn.nearest[slot] <= 0
                    and guide.seen.get(key) not in sites
                ):
                    table.states[key].reached += 1

    def _drop_confirmed(self, guide: Guide, table: TargetTable) -> None:
        sites = self.confirmed()
        if isinstance(guide, SiteGuide):
            table.done |= {k for k, site in guide.seen.items() if site in sites}

    def report(self) -> list[tuple[str, float, bool]]:
        """Targets with their nearest distance and whether they are confirmed, nearest first."""
        lines = []
        for guide, table in zip(self.guides, self.tables, strict=True):
            if not isinstance(guide, ScoreGuide):
                lines += [(k, s.best, k in table.done) for k, s in table.states.items()]
        return sorted(lines, key=lambda line: (not line[2], line[1]))

    def to_json(self) -> dict[str, Any]:
        seen = [getattr(g, "seen", {}) for g in self.guides]
        spent = self.allowance.spent if self.allowance is not None else 0.0
        return {"tables": [t.to_json() for t in self.tables], "seen": seen, "dead": self.dead, "trouble": self.trouble,
                "constant": self._constant, "spent": spent}  # fmt: skip

    def load(self, data: dict[str, Any]) -> None:
        for table, saved in zip(self.tables, data.get("tables", []), strict=False):
            table.load(saved)
        for guide, seen in zip(self.guides, data.get("seen", []), strict=False):
            if isinstance(guide, SiteGuide):
                guide.seen.update(seen)
        self.dead, self.trouble = data.get("dead", 0), data.get("trouble", "")
        self._constant = data.get("constant", False)
        if self.allowance is not None:
            self.allowance.spent = data.get("spent", 0.0)


def _where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)
