"""Which way of searching gets how much: brackets of successive halving over arms (Jamieson & Talwalkar 2016).

No single way is best: wide initial weights need no training at all, adaptive optimizers need scaled directions, tiny models need tens
of thousands of pumped steps. So all start, each with a slice of passes; the half that came or comes nearest goes on
with twice the slice. Cost is counted in passes over the batch, not in seconds, so that a search stopped by
`max_steps` is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.frozen import Frozen
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.lookahead import Lookahead, Style
from nnfuzz.training.plain import Natural, Plain
from nnfuzz.training.program import Program
from nnfuzz.training.pump import Pump
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk

WORK = 1e8  # weights × rows that the first slice covers: a tenth of a second to a second
SLICE = (6, 60)  # least and most passes of the first slice
TARGETS = 3  # that a bracket aims at; the others wait for the next one
SURVIVORS = 2

Make = Callable[[Walk, Target], Arm]


@dataclass
class Progress:
    """How an arm does, for ranking."""

    arm: Arm
    before: float = 0.0

    def score(self) -> float:
        """Where it is, and where it will be if it goes on like this for twice as long."""
        return self.arm.covered + 2 * max(0.0, self.arm.covered - self.before)


@dataclass
class Portfolio:
    """Yields hits; `arms` made so far, `natural` the plain training beside the search."""

    program: Program
    stream: Stream
    lens: Lens
    seed: int
    stop: Callable[[], bool]
    natural: Natural = field(default_factory=Natural)
    done: set[str] = field(default_factory=set)
    arms: list[Arm] = field(default_factory=list)

    @property
    def moves(self) -> int:
        """Training steps and scout steps so far."""
        return sum(len(a.walk.steps) + a.moves for a in self.arms)

    @property
    def passes(self) -> float:
        return sum(a.passes for a in self.arms)

    def hits(self) -> Iterator[Hit]:
        """Brackets without end, until `stop`."""
        plain = self._add(Plain(Walk(self.program, self.seed), self.stream, self.natural))
        champions: list[Arm] = []
        bracket = 0
        while not self.stop():
            champions = [a for a in champions if not self._over(a)]
            arms = [*champions, *self._challengers(bracket)]
            if not arms and plain.finished:
                return
            champions = yield from self._bracket(arms, plain, self._slice() * 2**bracket)
            bracket += 1

    def _bracket(self, arms: list[Arm], plain: Arm, slice_: float) -> Iterator[Hit]:
        """Halve the field until few are left, and return those."""
        field_, first = [Progress(a) for a in arms], True
        while True:
            for one in [*field_, Progress(plain)]:
                one.before = one.arm.covered
                yield from self._run(one.arm, slice_ * (4 if isinstance(one.arm, Frozen) and first else 1) if one.arm is not plain else self._slice())
                if self.stop():
                    return []
            field_ = [p for p in field_ if not self._over(p.arm)]
            judged = sorted((p for p in field_ if not p.arm.patient), key=Progress.score, reverse=True)
            patient = [p for p in field_ if p.arm.patient]
            if len(judged) <= SURVIVORS:
                return [p.arm for p in [*judged, *patient[:SURVIVORS]]]
            for dropped in judged[math.ceil(len(judged) / 2) :]:
                dropped.arm.finished = True
                release(dropped.arm)
            field_ = judged[: math.ceil(len(judged) / 2)] + patient
            slice_, first = 2 * slice_, False

    def _run(self, arm: Arm, slice_: float) -> Iterator[Hit]:
        start = arm.passes
        while arm.passes - start < slice_ and not self._over(arm) and not self.stop():
            if hit := arm.round():
                arm.finished = True
                yield hit

    def _over(self, arm: Arm) -> bool:
        return arm.finished or (arm.target is not None and arm.target.name in self.done)

    def _slice(self) -> float:
        weights = sum(p.numel() for p in self.arms[0].walk.parameters)
        return min(max(WORK / max(1, weights * self.stream.rows), SLICE[0]), SLICE[1])

    # -------------------------------------------------------------------------------------------- who takes part

    def _challengers(self, bracket: int) -> list[Arm]:
        """New arms from fresh weights: the nearest targets, all styles."""
        targets = self._targets()
        arms: list[Arm] = []
        for rank, target in enumerate(targets):
            for i, make in enumerate(self._makers(rank, bracket)):
                # The first bracket starts from the program's own weights, as later ones do from others of the same law.
                seed = self.seed if bracket == 0 else self.seed + 1000 * bracket + 10 * rank + i
                arms.append(self._add(make(Walk(self.program, seed), target)))
        return arms

    def _targets(self) -> list[Target]:
        """The most promising: nearest by share of the way covered so far, then by distance."""
        open_ = [t for t in self.lens.targets.values() if t.name not in self.done]
        return sorted(open_, key=lambda t: (-round(t.covered(t.best), 2), t.start))[:TARGETS]

    def _makers(self, rank: int, bracket: int) -> list[Make]:
        stream, lens = self.stream, self.lens
        noise = any(self.program.role(k) == "noise" for k in stream.first)

        def look(style: Style) -> Make:
            return lambda walk, target: Lookahead(walk, stream, lens, target, style, start=bracket)

        frozen: Make = lambda walk, target: Frozen(walk, stream, lens, target, start=bracket)  # noqa: E731
        if rank:
            return [frozen, look(Style("best", compose=True)), look(Style("sum", repeat=3, scaled=True, noise=noise))]
        makers = [frozen, look(Style("best", 5, 1, 3, scaled=True)), look(Style("best", compose=True)), look(Style("loss"))]
        makers += [look(Style("sum")), look(Style("best", 5, 1, min(20, int(self._slice()) * 2**bracket), scaled=True, compose=True, noise=noise))]
        makers += [look(Style("best", 2, 2, 1, compose=True, noise=True))] if noise else []
        if len(stream.groups()) > 1:
            pair = [(0, 1), (0, 2), (1, 2)][bracket % min(3, len(stream.groups()) - 1)]
            makers.append(lambda walk, target: Pump(walk, stream, lens, target, pair, burst=max(2, int(self._slice() / 4) // 2 * 2)))
        return makers

    def _add(self, arm: Arm) -> Arm:
        self.arms.append(arm)
        return arm


def release(arm: Arm) -> None:
    """Keep the count of a finished arm's steps, not its tensors."""
    arm.moves += len(arm.walk.steps)
    arm.walk.steps = []
