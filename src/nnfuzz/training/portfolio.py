"""Which way of searching gets how much: brackets of successive halving over arms (Jamieson & Talwalkar 2016).

No single way is best: wide initial weights need no training at all, adaptive optimizers need scaled directions, tiny
models need tens
of thousands of pumped steps. So all start, each with a slice of passes; the half that came or comes nearest goes on
with twice the slice. Cost is counted in passes over the batch, not in seconds, so that a search stopped by
`max_steps` is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch

from nnfuzz.training.arm import Arm, Hit
from nnfuzz.training.frozen import Frozen
from nnfuzz.training.guarded import ProgramFailed
from nnfuzz.training.in_turn import InTurn
from nnfuzz.training.lens import Lens, Target
from nnfuzz.training.lookahead import Lookahead, Style
from nnfuzz.training.mutated import Mutated
from nnfuzz.training.plain import Natural, Plain
from nnfuzz.training.program import Program
from nnfuzz.training.pump import Pump
from nnfuzz.training.stream import Stream
from nnfuzz.training.structured import Structured
from nnfuzz.training.walk import Walk, seeded, statistics_kept

FIRST_SECONDS = 0.4  # of the first slice
WORK = 4e8  # weights × rows of the first slice, where seconds must not count
SLICE = (6, 200)  # least and most passes of the first slice
THOROUGH, WORTH = 4, 0.02  # slices of the plainest ways, while each brings them nearer by so much of the way
MOST_TINY = 1500  # passes of their slice on tiny programs, which learn fast
TARGETS = 5  # that a bracket aims at, one of them first; the others wait for the next one
SURVIVORS = 2
LONG = 12  # training steps on one batch: as long as the momentum of an optimizer takes to turn
PLAY, SLICES = 2, 12  # passes of the champions, of those that all took before; slices that they share as they progress
GAIN = 0.1  # share of the way left that a champion must come nearer in a slice for it to count
CREDIT, TIRING = 0.3, 0.15  # of the way: for slow starters, and against fruitless slices

Make = Callable[[Walk, Target], Arm]


@dataclass
class Progress:
    """How an arm does, for ranking."""

    arm: Arm
    before: float = 0.0
    fruitless: int = 0

    def score(self) -> float:
        """Where it is, and where it will be if it goes on like this for twice as long."""
        return self.arm.covered + 2 * max(0.0, self.arm.covered - self.before)

    def merit(self) -> float:
        """The same with the slices that brought nothing held against it; who grows slowly at first has some credit."""
        return self.score() + CREDIT * self.arm.patient - TIRING * self.fruitless


@dataclass
class Portfolio:
    """Yields hits; `arms` made so far, `natural` the plain training beside the search. pass_seconds:
    what a training step takes; None for a search that must be the same every time."""

    program: Program
    stream: Stream
    lens: Lens
    seed: int
    stop: Callable[[], bool]
    pass_seconds: float | None = None
    natural: Natural = field(default_factory=Natural)
    done: set[str] = field(default_factory=set)
    raised: set[str] = field(default_factory=set)
    arms: list[Arm] = field(default_factory=list)

    @property
    def moves(self) -> int:
        """Training steps and scout steps so far."""
        return sum(len(a.walk.steps) + a.moves for a in self.arms)

    @property
    def passes(self) -> float:
        return sum(a.passes for a in self.arms)

    def hits(self) -> Generator[Hit, None, None]:
        """Brackets without end, until `stop`."""
        plain = self._add(Plain(Walk(self.program, self.seed), self.stream, self.natural))
        yield from self._without_gradients(plain)
        champions: list[Arm] = []
        bracket = 0
        while not self.stop():
            before = self.passes
            field_ = chain([a for a in champions if not self._over(a)], self._challengers(bracket))
            champions = yield from self._bracket(field_, plain, self._slice() * 2**bracket)
            if self.passes == before and not self.stop():
                return  # every target is reached, and plain training too
            yield from self._play_on(champions, PLAY * (self.passes - before))
            bracket += 1

    def _without_gradients(self, plain: Arm) -> Generator[Hit, None, None]:
        """What costs little and needs no slope comes first; a little plain training tells what comes by itself."""
        structured = Structured(Walk(self.program, self.seed), self.stream)
        yield from self._run(self._add(structured), THOROUGH * self._slice())
        yield from self._run(plain, self._slice() / 2)
        mutated = Mutated(Walk(self.program, self.seed), self.stream, self.lens)
        yield from self._run(self._add(mutated), 2 * self._slice(most=MOST_TINY))
        for target in self.lens.targets.values():
            target.best = target.start  # who leads is for those with gradients to tell

    def _play_on(self, champions: list[Arm], budget: float) -> Generator[Hit, None, None]:
        """Those that came nearest go on, for as long as all took together and then while somebody still gains.

        Each slice goes to whoever has the most merit at the moment; a slice that brought nothing lowers it.
        """
        field_ = [Progress(a, a.covered) for a in champions]
        spent, gained = 0.0, False
        while (spent < budget or gained) and (alive := [p for p in field_ if not self._over(p.arm)]):
            one = max(alive, key=Progress.merit)
            one.before, before = one.arm.covered, one.arm.passes
            yield from self._run(one.arm, budget / SLICES)
            if self.stop():
                return
            gained = one.arm.covered - one.before >= GAIN * (1 - one.before)
            one.fruitless = 0 if gained else one.fruitless + 1
            spent += one.arm.passes - before

    def _bracket(self, arms: Iterable[Arm], plain: Arm, slice_: float) -> Generator[Hit, None, list[Arm]]:
        """Give every arm a slice, then halve the field and double the slice until few are left; returns those."""
        field_: list[Progress] = []
        for arm in chain(arms, [plain]):
            one = Progress(arm, arm.covered)
            yield from self._start(arm, slice_)
            if self.stop():
                return []
            if arm is not plain and not self._over(arm):
                field_.append(one)
        while len(judged := [p for p in field_ if not p.arm.patient and not self._over(p.arm)]) > SURVIVORS:
            judged.sort(key=Progress.score, reverse=True)
            kept = math.ceil(len(judged) / 2)
            for dropped in judged[kept:]:
                dropped.arm.finished = True
                release(dropped.arm)
            field_ = judged[:kept] + [p for p in field_ if p.arm.patient and not self._over(p.arm)]
            slice_ *= 2
            for one in field_:
                one.before = one.arm.covered
                yield from self._run(one.arm, slice_)
                if self.stop():
                    return []
        patient = [p.arm for p in field_ if p.arm.patient and not self._over(p.arm)]
        return patient[: SURVIVORS + 1] + [p.arm for p in judged]

    def _start(self, arm: Arm, slice_: float) -> Generator[Hit, None, None]:
        """A slice. The plainest ways get more of them while that brings them nearer, since nothing is shorter."""
        if isinstance(arm, Plain):
            slice_ = self._slice()
        elif isinstance(arm, InTurn) and arm.walk.seed == self.seed:
            slice_ = self._slice(most=MOST_TINY)
        thorough = isinstance(arm, Frozen | InTurn) and arm.walk.seed == self.seed
        for _ in range(THOROUGH if thorough else 1):
            before = arm.covered
            yield from self._run(arm, slice_)
            if self.stop() or self._over(arm) or arm.covered - before < WORTH:
                return

    def _run(self, arm: Arm, slice_: float) -> Generator[Hit, None, None]:
        start = arm.passes
        while arm.passes - start < slice_ and not self._over(arm) and not self.stop():
            if hit := self._round(arm):
                known = len(self.done)
                if not self._known(hit):
                    yield hit
                if len(self.done) > known:
                    arm.finished = True
                else:
                    arm.dismiss(hit)

    def _round(self, arm: Arm) -> Hit | None:
        """Where the loss raises while an arm only looks, a whole batch of what it looked at may raise in training. If
        it does not, a few rows were too few, and later arms look at whole batches."""
        try:
            return arm.round()
        except ProgramFailed as error:
            if error.batch is None:
                raise
            arm.finished = True
            hit = arm.check(self.stream.whole_of(error.batch))
            self.stream.whole |= hit is None
            return hit

    def _known(self, hit: Hit) -> bool:
        """Whether operations that were reported already explain a failure, and no other one does.

        A near failure hides a farther one behind it: replaying it every time would cost more than the search. An
        exception is known by its type and place.
        """
        if hit.failure.raised:
            known = hit.failure.kind in self.raised
            self.raised.add(hit.failure.kind)
            return known
        done = [t for t in self.lens.targets.values() if t.name in self.done]
        if not done:
            return False
        targets = list(self.lens.targets.values())
        seeded(hit.steps[-1].seed)
        with statistics_kept(hit.walk.model), torch.no_grad():
            read = self.lens.read(hit.walk.model, hit.steps[-1].batch, self.stream.rows, targets)
        reached = {name for name, distance in read.items() if bool((distance <= 0).any())}
        return bool(reached) and reached <= self.done

    def _over(self, arm: Arm) -> bool:
        return arm.finished or (arm.target is not None and arm.target.name in self.done)

    def _slice(self, most: float = SLICE[1]) -> float:
        if self.pass_seconds is not None:
            return min(max(FIRST_SECONDS / self.pass_seconds, SLICE[0]), most)
        weights = sum(p.numel() for p in self.arms[0].walk.parameters)
        return min(max(WORK / max(1, weights * self.stream.rows), SLICE[0]), most)

    # -------------------------------------------------------------------------------------------- who takes part

    def _challengers(self, bracket: int) -> Iterator[Arm]:
        """New arms from fresh weights: all styles for one target, the two cheapest for some others."""
        open_ = [t for t in self.lens.targets.values() if t.name not in self.done]
        targets = sorted(open_, key=lambda t: (t.led, -round(t.covered(t.best), 2), t.start))[:TARGETS]
        made = 0
        for rank, target in enumerate(targets):
            target.led += rank == 0
            for make in self._makers(bracket, lead=rank == 0):
                if target.name in self.done:
                    break
                # The first bracket starts from the program's own weights, later ones from others of the same law.
                seed = self.seed if bracket == 0 else self.seed + 1000 * bracket + made
                made += 1
                yield self._add(make(Walk(self.program, seed), target))

    def _others(self, target: Target) -> list[Target]:
        """The nearest of what else is not reached yet."""
        open_ = [t for t in self.lens.targets.values() if t is not target and t.name not in self.done]
        return sorted(open_, key=lambda t: t.start)[: TARGETS - 1]

    def _makers(self, bracket: int, lead: bool) -> list[Make]:
        stream, lens = self.stream, self.lens
        noise = any(self.program.role(k) == "noise" for k in stream.first)

        def look(style: Style) -> Make:
            return lambda walk, target: Lookahead(walk, stream, lens, target, style, start=bracket)

        frozen: Make = lambda walk, target: Frozen(walk, stream, lens, target, start=bracket)  # noqa: E731
        many = min(LONG, int(self._slice()))

        def steady(rows: int) -> Make:
            def make(walk: Walk, target: Target) -> Arm:
                style = Style("sum", 3, 1, many, scaled=True, noise=noise)
                arm = Lookahead(walk, stream, lens, target, style, start=rows)
                # Adaptive optimizers turn weights slowly at first, and then ever faster.
                arm.patient = bracket == 0
                return arm

            return make

        if not lead:
            return [frozen, steady(bracket)]
        makers = [frozen, look(Style("best", 5, 1, 3, scaled=True, noise=noise)), look(Style("best", compose=True))]
        makers.append(lambda walk, target: InTurn(walk, stream, lens, target, self._others(target), start=bracket))
        makers += [
            steady(bracket),
            steady(bracket + 1),
        ]  # when the weights begin to turn is a matter of luck: two tries
        makers += [look(Style("loss")), look(Style("best", 5, 1, many))]
        makers += [look(Style("best", 2, 2, 1, compose=True, noise=True))] if noise else []
        if (groups := len(stream.groups())) > 1:
            pair = [(0, 1), (0, 2), (1, 2)][bracket % min(3, 2 * groups - 3)]
            burst = max(2, int(self._slice() / 8) // 2 * 2)
            makers.append(lambda walk, target: Pump(walk, stream, lens, target, pair, burst=burst))
        return makers

    def _add(self, arm: Arm) -> Arm:
        self.arms.append(arm)
        return arm


def release(arm: Arm) -> None:
    """Keep the count of a finished arm's steps, not its tensors."""
    arm.moves += len(arm.walk.steps)
    arm.walk.steps = []
