"""Arm: batches chosen for what they do to the weights.

A step on a batch x moves the weights θ against ∇L(θ; x), and with them the distance D of the scouts' nearest input by
−η ∇D·∇L(θ; x) to first order. So x climbs J(x) = ∇D·∇L(θ; x): what the network is taught is whatever brings the edge
nearer,
even where the operand's own gradient by x has died. J is taken as the difference of two losses, L(θ + εv; x) − L(θ −
εv; x)
with v = ∇D: only first derivatives, and its ascent by x costs two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.frozen import NEAR
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.moves import Rprop
from nnfuzz.training.program import Batch
from nnfuzz.training.renewal import Renewal
from nnfuzz.training.scout import Aim, Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Snapshot, Walk, seeded

REACH = 0.05  # length of εv relative to the weights: long enough to be above rounding, short enough to be a slope
FAR, FALLEN = 0.5, 0.25  # of the way: where records begin, and how far below its record an arm is lost
STALE, LEAST = 10, 6  # rounds without a record until it goes back there; training steps of a round then


@dataclass(frozen=True)
class Style:
    """aim: which of the scouts' inputs the weights are drawn to. descent: scout steps, climb: steps on J and
    repeat: training steps a round. scaled: v divided by the optimizer's own scale (Adam, Adagrad). compose: propose
    other batches
    (rows of one label, extreme rows and noise, the scouts' row) and take those that J prefers. noise: search it in its
    range too,
    instead of drawing it for every step."""

    aim: Aim = "best"
    descent: int = 3
    climb: int = 2
    repeat: int = 1
    scaled: bool = False
    compose: bool = False
    noise: bool = False

    def __str__(self) -> str:
        words = [f"lookahead {self.aim}", f"x{self.repeat}" if self.repeat > 1 else ""]
        words += [word for word in ("scaled", "noise") if getattr(self, word)] + ["composed"] * self.compose
        return " ".join(w for w in words if w)


@dataclass(frozen=True, eq=False)
class Record:
    """Where an arm was nearest: the walk, and all that moves with it."""

    walk: Snapshot
    batch: Batch
    scouts: Batch
    movers: dict[str, Rprop]


class Lookahead(Arm):
    def __init__(self, walk: Walk, stream: Stream, lens: Lens, target: Target, style: Style, start: int = 0) -> None:
        super().__init__(walk, stream, target)
        self.style, self.name = style, str(style)
        self.scout = Scout(stream, lens, [target], first=start, noise=style.noise)
        self.batch: Batch = dict(stream[start])
        self._movers: dict[str, Rprop] = {}
        self._groups = stream.groups()
        self._renewal = Renewal(stream, walk.program)
        self._record: Record | None = None
        self._stale, self._repeat = 0, style.repeat

    def round(self) -> Hit | None:
        """Scouts look, the batch climbs, the weights follow."""
        seeded(self.walk.seed * 31 + self.rounds)
        self.rounds += 1
        style = self.style
        if not style.noise:
            self.batch = self.stream.noisy(self.batch, self.rounds)
            self.scout.batch = self.stream.noisy(self.scout.batch, self.rounds)
        self.scout.descend(self.walk, style.descent, style.aim)
        look = seeded(self.walk.seed * 31 + self.rounds)
        v = self._scaled(self.scout.direction(self.walk, style.aim))
        distance, row = self.scout.nearest()
        self.charge(style.descent + 1, self.scout.lens, self.scout.rows)
        if self._lost(distance):
            return None
        if distance < self.near and self.covered > FAR and (hit := self._press()):
            return hit
        self.near = min(self.near, distance)
        if (distance < NEAR or self.rounds % 16 == 0) and (
            hit := self.check_scouts(self.scout, self.stream[0] | self._noise(), look)
        ):
            return hit
        self._climb(v, row)
        for _ in range(self._repeat):
            if hit := self.train(self.batch):
                return hit
        self._replace()
        return None

    def _lost(self, distance: float) -> bool:
        """Records of the second half of the way are kept. Who has long been away from his goes back there, and makes
        fewer steps at a time: what momentum has turned would not come back by itself. Where distances are random
        (dropout) a record is luck, and none is kept."""
        if self.target is None or not self.walk.returns or self.scout.lens.random:
            return False
        if distance < self.near:
            self._stale, self._repeat = 0, min(self._repeat + 1, self.style.repeat)
            if self.target.covered(distance) > FAR:
                movers = {k: m.copy() for k, m in self._movers.items()}
                self._record = Record(self.walk.snapshot(), dict(self.batch), dict(self.scout.batch), movers)
            return False
        self._stale += 1
        if self._record is None or self._stale < STALE or self.target.covered(distance) > self.covered - FALLEN:
            return False
        self.moves += self.walk.back(self._record.walk)
        self.batch, self.scout.batch = dict(self._record.batch), dict(self._record.scouts)
        self._movers = {k: m.copy() for k, m in self._record.movers.items()}
        self._stale, self._repeat = 0, max(self._repeat // 2, min(self.style.repeat, LEAST))
        return True

    def _press(self) -> Hit | None:
        """From a record, inputs alone may do the rest: a whole period of the scouts, from long steps to short ones."""
        kept, self.scout.batch = self.scout.batch, dict(self.scout.batch)
        self.scout.descend(self.walk, self.scout.period)
        look = seeded(self.walk.seed * 31 + self.rounds)
        self.scout.look(self.walk)
        self.charge(self.scout.period + 1, self.scout.lens, self.scout.rows)
        distance, _ = self.scout.nearest()
        natural = self.stream[0] | self._noise()
        hit = self.check_scouts(self.scout, natural, look) if distance < NEAR else None
        if distance < self.near:
            self.near = distance
        else:
            self.scout.batch = kept
        return hit

    def evade(self) -> None:
        self.batch = dict(self.stream[self.rounds]) | self._noise()
        self._movers.clear()

    # ------------------------------------------------------------------------------------------ the batch

    def _climb(self, v: list[Tensor | None], row: int) -> None:
        length = sum(float(g.square().sum()) for g in v if g is not None) ** 0.5
        if not 0 < length < float("inf"):
            return
        weights = sum(float(p.detach().square().sum()) for p in self.walk.parameters) ** 0.5
        epsilon = REACH * max(weights, 1.0) / length
        if self.style.compose:
            self._propose(v, epsilon, row)
        for _ in range(self.style.climb):
            leaves = {k: self.batch[k].detach().requires_grad_() for k in self.scout.moved}
            if not leaves:
                return
            _, gradients = self._gain(self.batch | leaves, v, epsilon, list(leaves.values()))
            self.passes += 2
            for (name, x), g in zip(leaves.items(), gradients, strict=True):
                mover = self._movers.setdefault(name, Rprop())
                self.batch[name] = mover.step(x, g, *self.walk.program.bounds(name))

    def _gain(
        self, batch: Batch, v: list[Tensor | None], epsilon: float, leaves: list[Tensor]
    ) -> tuple[float, list[Tensor | None]]:
        """J(batch) up to a factor, and its gradient by `leaves`."""
        total, sums = 0.0, [torch.zeros_like(x) for x in leaves]
        for sign in (1.0, -1.0):
            seeded(self.walk.seed + self.rounds)  # the same dropout on both sides: its differences are larger than J's
            with shifted(self.walk.parameters, v, sign * epsilon), torch.set_grad_enabled(bool(leaves)):
                loss = self.walk.program.loss(self.walk.model, batch)
                if leaves and loss.requires_grad:
                    for s, g in zip(sums, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
                        if g is not None:
                            s.add_(torch.nan_to_num(g, nan=0.0), alpha=sign)
            total += sign * float(loss.detach())
        return total, list(sums)

    def _propose(self, v: list[Tensor | None], epsilon: float, row: int) -> None:
        """One other batch, taken in turn; it replaces the present one where J is larger."""
        makers = self._proposals(row)
        other = makers[self.rounds % len(makers)]()
        now, _ = self._gain(self.batch, v, epsilon, [])
        then, _ = self._gain(other, v, epsilon, [])
        self.passes += 1.5
        if then > now:
            self.batch = other
            self._movers.clear()

    def _proposals(self, row: int) -> list[Callable[[], Batch]]:
        program, stream = self.walk.program, self.stream

        def constant(names: list[str], end: int) -> Callable[[], Batch]:
            return lambda: self.batch | {k: torch.full_like(self.batch[k], program.bounds(k)[end]) for k in names}

        def of_label(group: Tensor, scouted: bool) -> Callable[[], Batch]:
            rows = stream.filled(group)
            return lambda: self.scout.spread(rows, row) if scouted else rows

        data = self.scout.moved
        makers = [of_label(g, scouted) for scouted in (False, True) for g in self._groups[:10]]
        makers += [lambda: self.scout.spread(self.batch, row), lambda: dict(stream[self.rounds])]
        makers += [constant([k], end) for k in data for end in (0, 1)]
        return makers

    def _noise(self) -> Batch:
        return {k: v for k, v in self.batch.items() if self.walk.program.role(k) == "noise"}

    def _replace(self) -> None:
        if fresh := self._renewal(self.batch, self.rounds):
            self.batch = fresh
            self._movers.clear()

    def _scaled(self, v: list[Tensor | None]) -> list[Tensor | None]:
        """v as the optimizer would see it: adaptive ones divide each weight's gradient by its usual size."""
        if not self.style.scaled:
            return v
        out: list[Tensor | None] = []
        for p, g in zip(self.walk.parameters, v, strict=True):
            state = self.walk.optimizer.state.get(p, {})
            square = state.get("exp_avg_sq", state.get("sum", state.get("square_avg")))
            out.append(g if g is None or not isinstance(square, Tensor) else g / (square.sqrt() + 1e-8))
        return out


@contextmanager
def shifted(weights: list[torch.nn.Parameter], v: list[Tensor | None], by: float) -> Iterator[None]:
    """Weights moved by `by`·v for the time being, and put back exactly."""
    moved = [(p, p.detach().clone(), g) for p, g in zip(weights, v, strict=True) if g is not None]
    try:
        with torch.no_grad():
            for p, _, g in moved:
                p.add_(g, alpha=by)
        yield
    finally:
        with torch.no_grad():
            for p, old, _ in moved:
                p.copy_(old)
