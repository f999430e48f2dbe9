"""Puts a text run together from the parts of every other search, and runs it."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nnfuzz
from nnfuzz import gradient
from nnfuzz.breed import Breeder, copy_rows
from nnfuzz.checkpoint import restore
from nnfuzz.corpus import SEED_MUTATOR, Admission, Corpus
from nnfuzz.errors import ModelFailure, NnfuzzError, UsageError
from nnfuzz.examine import Hit
from nnfuzz.findings.finding import Finding
from nnfuzz.fingerprint import changes, fingerprint, said
from nnfuzz.fuzzer import Fuzzer, Limits, Parts, hash_of
from nnfuzz.guard import seed_all
from nnfuzz.interrupt import stop_on_signal
from nnfuzz.mutators import Bandit
from nnfuzz.record import Record
from nnfuzz.report.base import InputRow, Reporter, RunInfo, SilentReporter
from nnfuzz.report.words import near, plural, typed
from nnfuzz.run import Run
from nnfuzz.schedule import Schedule
from nnfuzz.seeds import SeedGroup
from nnfuzz.space import rows, size
from nnfuzz.speed import raw_rate
from nnfuzz.stats import Stats
from nnfuzz.store import NullStore, RunStore, checked_id
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_tensors import read_tensors, write_tensors
from nnfuzz.text.climb import WISH, TextClimber
from nnfuzz.text.codec import Characters, pack
from nnfuzz.text.coverage import text_coverage
from nnfuzz.text.examine import TextExaminer
from nnfuzz.text.frontier import GoalFrontier, TextKeeper
from nnfuzz.text.models.base import Prompts
from nnfuzz.text.mutators import TEXT_MUTATORS, TextMutator
from nnfuzz.text.objectives import Together, make_objectives
from nnfuzz.text.prompts import Prompt
from nnfuzz.text.save import save_text_finding
from nnfuzz.text.settings import JOB, TextSettings
from nnfuzz.text.setup import Setup, set_up
from nnfuzz.text.space import PROMPT
from nnfuzz.text.target import TextTarget

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


class TextSession:
    """One sitting of a text run.

    Args:
        settings: checked here. model, model_b: in any form that ``language_model`` takes. seeds: prompts.
        out: run directory, or None to keep all in memory. store: of a run that goes on.
        alphabet: that texts were written in when a finding was made.
    """

    def __init__(
        self,
        settings: TextSettings,
        model: Any,
        model_b: Any,
        seeds: list[Prompt],
        *,
        out: str | Path | None = None,
        reporter: Reporter | None = None,
        store: RunStore | None = None,
        alphabet: str | None = None,
    ):
        settings.check()
        self.settings, self.reporter, self.out, self.store = settings, reporter or SilentReporter(), out, store
        known = alphabet if store is None else store.manifest.get("alphabet")
        self.parts = make_objectives(settings.objectives)
        self.setup: Setup = set_up(settings, model, model_b, seeds, known)
        self.together = Together(self.parts, self.setup.codec, self.setup.model, self.setup.other)
        self.fingerprint = fingerprint(settings.context, {"model": _weights(model), "model_b": _weights(model_b)})

    def run(self, *, resume: bool = False) -> Run:
        """Fuzzes until a limit; Ctrl-C ends it cleanly after the batch in hand."""
        random_state = torch.get_rng_state()
        try:
            return self._run(resume)
        finally:
            torch.set_rng_state(random_state)
            self.reporter.close()

    def _run(self, resume: bool) -> Run:
        setup = self.setup
        groups = self._groups()
        store = self._store(groups)
        try:
            fuzzer = self._fuzzer(groups, store)
            self.reporter.start(self._info(fuzzer))
            self._learn(fuzzer, groups)
            state = store.state() or {}
            if resume and state.get("counters"):
                self._restore(fuzzer, state, store)
                self._say_if_over(fuzzer.stats)
            else:
                self._look_at_seeds(fuzzer, groups)
            fuzzer.stats.raw_rate = raw_rate(setup.target, _largest(groups), fuzzer.most_rows)
            return self._loop(fuzzer, store)
        except NnfuzzError:
            if self.store is None and isinstance(store, RunStore):
                store.discard()  # a run that never began must not stand in the way of the corrected command
            raise
        except KeyboardInterrupt as stop:
            left = _left(store)
            if self.store is None and isinstance(store, RunStore):
                store.discard()  # nothing, once a batch is over
            raise KeyboardInterrupt(left) from stop
        finally:
            store.close()

    def _loop(self, fuzzer: Fuzzer, store: RunStore | NullStore) -> Run:
        stats, sink = fuzzer.stats, Sink(store)
        fuzzer.resume_clock(stats.seconds)
        saved_at, target, most = -1.0, self.setup.target, self.settings.max_written
        begun = target.spent

        def after_batch() -> None:
            nonlocal saved_at
            if most is not None and target.spent - begun >= most:
                fuzzer.ask_to_stop()
            self.reporter.update(stats, list(fuzzer.examiner.findings.values()))
            if stats.seconds - saved_at >= 5.0:
                saved_at = stats.seconds
                store.write_stats(stats)
                store.append_plot(stats)

        limits = Limits(self.settings.max_inputs, self.settings.max_seconds, self.settings.stop_on_first)
        with stop_on_signal(lambda: fuzzer.stop_asked, fuzzer.ask_to_stop):
            fuzzer.loop(limits, after_batch)
        if most is not None and stats.stopped == "interrupted" and target.spent - begun >= most:
            stats.stopped = "max-written"
        fuzzer.commit([])
        findings = sorted(fuzzer.examiner.findings.values(), key=lambda f: f.id)
        for finding in findings:
            sink.save_finding(finding)
        store.write_stats(stats)
        store.append_plot(stats)
        climber = fuzzer.parts.climber
        if isinstance(climber, TextClimber) and climber.trouble:
            self.reporter.note(f"gradients could not be followed ({climber.trouble}): the search went on without")
        self.reporter.end(stats, findings, store.path)
        return Run(findings, stats, fuzzer.corpus, store.path, list(self.setup.notes))

    def examiner_alone(self) -> TextExaminer:
        """For shrinking a finding without a search."""
        examiner = self._fuzzer(self._groups(), NullStore()).examiner
        assert isinstance(examiner, TextExaminer)
        return examiner

    def _groups(self) -> list[SeedGroup]:
        """The seeds by the width of their rows."""
        setup = self.setup
        found = []
        for width in sorted(set(setup.widths)):
            index = [i for i, w in enumerate(setup.widths) if w == width]
            found.append(SeedGroup({PROMPT: pack([setup.prompts[i] for i in index], width)}, index))
        return found

    # ------------------------------------------------------------------ the parts

    def _fuzzer(self, groups: list[SeedGroup], store: RunStore | NullStore) -> Fuzzer:
        settings, setup, together = self.settings, self.setup, self.together
        target: TextTarget = setup.target
        stats = Stats(seed=settings.seed, target=target.name, unit=target.unit)
        corpus = Corpus(setup.space, most=max(settings.max_corpus, 2 * len(setup.prompts)))
        frontier = GoalFrontier(together)
        random = settings.coverage == "none"
        climber = None
        gradients = settings.gradients and target.model.follows_gradients
        asked = settings.mutators is None or {gradient.NAME, WISH} & set(settings.mutators)
        if asked and not random and target.model.scores_wishes and setup.other is None:

            def write(prompts: list[list[int]]) -> list[str]:
                trace = target.model.run(Prompts(prompts, setup.codec), settings.writing, states=False)
                return together.read(trace, {PROMPT: pack(prompts, max(map(len, prompts)))}).texts

            climber = TextClimber(
                together, target.model, setup.codec, setup.space, corpus, frontier, write, settings.writing,
                gradients=gradients,
            )  # fmt: skip
            climber = climber if climber.alive else None
        mutators = self._mutators()
        bandit = Bandit([*mutators, *([climber.name] if climber is not None else [])])
        schedule = Schedule(corpus, frontier, settings.schedule)
        breeder = Breeder(setup.space, corpus, schedule, dict(mutators), bandit, settings.seed, target.device)

        def reseed(run: int) -> None:
            seed_all(settings.seed + run, target.device)

        examiner = TextExaminer(
            target=target, space=setup.space, corpus=corpus, stats=stats, sink=Sink(store), reseed=reseed,
            enrich=lambda finding, candidate: self.enrich(finding), announce=self.reporter.finding,
            elapsed=lambda: 0.0, shrink_budget=settings.max_shrink,
            seeds={i: {PROMPT: g.batch[PROMPT][r]} for g in groups for r, i in enumerate(g.index)}, objective=together,
        )  # fmt: skip
        coverage = text_coverage(settings.coverage, target.model)
        keeper = TextKeeper(corpus, frontier, coverage, settings.radius, bandit, stats, lambda: 0.0)

        def commit(records: list[Record], state: dict[str, Any], evicted: list[int]) -> None:
            assert isinstance(store, RunStore)
            store.commit(records, {**state, "goals": frontier.to_json()}, evicted)

        parts = Parts(
            target, setup.space, [together], corpus, frontier, breeder, bandit, keeper, examiner, stats, climber
        )
        fuzzer = Fuzzer(
            parts, seed=settings.seed, most_rows=settings.batch_size or self._most_rows(),
            commit=commit if isinstance(store, RunStore) else None,
        )  # fmt: skip
        keeper.elapsed = examiner.elapsed = fuzzer.elapsed
        examiner.late, fuzzer.deadline = fuzzer.much_too_late, settings.max_seconds
        if climber is not None:
            climber.late = fuzzer.late
        return fuzzer

    def _mutators(self) -> dict[str, TextMutator]:
        names = list(TEXT_MUTATORS) if self.settings.mutators is None else list(self.settings.mutators)
        led = (gradient.NAME, WISH)
        made = {n: TEXT_MUTATORS[n](self.setup.codec, self.setup.words) for n in names if n not in led}
        usable = {n: m for n, m in made.items() if m.targets(self.setup.space)}
        if not usable:
            raise UsageError(f"none of the mutators {', '.join(names)} can change these prompts: leave --mutators out")
        return usable

    def _most_rows(self) -> int:
        """A rule of sizes alone, never of time, so that the same seed gives the same run."""
        widths = self.setup.widths
        wide = sum(widths) // len(widths) + self.settings.max_new
        vocabulary = max(1, self.setup.model.out.size) if self.setup.model.shows_probabilities else 1
        fits = min(CELLS // wide, (32 * CELLS) // vocabulary)
        return max(LEAST_ROWS, min(MOST_ROWS, 1 << int(np.log2(max(1, fits)))))

    # ------------------------------------------------------------------ the seeds

    def _learn(self, fuzzer: Fuzzer, groups: list[SeedGroup]) -> None:
        group = _largest(groups)
        first = rows(group.batch, slice(0, fuzzer.most_rows))
        guarded = fuzzer.run(first, self.together, most_crashes=size(first))
        if guarded.trace is None:
            if len(guarded.crashed) == len(self.setup.prompts):
                error = guarded.crashed[0][1]
                told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                raise ModelFailure(f"the model fails on every seed ({told})")
            return
        if fuzzer.keeper.coverage is not None:
            fuzzer.keeper.coverage.fit(guarded.trace, fuzzer.seed)

    def _look_at_seeds(self, fuzzer: Fuzzer, groups: list[SeedGroup]) -> None:
        """Seeds that misbehave are findings, and are mutated all the same: only those that crash stay outside."""
        for group in groups:
            for start in range(0, len(group.index), fuzzer.most_rows):
                if len(fuzzer.corpus) and fuzzer.late():
                    break
                part = slice(start, start + fuzzer.most_rows)
                self._admit(fuzzer, rows(group.batch, part), group.index[part])
        fuzzer.commit([])

    def _admit(self, fuzzer: Fuzzer, batch: dict[str, torch.Tensor], given: list[int]) -> None:
        keeper = fuzzer.keeper
        assert isinstance(keeper, TextKeeper)
        guarded = fuzzer.run(batch, self.together, most_crashes=size(batch))
        for row, error in guarded.crashed:
            self._seed_hit(fuzzer, batch, row, given[row], hash_of(error), error)
        if guarded.trace is None:
            return
        ran = copy_rows(batch, guarded.ran)
        verdict = self.together.judge(guarded.trace, ran)
        for at in verdict.hits.nonzero()[:, 0].tolist():
            assert verdict.keys is not None
            row = int(guarded.ran[at])
            self._seed_hit(fuzzer, batch, row, given[row], int(verdict.keys[at]))
        count = size(ran)
        scores = verdict.score.tolist() if verdict.score is not None else [float("nan")] * count
        vectors = keeper.vectors(guarded.trace, count)
        index = [given[int(r)] for r in guarded.ran]
        first = len(fuzzer.corpus.parent)
        if keeper.novelty is None:
            keeper.admit_seeds(ran, vectors, index, scores)
        else:
            keeper._admit(Admission(ran, vectors, [None] * count, index, [SEED_MUTATOR] * count, scores))
        for row in range(count):
            keeper.offer(first + row, verdict.goals[row])

    def _seed_hit(
        self, fuzzer: Fuzzer, batch: Any, row: int, index: int, key: int, error: Exception | None = None
    ) -> None:
        if fuzzer.examiner.which(self.together, key, [0.0]) is not None:
            lone = copy_rows(batch, np.array([row]))
            anchors = self.setup.space.anchors(lone)
            hit = Hit(lone, anchors, index, None, SEED_MUTATOR, key, self.together, error)
            fuzzer.examiner.examine(hit)

    # ------------------------------------------------------------------ store and resume

    def _store(self, groups: list[SeedGroup]) -> RunStore | NullStore:
        if self.store is not None:
            return self.store
        if self.out is None:
            return NullStore()
        store = RunStore.create(self.out, self.manifest())
        folder = store.path / "seeds"
        folder.mkdir(exist_ok=True)
        for n, group in enumerate(groups):
            write_tensors(folder / f"{n}.safetensors", group.batch)
        write_atomically(folder / "index.json", to_json({"groups": [g.index for g in groups]}))
        return store

    def manifest(self) -> dict[str, Any]:
        """What run.json holds."""
        codec = self.setup.codec
        made_here = isinstance(codec, Characters) and self.setup.model.codec is None
        return {
            "nnfuzz": nnfuzz.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "command": self.settings.context.get("command", [Path(sys.argv[0]).name]),
            "context": self.settings.context,
            "fingerprint": self.fingerprint,
            "settings": self.settings.to_json(),
            "objectives": [part.spec for part in self.parts],
            "alphabet": codec.alphabet if made_here and isinstance(codec, Characters) else None,
            "unit": "sample",
            "inputs": [vars(self._row())],
        }

    def _restore(self, fuzzer: Fuzzer, state: dict[str, Any], store: RunStore | NullStore) -> None:
        restore(fuzzer, state, store.records(), store.findings(), store.ancestry())
        frontier, examiner = fuzzer.parts.frontier, fuzzer.examiner
        assert isinstance(frontier, GoalFrontier)
        assert isinstance(examiner, TextExaminer)
        frontier.load(state.get("goals"))
        for finding in examiner.findings.values():
            examiner.learn(finding)
        found = changes(store.manifest.get("fingerprint"), self.fingerprint, cwd=self.settings.context.get("cwd"))
        if found:
            self.reporter.note(said(found, "the run began"))

    def _say_if_over(self, stats: Stats) -> None:
        """Limits count from the run's beginning: one that is used up already would end the run in silence."""
        settings = self.settings
        for used, limit, unit in (
            (stats.seconds, settings.max_seconds, "seconds"),
            (stats.inputs, settings.max_inputs, "prompts"),
        ):
            if limit is not None and used >= limit:
                self.reporter.note(
                    f"the run has used {used:,.0f} {unit} already and its limit is {limit:,.0f}, counted from its "
                    "beginning: give a larger one"
                )

    def enrich(self, finding: Finding) -> None:
        """What repro needs to know."""
        settings, context, codec = self.settings, self.settings.context, self.setup.codec
        made_here = isinstance(codec, Characters) and self.setup.model.codec is None
        finding.details["run"] = {
            "job": JOB,
            "model": context.get("model"),
            "model_b": context.get("model_b"),
            "cwd": context.get("cwd"),
            "objective": finding.details.pop("objective", None),
            "settings": settings.to_json(),
            "alphabet": codec.alphabet if made_here and isinstance(codec, Characters) else None,
            "torch": torch.__version__,
            "fingerprint": self.fingerprint,
        }

    # ------------------------------------------------------------------ what the reader sees

    def _row(self) -> InputRow:
        codec, space = self.setup.codec, self.setup.space
        legal = codec.size if codec.legal is None else len(codec.legal)
        length = f"{space.shortest}..{space.width}"
        return InputRow(PROMPT, (length,), f"{codec.unit}s", "", f"any of {legal:,} {codec.unit}s", "")

    def _info(self, fuzzer: Fuzzer) -> RunInfo:
        settings, target = self.settings, self.setup.target
        return RunInfo(
            title="nnfuzz text",
            target=target.describe(),
            unit=target.unit,
            why=target.why,
            inputs=[self._row()],
            seed=settings.seed,
            device=str(target.model.device),
            out=str(self.out or (self.store.path if self.store else None) or "") or None,
            notes=list(self.setup.notes),
            searched=self.together.searched(),
            max_inputs=settings.max_inputs,
            max_seconds=settings.max_seconds,
            settings={
                "coverage": settings.coverage,
                "gradients": settings.gradients,
                "batch": fuzzer.most_rows,
                "mutators": len(fuzzer.parts.bandit.names),
            },
        )


def saved_prompts(run: Path) -> list[list[int]]:
    """The seeds of a run, as ids."""
    from nnfuzz.text.codec import unpack

    found: dict[int, list[int]] = {}
    for n, index in enumerate(from_json(run / "seeds" / "index.json")["groups"]):
        prompts = unpack(read_tensors(run / "seeds" / f"{n}.safetensors")[PROMPT])
        found |= dict(zip(index, prompts, strict=True))
    return [found[i] for i in sorted(found)]


def _left(store: RunStore | NullStore) -> str:
    """What an interruption that did not wait for the batch in hand leaves behind, in one sentence."""
    done = (store.state() or {}).get("counters", {})
    if not isinstance(store, RunStore) or not done.get("batches"):
        return "interrupted before the first batch was saved, so nothing was kept"
    kept = f"{near(store.path)} holds {plural(done['inputs'], 'prompt')}"
    return f"interrupted at once, without the batch in hand: {kept}; go on with nnfuzz resume {typed(store.path)}"


def _largest(groups: list[SeedGroup]) -> SeedGroup:
    return max(groups, key=lambda g: len(g.index))


def _weights(given: Any) -> Any:
    model = given[0] if isinstance(given, tuple) and given else given
    return model if callable(model) else None
