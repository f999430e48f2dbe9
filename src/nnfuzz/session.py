"""Puts the parts of a run together, runs it, and takes it apart again."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nnfuzz
from nnfuzz import firstlook, gradient
from nnfuzz.breed import COSTLY_FROM, Breeder
from nnfuzz.checkpoint import restore
from nnfuzz.clock import Clock
from nnfuzz.corpus import Corpus
from nnfuzz.coverage import COVERAGES
from nnfuzz.errors import NnfuzzError
from nnfuzz.examine import Examiner
from nnfuzz.findings.enrich import Enricher
from nnfuzz.findings.finding import Finding
from nnfuzz.fingerprint import changes, said
from nnfuzz.fuzzer import Fuzzer, Limits, Parts
from nnfuzz.gradient.allowance import together
from nnfuzz.gradient.steps import followable
from nnfuzz.guard import seed_all
from nnfuzz.inputs import build_space
from nnfuzz.interrupt import EARLY, stop_on_signal
from nnfuzz.jobs import Job, make_job, with_copy
from nnfuzz.keeper import Keeper
from nnfuzz.leftover import AFTER, Over, as_it_stands, check_tried, left_behind, over
from nnfuzz.mutators import MUTATORS, Bandit, Mutator
from nnfuzz.report.apart import last_words
from nnfuzz.report.base import Reporter, RunInfo, SilentReporter
from nnfuzz.report.words import near, plural, typed
from nnfuzz.run import Run
from nnfuzz.schedule import Frontier, Schedule
from nnfuzz.seeds import SeedGroup, Seeds
from nnfuzz.settings import Settings
from nnfuzz.space import InputSpace
from nnfuzz.speed import raw_rate
from nnfuzz.stats import Stats
from nnfuzz.store import NullStore, RunStore
from nnfuzz.store_seeds import load_seed_groups, save_seed_groups
from nnfuzz.targets import PairTarget
from nnfuzz.targets.torch import LAYER_BYTES
from nnfuzz.watcher import watching

BATCH_BYTES = 16 << 20
"""Inputs of one batch."""
CHUNKED = 4
"""A target that runs a batch in parts of its own size gets batches so many times as large: what mutators cost is spread
over more rows."""
MOST_ROWS = {"rows": 4096, "fold": 512, "vmap": 512, "loop": 32}


class Session:
    """One sitting of a run: from settings and models to a ``Run``.

    Args:
        settings: checked here.
        model, model_b: callables; ``model_b`` for ``diff`` only.
        seeds: in any of the forms of ``nnfuzz.find_nans``.
        out: run directory, or None to keep all in memory.
        reporter: watches the run.
        by_name: whether the models were loaded from the files that the run's context names.
    """

    def __init__(
        self,
        settings: Settings,
        model: Callable[..., Any],
        model_b: Callable[..., Any] | None,
        seeds: Any,
        *,
        out: str | Path | None,
        reporter: Reporter | None,
        store: RunStore | NullStore | None = None,
        by_name: bool = True,
    ):
        settings.check()
        self.settings, self.reporter = settings, reporter or SilentReporter()
        self.job: Job = make_job(settings, model, model_b, seeds)
        self.out, self.store, self.by_name = out, store, by_name
        self.blind: list[str] = []
        self._said: list[str] = []
        self._over = False
        """Whether the last batch is saved."""

    def run(self, *, resume: bool = False) -> Run:
        """Fuzzes until a limit; Ctrl-C ends it cleanly after the batch in hand."""
        random_state = torch.get_rng_state()
        try:
            flushed = subnormals_flushed(self.settings.flush_denormal)
            with (
                watching(self._left_at_once, self.reporter.close),
                _told_if_early(self.store),
                flushed,
                self.job.target_session(),
            ):
                return self._run(resume)
        finally:
            torch.set_rng_state(random_state)
            self.reporter.close()

    def _run(self, resume: bool) -> Run:
        job = self.job
        job.prepare()
        target, space = job.target, self._space()
        if job.reconsider(space):
            space = self._space()
        seeds = job.seeds
        job.check(space)
        groups = [SeedGroup({n: t.to(target.device) for n, t in g.batch.items()}, g.index) for g in seeds.groups]
        store = self._store(space, seeds)
        try:
            fuzzer = self._fuzzer(space, groups, store)
            fuzzer.pool = job.pool
            if fuzzer.pool is not None and store.path is not None:
                fuzzer.pool.load(store.path)
            state = store.state() or {}
            begun = resume and bool(state.get("counters"))  # it may be killed before it has looked at its seeds
            done = over(self.settings, store, self.out or "RUN") if begun and isinstance(store, RunStore) else None
            self.reporter.start(self._info(space, fuzzer, writes=done is None))
            self._say_if_cut_off(store, again=done is None)
            if done is not None:
                return self._as_it_stands(fuzzer, store, done)
            if begun:
                firstlook.learn(fuzzer, groups)
                self._say_if_blind(fuzzer)
                restore(fuzzer, state, store.records(), store.findings(), store.ancestry())
                self._say_if_changed(store)
            else:
                failing = firstlook.start(fuzzer, groups)
                self._say_if_seeds_fail(failing, sum(len(g.index) for g in groups), fuzzer.examiner.findings.values())
                if fuzzer.pool is not None and store.path is not None:
                    fuzzer.pool.save(store.path)  # a resumed run does not look at its seeds again
                self._say_if_blind(fuzzer)
            fuzzer.stats.raw_rate = raw_rate(target, max(groups, key=lambda g: len(g.index)), fuzzer.most_rows)
            return self._loop(fuzzer, store)
        except NnfuzzError:
            if self.store is None and isinstance(store, RunStore):
                store.discard()  # a run that never began must not stand in the way of the corrected command
            raise
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(self._left(store)) from stop
        finally:
            store.close()

    def _space(self) -> InputSpace:
        settings, job = self.settings, self.job
        return build_space(
            job.seeds,
            ranges=settings.ranges,
            kinds=settings.kinds,
            fixed=settings.fixed,
            shapes=settings.shapes,
            eps=settings.eps,
            constraint=job.constraint(),
        )

    def _left_at_once(self, end: bool) -> str:
        return left_behind(None if self.out is None else Path(self.out), self.store is not None, end)

    def _left(self, store: RunStore | NullStore) -> str:
        """What an interruption that did not wait for the batch in hand leaves behind, in one sentence."""
        if not isinstance(store, RunStore):
            return "interrupted at once: nothing was kept, since the run had no directory"
        place = near(store.path)
        found = sum(1 for _ in (store.path / "findings").glob("[!._]*"))
        go_on = f"go on with nnfuzz resume {typed(store.path)}"
        if self._over:
            kept = f"{place} holds {plural(found, 'finding')}"
            return f"interrupted after the last batch, without what was to follow: {kept}; {go_on}"
        done = (store.state() or {}).get("counters", {})
        if not done.get("batches"):
            if self.store is not None:
                return f"interrupted before the first batch was saved: {place} is as it was"
            store.discard()
            return "interrupted before the first batch was saved, so nothing was kept"
        kept = f"{place} holds {plural(done['inputs'], 'input')} and {plural(found, 'finding')}"
        return f"interrupted at once, without the batch in hand: {kept}; {go_on}"

    def _as_it_stands(self, fuzzer: Fuzzer, store: RunStore | NullStore, done: Over) -> Run:
        """Tells a run that has nothing left to do, and writes nothing: the state to resume from lacks its tail, and
        how its last session ended must still be known to whoever asks."""
        assert isinstance(store, RunStore)
        self.reporter.note(done.said)
        restore(fuzzer, store.state() or {}, store.records(), store.findings(), store.ancestry())
        stats, findings = as_it_stands(store, fuzzer.stats, done.stopped), store.findings()
        check_tried(stats, len(fuzzer.examiner.seeds))
        self.reporter.end(stats, findings, store.path)
        return Run(findings, stats, fuzzer.corpus, store.path, self.job.notes())

    def _say_if_seeds_fail(self, failing: int, total: int, found: Collection[Finding]) -> None:
        """That the two sides differ on ordinary inputs is something else than a rare input on which they do; so is a
        model that fails whatever it is given."""
        if not failing:
            return
        if failing == total and found and all(f.blames_no_input for f in found):
            self.reporter.note(
                f"{'the one seed fails' if total == 1 else f'all of {total} seeds fail'} unchanged, and no seed can do "
                "otherwise: the model holds what is not finite. That is a finding at distance 0, and the run ends here"
            )
            return
        known = (
            "that is a finding at distance 0, and the search starts from the other seeds"
            if failing < total
            else "that is a finding at distance 0, and no seed is left to search from, so the run ends here: give "
            "seeds that do not fail"
        )
        if self.settings.job != "diff":
            self.reporter.note(f"{failing} of {plural(total, 'seed')} fail{'s' * (failing == 1)} unchanged: {known}")
            return
        more = (
            "the two differ on ordinary inputs already; if that is known, a looser --compare (topk:5, "
            "allclose:1e-2,1e-2) looks for what is worse, and if it should not be, see whether both get the inputs "
            "with the preprocessing, order of channels and scale that they expect"
            + ("; no seed is left to search from, so the run ends here" if failing == total else "")
            if 2 * failing >= total
            else known
        )
        self.reporter.note(f"on {failing} of {plural(total, 'seed')} the two disagree, unchanged: {more}")

    def _say_if_cut_off(self, store: RunStore | NullStore, *, again: bool) -> None:
        """A session that wrote no end was killed, or the model took the process down: nobody was left to say which.

        ``again``: the batch in which it ended is run again now, after which only another death can be looked into."""
        if self.store is None or not isinstance(store, RunStore) or store.stopped():
            return
        batches = (store.state() or {}).get("counters", {}).get("batches")
        where = "looking at its seeds" if batches is None else f"in batch {batches + 1}"
        died = f" ({fatal})" if (fatal := last_words(store.path)) else ""
        crash = f"nnfuzz crash {typed(store.path)}"
        finds = f"it does so again now, and {crash} then finds the input" if again else f"{crash} finds the input"
        self.reporter.note(
            f"the last session ended {where} without a word{died}: if it was the model that took the process down, "
            f"{finds}"
        )

    def _say_if_blind(self, fuzzer: Fuzzer) -> None:
        """A search that cannot find anything must not end with "nothing found" alone."""
        for text in dict.fromkeys(o.remark for o in fuzzer.objectives if o.remark):
            self.reporter.note(text)
            self.blind.append(text)

    def _say_if_changed(self, store: RunStore | NullStore) -> None:
        """A run goes on with whatever model there is now; that it is another one than before is said."""
        recorded, cwd = store.manifest.get("fingerprint"), self.settings.context.get("cwd")
        found = changes(recorded, self.job.fingerprint, cwd=cwd, files=self.by_name)
        if found:
            self.reporter.note(said(found, "the run began"))

    def _loop(self, fuzzer: Fuzzer, store: RunStore | NullStore) -> Run:
        settings, stats = self.settings, fuzzer.stats
        fuzzer.clock.resume(stats.seconds)
        saved_at = -1.0
        store.write_stats(stats)  # from now on the run has no end until one is written

        def after_batch() -> None:
            nonlocal saved_at
            found = list(fuzzer.examiner.findings.values())
            self.reporter.update(stats, found)
            if stats.seconds - saved_at >= 5.0:
                saved_at = stats.seconds
                store.write_stats(stats)
                store.append_plot(stats)

        limits = Limits(settings.max_inputs, settings.max_seconds, settings.stop_on_first)
        with stop_on_signal(lambda: fuzzer.clock.stop_asked, fuzzer.clock.stop):
            fuzzer.loop(limits, after_batch)
        check_tried(stats, len(fuzzer.examiner.seeds))
        fuzzer.commit([])
        self._over = True
        reason, stats.stopped = stats.stopped, AFTER
        store.write_stats(stats)  # should it not get beyond what follows, resume has that left to do
        stats.stopped = reason
        findings = sorted(fuzzer.examiner.findings.values(), key=lambda f: f.id)
        after = self.job.afterwards(fuzzer, findings, store.path, self.reporter.note)
        for finding in findings:
            store.save_finding(finding)
        store.write_stats(stats)
        store.append_plot(stats)
        for note in [n for n in self.job.notes() if n not in self._said]:  # what only the search has shown
            self.reporter.note(note)
        self.reporter.end(stats, findings, store.path)
        notes = [*self.job.notes(), *self.blind]
        return Run(findings, stats, fuzzer.corpus, store.path, notes, after.least, after.sensitivity)

    def _fuzzer(self, space: InputSpace, groups: list[SeedGroup], store: RunStore | NullStore) -> Fuzzer:
        settings, target = self.settings, self.job.target
        total = sum(len(g.index) for g in groups)
        stats = Stats(seed=settings.seed, target=target.name, unit=target.unit)
        corpus = Corpus(space, most=max(settings.max_corpus, 2 * total), most_bytes=settings.max_corpus_bytes)
        frontier = Frontier(total)
        bandit, mutators = self._mutators(space)
        schedule = Schedule(corpus, frontier, settings.schedule)
        full = settings.batch_size or most_rows(target, groups)
        costly_from = min(COSTLY_FROM, full) if chunked(target) else COSTLY_FROM
        breeder = Breeder(space, corpus, schedule, mutators, bandit, settings.seed, target.device, costly_from)

        def reseed(run: int) -> None:
            seed_all(settings.seed + run, target.device)

        clock = Clock()
        clock.deadline = settings.max_seconds
        examiner = Examiner(
            target=target,
            space=space,
            corpus=corpus,
            stats=stats,
            sink=store,
            reseed=reseed,
            enrich=Enricher(self.job, space, settings).enrich,
            announce=self.reporter.finding,
            elapsed=clock.elapsed,
            late=clock.much_too_late,
            shrink_budget=settings.max_shrink,
            watch_internal=settings.watch == "internal",
            seeds={i: {n: t[r].cpu() for n, t in g.batch.items()} for g in groups for r, i in enumerate(g.index)},
        )
        coverage = None if settings.coverage == "none" else COVERAGES[settings.coverage]()
        keeper = Keeper(corpus, frontier, coverage, settings.radius, bandit, stats, clock.elapsed)
        objectives = self.job.objectives()
        climber = None
        if gradient.NAME in bandit.names:
            guides = self.job.guides(objectives)
            traced = target.traced if isinstance(target, PairTarget) else [self.job.side]
            climber = gradient.Climber(
                guides, space, corpus, schedule, target.unit, target.device, lambda: _sites(examiner),
                slots=min((s.slots for s in traced if s.slots is not None), default=None),
                allowance=together(s.allowance() for s in traced),
            )  # fmt: skip
            climber.late = clock.late
        parts = Parts(
            target, space, objectives, corpus, frontier, breeder, bandit, keeper, examiner, stats, climber, clock
        )
        return Fuzzer(
            parts,
            seed=settings.seed,
            most_rows=full,
            commit=store.commit if isinstance(store, RunStore) else None,
        )

    def _mutators(self, space: InputSpace) -> tuple[Bandit, dict[str, Mutator]]:
        asked = self.settings.mutators
        names = [*MUTATORS, gradient.NAME] if asked is None else list(asked)
        random = self.settings.coverage == "none"
        climbs = gradient.NAME in names and self.settings.gradients and not random and bool(followable(space))
        made = {n: MUTATORS[n]() for n in names if n != gradient.NAME}
        usable = {n: m for n, m in made.items() if m.targets(space)}
        if not usable and not climbs:
            raise nnfuzz.UsageError(
                f"none of the mutators {', '.join(names)} can change these inputs: leave --mutators out"
            )
        return Bandit([*usable, *([gradient.NAME] if climbs and self.job.guidable() else [])]), usable

    def _store(self, space: InputSpace, seeds: Seeds) -> RunStore | NullStore:
        if self.store is not None:
            return self.store
        if self.out is None:
            return NullStore()
        store = RunStore.create(self.out, self.manifest(space, seeds))
        try:
            save_seed_groups(store.path, self.job.given.groups)
            self.job.keep(store.path)
        except BaseException:
            store.discard()  # half a beginning is none
            raise
        return store

    def manifest(self, space: InputSpace, seeds: Seeds) -> dict[str, Any]:
        """What run.json holds."""
        return {
            "nnfuzz": nnfuzz.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "command": self.settings.context.get("command", [Path(sys.argv[0]).name]),
            "context": self.settings.context,
            "fingerprint": self.job.fingerprint,
            "settings": self.settings.to_json(),
            "form": seeds.form.to_json(),
            "stacked": self.job.stacked,
            "unit": self.job.target.unit,
            "inputs": [vars(row) for row in RunInfo.rows(space)],
        }

    def _info(self, space: InputSpace, fuzzer: Fuzzer, *, writes: bool = True) -> RunInfo:
        settings, target = self.settings, self.job.target
        self._said = self.job.notes()
        return RunInfo(
            title=f"nnfuzz {settings.job}",
            target=target.describe(),
            unit=target.unit,
            why=target.why,
            inputs=RunInfo.rows(space),
            seed=settings.seed,
            device=str(target.device),
            out=str(self.out or (self.store.path if self.store else None) or "") or None if writes else None,
            notes=self._said,
            searched=self.job.searched(),
            futile=self.job.futile(),
            max_inputs=settings.max_inputs,
            max_seconds=settings.max_seconds,
            settings={
                "coverage": settings.coverage,
                "watch": settings.watch,
                "gradients": settings.gradients,
                "batch": fuzzer.most_rows,
                "mutators": len(fuzzer.parts.bandit.names),
            },
        )


@contextmanager
def _told_if_early(resumed: RunStore | NullStore | None) -> Iterator[None]:
    """What an interruption leaves behind that came before anything was written."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if str(stop):
            raise
        if isinstance(resumed, RunStore):
            raise KeyboardInterrupt(f"interrupted before the run went on: {near(resumed.path)} is as it was") from stop
        raise KeyboardInterrupt(EARLY) from stop


