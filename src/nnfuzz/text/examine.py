"""From a hit to a finding: confirmed alone, shrunk to the plainest prompt, counted over draws, told in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from nnfuzz.errors import NnfuzzError
from nnfuzz.examine import PATIENCE, Examiner, Hit, KeyState
from nnfuzz.findings.confirm import Confirmation, confirm, exception_cause, judge_alone
from nnfuzz.findings.finding import Finding
from nnfuzz.guard import run_guarded
from nnfuzz.objectives.base import Cause, Objective
from nnfuzz.space import Batch
from nnfuzz.targets.base import Trace, Want
from nnfuzz.text.codec import pack, unpack
from nnfuzz.text.models.base import never
from nnfuzz.text.objectives.base import Found, TextObjective
from nnfuzz.text.objectives.together import Only, Together, cause_of
from nnfuzz.text.shrink import TextShrinker
from nnfuzz.text.space import PROMPT
from nnfuzz.text.target import TextTarget
from nnfuzz.text.telling import first_bad, storable, told_steps, visible

AS_IT_FAILED = ("continuation", "spans", "steps")
DRAWS = 100
MORE = 5
"""Times that a finding of a model that wavers is confirmed again."""


@dataclass
class TextExaminer(Examiner):
    """Adds to ``Examiner`` what findings of text are. ``objective`` is told what is found, so that its goals close."""

    objective: Together | None = None
    at_once: int = 256
    """Prompts in a batch at most."""
    wavers: bool = False
    """Whether two calls with the same prompts were seen to differ: then nothing is the batch's doing."""

    @property
    def text_target(self) -> TextTarget:
        return cast(TextTarget, self.target)

    def which(self, objective: Objective, key: int, distances: Sequence[float]) -> int | None:
        """Any hit, until the cause is a confirmed finding; of a flaky one a few more are looked at."""
        state = self.keys.setdefault((self._slot(objective), key), KeyState())
        state.count += len(distances)
        known = self.findings.get(state.cause)
        if known is not None and (known.confirmed or state.looked >= PATIENCE):
            known.count += len(distances)
            return None
        state.looked += 1
        return state.looked % len(distances)

    def examine(self, hit: Hit) -> Finding | None:
        """Every cause that the candidate shows and that is no finding yet; returns the last one found. What was found
        in time is brought to its end: only shrinking and drawing have a limit."""
        with self.text_target.until(never):
            return self._examine(hit)

    def _examine(self, hit: Hit) -> Finding | None:
        if hit.error is not None:
            confirmation = self._confirm(hit.objective, hit.candidate)
            if confirmation.cause is None:  # it was alone when it raised
                confirmation = Confirmation("flaky", exception_cause(hit.error), None)
            return self._new(hit, confirmation, hit.objective)
        assert self.objective is not None
        found = None
        for cause in self._causes(hit):
            known = self.findings.get(cause.text)
            if known is not None and known.confirmed:
                continue
            only = Only(self.objective, cause.text)
            confirmation = self._confirm(only, hit.candidate)
            if confirmation.cause is None:
                confirmation.cause = cause
                confirmation.status = "flaky" if self.wavers else confirmation.status
            if confirmation.status != "confirmed":
                confirmation.cause.details |= {n: v for n, v in cause.details.items() if n in AS_IT_FAILED}
            confirmation.cause.details.setdefault("objective", cause.details.get("objective"))
            found = self._new(hit, confirmation, only) or found
        return found

    def _confirm(self, only: Objective, candidate: Batch) -> Confirmation:
        """Of a model that wavers, a few reruns that agree say little."""
        found = confirm(self.target, only, candidate, self.reseed)
        for _ in range(MORE if self.wavers and found.status == "confirmed" else 0):
            if confirm(self.target, only, candidate, self.reseed).status != "confirmed":
                found.status = "flaky"
                break
        return found

    def _causes(self, hit: Hit) -> list[Cause]:
        """What the candidate shows alone, beginning with what it was reported for."""
        assert self.objective is not None
        self.reseed(0)
        try:
            trace = self.target.run(hit.candidate, Want(layers=False))
        except NnfuzzError:
            raise
        except Exception:
            return []
        reading = self.objective.read(trace, hit.candidate)
        seen = self.objective.look(reading)[0][0]
        text = reading.texts[0] if seen and "tokens" in trace.outputs else None
        return [self._told(self.objective.part_of(goal), f, text) for goal, f in seen] or [self._gone(hit)]

    @staticmethod
    def _told(part: TextObjective, found: Found, text: str | None) -> Cause:
        """``text``: the continuation that it was seen in."""
        cause = cause_of(found)
        cause.details["objective"] = part.spec_of(found)
        return cause if text is None else _failed(cause, text)

    def _gone(self, hit: Hit) -> Cause:
        """What was seen in its batch, and alone no more."""
        assert self.objective is not None
        part, found = self.objective.reported.get(hit.key, (None, None))
        own, text = self.objective.said.get((hit.key, tuple(unpack(hit.candidate[PROMPT])[0])), (found, None))
        if self.wavers and part is not None and own is not None:
            return self._told(part, own, text)
        told = {"objective": part.spec_of(found)} if part is not None and found is not None else {}
        symptom = found.symptom if found is not None else TextObjective.symptom
        return Cause(symptom, "misbehaves, but only in its batch", details=told)

    def _new(self, hit: Hit, confirmation: Confirmation, only: Objective) -> Finding | None:
        cause = confirmation.cause
        if cause is None:
            return None
        state = self.keys.setdefault((self._slot(hit.objective), hit.key), KeyState())
        state.cause = state.cause or cause.text
        known = self.findings.get(cause.text)
        if known is not None and not (confirmation.status == "confirmed" and not known.confirmed):
            known.count += hit.count
            return None
        ids, note = unpack(hit.candidate[PROMPT])[0], ""
        if confirmation.status == "confirmed" and self.shrink_budget > 0:
            ids, note = self.shrunk(ids, only, cause.text, self.shrink_budget)
        finding = self._built(hit, ids, confirmation.status, only, cause, known)
        if note:
            finding.notes.append(note)
        self.findings[cause.text] = finding
        self.learn(finding)
        self.stats.findings = len(self.findings)
        self.stats.last_finding = self.elapsed()
        self.enrich(finding, hit.candidate)
        self.sink.save_finding(finding)
        if known is None:
            self.announce(finding)
        return finding

    def learn(self, finding: Finding) -> None:
        """The goal of a confirmed finding is over; an error that was seen to quote its prompt always does."""
        if finding.symptom == "exception":
            self.text_target.quoting.causes.add(finding.cause)
        goal = finding.details.get("goal")
        if self.objective is not None and finding.confirmed and isinstance(goal, int):
            self.objective.known[finding.cause] = goal

    # ------------------------------------------------------------------ shrinking

    def shrunk(self, ids: list[int], only: Objective, text: str, budget: int) -> tuple[list[int], str]:
        """The prompt, and a note when shrinking was cut short."""
        target = self.text_target
        width = max(len(ids), 1)

        def fails(prompts: list[list[int]]) -> list[bool]:
            self.reseed(0)
            return self.failing(pack(prompts, width), only, text)

        shrinker = TextShrinker(target.codec, target.model.shortest, fails, budget, self.late, self.at_once)
        with target.until(self.late):
            small = shrinker.shrink(ids)
        self.stats.extra_inputs += shrinker.tried
        self.reseed(0)
        cause, _ = judge_alone(target, only, {PROMPT: pack([small], width)})
        if cause is None or cause.text != text:  # only together with others, by the order of a summation
            return ids, "not shrunk: shorter prompts fail only in a batch"
        return small, "" if shrinker.complete else f"shrinking stopped early, after {shrinker.tried:,} prompts"

    def failing(self, packed: torch.Tensor, only: Objective, text: str) -> list[bool]:
        batch = {PROMPT: packed}
        if not isinstance(only, Only):  # an exception
            lone = (judge_alone(self.target, only, {PROMPT: packed[i : i + 1]})[0] for i in range(len(packed)))
            return [cause is not None and cause.text == text for cause in lone]
        guarded = run_guarded(self.target, batch, only.want, most_crashes=len(packed))
        failed = [False] * len(packed)
        if guarded.trace is not None:
            index = torch.from_numpy(guarded.ran)
            hits = only.judge(guarded.trace, {PROMPT: packed[index]}).hits.tolist()
            for row, hit in zip(guarded.ran.tolist(), hits, strict=True):
                failed[row] = hit
        return failed

    def redone(self, finding: Finding, ids: list[int], only: Objective, budget: int) -> Finding:
        """A saved finding with its prompt shrunk further."""
        small, note = self.shrunk(ids, only, finding.cause, budget)
        candidate = {PROMPT: pack([small], max(1, len(small)))}
        self.reseed(0)
        cause, trace = judge_alone(self.target, only, candidate)
        if cause is None:
            return finding
        finding.inputs, finding.outputs = _kept(small), _shown(trace)
        told = {**self._words(small, unpack(finding.seed[PROMPT])[0], trace), **cause.details}
        finding.details |= storable(told)
        self._draws(finding, small)
        finding.notes += [note] if note else []
        return finding

    # ------------------------------------------------------------------ the finding

    def _built(
        self, hit: Hit, ids: list[int], status: str, only: Objective, cause: Cause, known: Finding | None
    ) -> Finding:
        seed = unpack(self._seed(hit)[PROMPT][None])[0]
        candidate = {PROMPT: pack([ids], max(1, len(ids)))}
        self.reseed(0)
        again, trace = judge_alone(self.target, only, candidate)
        told = {"objective": cause.details.get("objective")}
        if again is None and "continuation" not in cause.details:  # the places are of another text
            cause.details.pop("spans", None)
        cause = again or cause
        told_now = self._words(ids, seed, trace)
        finding = Finding(
            id=known.id if known else self._next_id(),
            objective="text",
            symptom=cause.symptom,
            cause=cause.text,
            inputs=_kept(ids),
            outputs=_shown(trace),
            seed=_kept(seed),
            seed_index=hit.seed_index,
            lineage=[*self.corpus.lineage(hit.parent), {"id": None, "op": hit.mutator}],
            distance={"linf": float("inf"), "l2": float("inf"), "l0": float("inf")},
            inputs_tried=known.inputs_tried if known else self.stats.inputs,
            seconds=known.seconds if known else self.elapsed(),
            status=status,
            severity=cause.severity,
            count=known.count + hit.count if known else hit.count,
            details=storable({**told, **self._goal(cause.text, candidate, trace), **told_now, **cause.details}),
        )
        if status == "batch-only":
            finding.notes.append("it fails only together with the other candidates of its batch, not alone")
        elif status == "flaky":
            finding.notes.append("it does not fail every time: the model is not deterministic")
        if again is None and "continuation" in cause.details:
            now = visible(str(told_now.get("continuation", ""))[:80])
            finding.notes.append(f"what is shown is the continuation that failed; asked again, it wrote '{now}'")
        self._draws(finding, ids)
        return finding

    def _goal(self, text: str, candidate: Batch, trace: Trace | None) -> dict[str, Any]:
        """Which goal this is, and the words that name it alone."""
        if trace is None or self.objective is None:
            return {}
        for goal, found in self.objective.all_of(trace, candidate):
            if found.cause == text:
                part = self.objective.part_of(goal)
                return {"goal": goal, "objective": part.spec_of(found)}
        return {}

    def _words(self, ids: list[int], seed: list[int], trace: Trace | None) -> dict[str, Any]:
        target = self.text_target
        text = target.codec.decode(ids)
        unit = target.codec.unit
        told: dict[str, Any] = {"prompt": text, "seed prompt": target.codec.decode(seed)}
        told["near"] = f"prompt of {len(ids)} {unit}{'' if len(ids) == 1 else 's'}"
        if unit == "token":
            try:
                told["text gives these tokens"] = target.codec.encode(text) == ids
            except NnfuzzError:
                told["text gives these tokens"] = False
        if trace is not None and "tokens" in trace.outputs:
            written = unpack(trace.outputs["tokens"])[0]
            told["continuation"] = target.model.out.decode(written)
            if (stop := first_bad(trace.outputs)) is not None:
                told["continuation"] = target.model.out.decode(written[:stop])
                told["no distribution at step"] = stop
            told["steps"] = told_steps(target.model.out, written, trace.outputs)
        elif trace is not None:
            told["classes"] = trace.outputs["classes"][0].tolist()
            if "b.classes" in trace.outputs:
                told["B's classes"] = trace.outputs["b.classes"][0].tolist()
        return told

    def _draws(self, finding: Finding, ids: list[int]) -> None:
        """How often it happens: of a greedy model always or never, of draws a share."""
        target = self.text_target
        if not target.writing.temperature or self.objective is None or finding.symptom == "exception":
            return
        try:
            with target.until(self.late):
                trace = target.draws(ids, DRAWS)
        except Exception as error:  # a model that cannot be drawn from often is still a finding
            finding.notes.append(f"it could not be drawn {DRAWS} times: {error}"[:200])
            return
        batch = {PROMPT: pack([ids] * DRAWS, max(1, len(ids)))}
        self.stats.extra_inputs += DRAWS
        finding.details["draws"] = int(Only(self.objective, finding.cause).judge(trace, batch).hits.sum())
        finding.details["of draws"] = DRAWS


def _failed(cause: Cause, text: str) -> Cause:
    """With the continuation in it, whatever the model says when it is asked again."""
    cause.details |= {"continuation": text, "steps": []}
    return cause


def _kept(ids: list[int]) -> Batch:
    return {PROMPT: torch.tensor([ids], dtype=torch.int32).reshape(1, -1)}


def _shown(trace: Trace | None) -> dict[str, torch.Tensor]:
    names = ("tokens", "logp", "margin", "classes")
    outputs = trace.outputs if trace is not None else {}
    return {n: t.clone().contiguous() for n, t in outputs.items() if n.removeprefix("b.") in names}
