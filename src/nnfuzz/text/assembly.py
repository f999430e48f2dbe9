"""The parts of a text run, put together: what ``Session`` does for tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnfuzz import gradient
from nnfuzz.breed import Breeder
from nnfuzz.clock import Clock
from nnfuzz.corpus import Corpus
from nnfuzz.errors import UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.fuzzer import Fuzzer, Parts
from nnfuzz.guard import seed_all
from nnfuzz.mutators import Bandit
from nnfuzz.record import Record
from nnfuzz.report.base import Reporter
from nnfuzz.schedule import Schedule
from nnfuzz.seeds import SeedGroup
from nnfuzz.stats import Stats
from nnfuzz.store import NullStore, RunStore, checked_id
from nnfuzz.text.climb import WISH, TextClimber
from nnfuzz.text.codec import pack
from nnfuzz.text.coverage import text_coverage
from nnfuzz.text.document import RunDocument
from nnfuzz.text.examine import TextExaminer
from nnfuzz.text.frontier import GoalFrontier, TextKeeper
from nnfuzz.text.models.base import Prompts
from nnfuzz.text.mutators import TEXT_MUTATORS, TextMutator
from nnfuzz.text.objectives import Together
from nnfuzz.text.save import save_text_finding
from nnfuzz.text.settings import TextSettings
from nnfuzz.text.setup import Setup
from nnfuzz.text.space import PROMPT

MOST_ROWS, LEAST_ROWS, CELLS = 256, 8, 1 << 21
"""Rows of a full batch: beyond 256 a model gains little from more, and characters of a batch are bounded."""


@dataclass
class Sink:
    """Where findings of text go: the run directory of ``store``, or memory."""

    store: RunStore | NullStore

    def save_finding(self, finding: Finding) -> None:
        if isinstance(self.store, RunStore):
            save_text_finding(finding, self.store.path / "findings" / checked_id(finding.id))
        else:
            self.store.save_finding(finding)


def assembled(
    settings: TextSettings,
    setup: Setup,
    together: Together,
    document: RunDocument,
    reporter: Reporter,
    groups: list[SeedGroup],
    store: RunStore | NullStore,
) -> Fuzzer:
    """The loop with all its parts; nothing has run yet."""
    target = setup.target
    stats = Stats(seed=settings.seed, target=target.name, unit=target.unit)
    corpus = Corpus(setup.space, most=max(settings.max_corpus, 2 * len(setup.prompts)))
    frontier = GoalFrontier(together)
    climber = _climber(settings, setup, together, corpus, frontier)
    mutators = _mutators(settings, setup)
    bandit = Bandit([*mutators, *([climber.name] if climber is not None else [])])
    schedule = Schedule(corpus, frontier, settings.schedule)
    breeder = Breeder(setup.space, corpus, schedule, dict(mutators), bandit, settings.seed, target.device)

    def reseed(run: int) -> None:
        seed_all(settings.seed + run, target.device)

    clock = Clock()
    clock.deadline = settings.max_seconds
    examiner = TextExaminer(
        target=target, space=setup.space, corpus=corpus, stats=stats, sink=Sink(store), reseed=reseed,
        enrich=lambda finding, candidate: document.enrich(finding), announce=reporter.finding,
        elapsed=clock.elapsed, late=clock.much_too_late, shrink_budget=settings.max_shrink,
        seeds={i: {PROMPT: g.batch[PROMPT][r]} for g in groups for r, i in enumerate(g.index)}, objective=together,
    )  # fmt: skip
    coverage = text_coverage(settings.coverage, target.model)
    keeper = TextKeeper(corpus, frontier, coverage, settings.radius, bandit, stats, clock.elapsed)

    def commit(records: list[Record], state: dict[str, Any], evicted: list[int]) -> None:
        assert isinstance(store, RunStore)
        store.commit(records, {**state, "goals": frontier.to_json()}, evicted)

    parts = Parts(
        target, setup.space, [together], corpus, frontier, breeder, bandit, keeper, examiner, stats, climber, clock
    )
    examiner.at_once = settings.batch_size or most_rows(settings, setup)
    for model in (setup.model, setup.other):
        if model is not None:
            model.late = clock.late
    if climber is not None:
        climber.late = clock.late
    return Fuzzer(
        parts, seed=settings.seed, most_rows=examiner.at_once,
        commit=commit if isinstance(store, RunStore) else None,
    )  # fmt: skip


def most_rows(settings: TextSettings, setup: Setup) -> int:
    """A rule of sizes alone, never of time, so that the same seed gives the same run."""
    wide = sum(setup.widths) // len(setup.widths) + settings.max_new
    vocabulary = max(1, setup.model.out.size) if setup.model.shows_probabilities else 1
    noted = settings.max_new * (1 + len(setup.model.watch))
    fits = min(CELLS // wide, (32 * CELLS) // vocabulary, (32 * CELLS) // noted)
    least = LEAST_ROWS if LEAST_ROWS * noted <= 32 * CELLS else 1
    return max(least, min(MOST_ROWS, 1 << int(np.log2(max(1, fits)))))


def _climber(
    settings: TextSettings, setup: Setup, together: Together, corpus: Corpus, frontier: GoalFrontier
) -> TextClimber | None:
    """What follows wishes; None where nothing can be wished for, or it was not asked for."""
    model = setup.model
    asked = settings.mutators is None or {gradient.NAME, WISH} & set(settings.mutators)
    if not asked or settings.coverage == "none" or not model.scores_wishes or setup.other is not None:
        return None

    def write(prompts: list[list[int]]) -> list[str]:
        trace = model.run(Prompts(prompts, setup.codec), settings.writing, states=False)
        return together.read(trace, {PROMPT: pack(prompts, max(map(len, prompts)))}).texts

    climber = TextClimber(
        together, model, setup.codec, setup.space, corpus, frontier, write, settings.writing,
        gradients=settings.gradients and model.follows_gradients,
    )  # fmt: skip
    return climber if climber.alive else None


def _mutators(settings: TextSettings, setup: Setup) -> dict[str, TextMutator]:
    names = list(TEXT_MUTATORS) if settings.mutators is None else list(settings.mutators)
    led = (gradient.NAME, WISH)
    made = {n: TEXT_MUTATORS[n](setup.codec, setup.words) for n in names if n not in led}
    usable = {n: m for n, m in made.items() if m.targets(setup.space)}
    if not usable:
        raise UsageError(f"none of the mutators {', '.join(names)} can change these prompts: leave --mutators out")
    return usable