def _sites(examiner: Examiner) -> set[str]:
    """Keys of the sites that findings stand at."""
    return {f.site.key for f in examiner.findings.values() if f.site is not None}


def chunked(target: Any) -> bool:
    """Whether the target runs a batch in parts of a size that suits it, however large the batch is."""
    return bool(getattr(getattr(target, "a", target), "chunk", 0))


def most_rows(target: Any, groups: list[SeedGroup]) -> int:
    """Rows of a full batch: bounded by memory and by how the target runs. A rule of shapes alone, never of time, so
    that the same seed gives the same run."""
    widest = max(sum(t[0].numel() * t.element_size() for t in g.batch.values()) for g in groups)
    side = getattr(target, "a", target)
    most = MOST_ROWS.get(getattr(side, "manner", "rows"), 512)
    room = CHUNKED * BATCH_BYTES if chunked(target) else BATCH_BYTES
    widest_result = getattr(side, "widest", 0)
    parts = chunked(target) and widest_result > 0
    at_once = CHUNKED * side.chunk if parts else LAYER_BYTES // max(1, widest_result)
    fits = min(room // max(1, widest), at_once)
    return max(8, min(most, 1 << int(np.log2(max(1, fits)))))


@contextmanager
def subnormals_flushed(asked: bool) -> Iterator[None]:
    """The processor's own switch, put back at the end: the caller's numbers are none of the run's business."""
    before = float(torch.tensor([1e-40]) * 1.0) == 0.0
    if asked and not torch.set_flush_denormal(True):
        raise nnfuzz.UsageError("flush_denormal was asked for, but this processor cannot flush subnormals")
    try:
        yield
    finally:
        if asked:
            torch.set_flush_denormal(before)


def resume_session(
    path: str | Path,
    settings: Settings,
    model: Callable[..., Any],
    model_b: Callable[..., Any] | None,
    reporter: Reporter | None,
    store: RunStore,
    by_name: bool,
) -> Run:
    """Goes on with a run directory; the settings are those it was begun with, but for the limits."""
    seeds = load_seed_groups(store.path, store.manifest)
    settings.context = with_copy(settings.context, store.path)
    session = Session(settings, model, model_b, seeds, out=path, reporter=reporter, store=store, by_name=by_name)
    return session.run(resume=True)
