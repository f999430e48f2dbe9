"""One sitting of a text run: begun or gone on with, run to a limit, saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nnfuzz.checkpoint import restore
from nnfuzz.errors import NnfuzzError, StoreError, UsageError
from nnfuzz.fingerprint import changes, fingerprint, said
from nnfuzz.fuzzer import Fuzzer, Limits
from nnfuzz.interrupt import stop_on_signal
from nnfuzz.leftover import Over, as_it_stands, check_tried, left_behind, over
from nnfuzz.report.base import Reporter, SilentReporter
from nnfuzz.report.words import near, plural, typed
from nnfuzz.run import Run
from nnfuzz.store import NullStore, RunStore
from nnfuzz.text import firstlook
from nnfuzz.text.assembly import Sink, assembled
from nnfuzz.text.climb import TextClimber
from nnfuzz.text.document import RunDocument, save_prompts
from nnfuzz.text.examine import TextExaminer
from nnfuzz.text.frontier import GoalFrontier
from nnfuzz.text.models.base import OutOfTime
from nnfuzz.text.models.blackbox import MOST_JUDGED, BlackBox
from nnfuzz.text.objectives import Together, make_objectives
from nnfuzz.text.objectives.base import TextObjective
from nnfuzz.text.prompts import Prompt
from nnfuzz.text.settings import TextSettings
from nnfuzz.text.setup import Setup, set_up
from nnfuzz.watcher import watching


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
        _check_pair(self.parts, model_b is not None or settings.as_ is not None)
        self.setup: Setup = set_up(settings, model, model_b, seeds, known)
        self.together = Together(self.parts, self.setup.codec, self.setup.model, self.setup.other)
        _check_room(self.together, settings.max_new)
        self.fingerprint = fingerprint(settings.context, {"model": _weights(model), "model_b": _weights(model_b)})
        self.document = RunDocument(settings, self.setup, self.together, self.fingerprint)
        self.groups = firstlook.groups_of(self.setup)

    def run(self, *, resume: bool = False) -> Run:
        """Fuzzes until a limit; Ctrl-C ends it cleanly after the batch in hand."""
        random_state = torch.get_rng_state()
        out = None if self.out is None else Path(self.out)
        try:
            with watching(lambda end: left_behind(out, self.store is not None, end, "prompt"), self.reporter.close):
                return self._run(resume)
        finally:
            torch.set_rng_state(random_state)
            self.reporter.close()

    def examiner_alone(self) -> TextExaminer:
        """For shrinking a finding without a search."""
        examiner = self._fuzzer(NullStore()).examiner
        assert isinstance(examiner, TextExaminer)
        return examiner

    def _run(self, resume: bool) -> Run:
        store, fuzzer = self._store(), None
        try:
            fuzzer = self._fuzzer(store)
            state = store.state() or {}
            begun = resume and bool(state.get("counters"))
            done = over(self.settings, store, store.path, "prompt") if begun and isinstance(store, RunStore) else None
            self.reporter.start(self._header(fuzzer, writes=done is None))
            if done is not None:
                return self._as_it_stands(fuzzer, state, store, done)
            firstlook.learn(fuzzer, self.together, self.groups)
            self._ask_twice(fuzzer)
            if begun:
                self._restore(fuzzer, state, store)
            else:
                firstlook.look_at_seeds(fuzzer, self.together, self.groups)
            return self._loop(fuzzer, store)
        except NnfuzzError as error:
            self._keep_what_was_found(error, fuzzer, store)
            raise
        except KeyboardInterrupt as stop:
            left = _left(store)
            if self.store is None and isinstance(store, RunStore):
                store.discard()  # nothing, once a batch is over
            raise KeyboardInterrupt(left) from stop
        finally:
            store.close()

    def _ask_twice(self, fuzzer: Fuzzer) -> None:
        """A function may draw random numbers that nobody here can seed."""
        if not any(isinstance(m, BlackBox) for m in (self.setup.model, self.setup.other)):
            return
        if firstlook.wavers(fuzzer, self.together, self.groups):
            assert isinstance(fuzzer.examiner, TextExaminer)
            fuzzer.examiner.wavers = True
            self.setup.notes.append(
                "two calls with the same seeds gave different answers: the model is not deterministic, so findings "
                "need not come again"
            )
            self.reporter.note(self.setup.notes[-1])

    def _loop(self, fuzzer: Fuzzer, store: RunStore | NullStore) -> Run:
        stats, sink = fuzzer.stats, Sink(store)
        fuzzer.clock.resume(stats.seconds)
        saved_at, target, most = -1.0, self.setup.target, self.settings.max_written
        begun = target.spent

        def after_batch() -> None:
            nonlocal saved_at
            if most is not None and target.spent - begun >= most:
                fuzzer.clock.stop()
            self.reporter.update(stats, list(fuzzer.examiner.findings.values()))
            if stats.seconds - saved_at >= 5.0:
                saved_at = stats.seconds
                store.write_stats(stats)
                store.append_plot(stats)

        limits = Limits(self.settings.max_inputs, self.settings.max_seconds, self.settings.stop_on_first)
        with stop_on_signal(lambda: fuzzer.clock.stop_asked, fuzzer.clock.stop):
            try:
                fuzzer.loop(limits, after_batch)
            except OutOfTime:  # in the middle of a batch, which is left unjudged
                stats.seconds = fuzzer.clock.elapsed()
                stats.stopped = "interrupted" if fuzzer.clock.stop_asked else "max-time"
        if most is not None and stats.stopped == "interrupted" and target.spent - begun >= most:
            stats.stopped = "max-written"
        check_tried(stats, len(self.setup.prompts), "prompt")
        fuzzer.commit([])
        findings = sorted(fuzzer.examiner.findings.values(), key=lambda f: f.id)
        for finding in findings:
            sink.save_finding(finding)
        store.write_stats(stats)
        store.append_plot(stats)
        climber, notes = fuzzer.parts.climber, list(self.setup.notes)
        if isinstance(climber, TextClimber) and climber.trouble:
            what = "gradients" if climber.gradients else "wishes"
            notes.append(f"{what} could not be followed ({climber.trouble}): the search went on without")
            self.reporter.note(notes[-1])
        for model in (self.setup.model, self.setup.other):
            if isinstance(model, BlackBox) and model.cut:
                notes.append(
                    f"{model.cut:,} answers of {model.name} were longer than {MOST_JUDGED:,} characters: only their "
                    "beginning was judged"
                )
                self.reporter.note(notes[-1])
        self.reporter.end(stats, findings, store.path)
        return Run(findings, stats, fuzzer.corpus, store.path, notes)

    # ------------------------------------------------------------------ the parts

    def _fuzzer(self, store: RunStore | NullStore) -> Fuzzer:
        return assembled(
            self.settings, self.setup, self.together, self.document, self.reporter, self.groups, store
        )  # fmt: skip

    def _header(self, fuzzer: Fuzzer, *, writes: bool = True) -> Any:
        out = str(self.out or (self.store.path if self.store else None) or "") or None if writes else None
        return self.document.header(out, batch=fuzzer.most_rows, mutators=len(fuzzer.parts.bandit.names))

    # ------------------------------------------------------------------ store and resume

    def _store(self) -> RunStore | NullStore:
        if self.store is not None:
            return self.store
        if self.out is None:
            return NullStore()
        store = RunStore.create(self.out, self.document.manifest())
        save_prompts(store, self.groups)
        return store

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

    def _as_it_stands(self, fuzzer: Fuzzer, state: dict[str, Any], store: RunStore | NullStore, done: Over) -> Run:
        """Tells a run that has nothing left to do, and writes nothing."""
        assert isinstance(store, RunStore)
        self.reporter.note(done.said)
        self._restore(fuzzer, state, store)
        stats, findings = as_it_stands(store, fuzzer.stats, done.stopped), store.findings()
        check_tried(stats, len(self.setup.prompts), "prompt")
        self.reporter.end(stats, findings, store.path)
        return Run(findings, stats, fuzzer.corpus, store.path, list(self.setup.notes))

    def _keep_what_was_found(self, error: NnfuzzError, fuzzer: Fuzzer | None, store: RunStore | NullStore) -> None:
        """The user's code may answer wrongly long after the search has begun: then the error says what there is.

        A run that never began must not stand in the way of the corrected command."""
        found = len(fuzzer.examiner.findings) if fuzzer is not None else 0
        batches = fuzzer.stats.batches if fuzzer is not None else 0
        if not isinstance(store, RunStore) or isinstance(error, StoreError):
            return
        if fuzzer is None or not (found or (store.state() or {}).get("counters", {}).get("batches")):
            if self.store is None:
                store.discard()
            return
        fuzzer.stats.stopped = "error"
        store.write_stats(fuzzer.stats)
        there = f"{near(store.path)} holds {plural(found, 'finding')}"
        error.args = (f"{error} (batch {batches}; {there}: nnfuzz resume {typed(store.path)} goes on)",)


def _check_pair(parts: list[TextObjective], second: bool) -> None:
    """A second model is there to be compared."""
    if second and not any(part.name == "disagree" for part in parts):
        asked = ", ".join(part.spec or part.name for part in parts)
        raise UsageError(
            f"there is a second model (MODEL_B or --as), but only {asked} is looked for, which judges the first alone: "
            "add --objective disagree, or leave the second out"
        )


def _check_room(together: Together, max_new: int) -> None:
    """What the model has no room to do wrong would be searched for in vain."""
    unit = together.model.out.unit
    for part in together.parts:
        if together.model.bounded and (need := part.needs(unit)) > max_new:
            raise UsageError(
                f"{part.spec} needs an output of {need:,} {unit}s at least, but --max-new (max_new) is {max_new:,}: "
                "give a larger one, or ask for less"
            )


def _left(store: RunStore | NullStore) -> str:
    """What an interruption that did not wait for the batch in hand leaves behind, in one sentence."""
    done = (store.state() or {}).get("counters", {})
    if not isinstance(store, RunStore) or not done.get("batches"):
        return "interrupted before the first batch was saved, so nothing was kept"
    kept = f"{near(store.path)} holds {plural(done['inputs'], 'prompt')}"
    return f"interrupted at once, without the batch in hand: {kept}; go on with nnfuzz resume {typed(store.path)}"


def _weights(given: Any) -> Any:
    model = given[0] if isinstance(given, tuple) and given else given
    return model if callable(model) else None
