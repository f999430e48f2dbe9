"""From a hit to a finding: confirm, locate, tell apart, shrink, save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from nnfuzz.corpus import Corpus
from nnfuzz.findings.companions import Together, locate_together, together
from nnfuzz.findings.companions import said as told_together
from nnfuzz.findings.confirm import Confirmation, confirm, exception_cause, judge_alone, locate, outputs_of
from nnfuzz.findings.finding import Finding, distance
from nnfuzz.findings.shrink import STOPPED_EARLY, Shrinker
from nnfuzz.guard import run_guarded
from nnfuzz.objectives.base import Cause, Objective
from nnfuzz.probe import BadOp
from nnfuzz.space import Anchors, Batch, InputSpace, size
from nnfuzz.stats import Stats
from nnfuzz.targets import Target

SHRINK_BUDGET = 4000
"""Candidates that shrinking one finding may run."""
PATIENCE = 16
"""Hits of one key are looked at in every batch until so many looks in a row have shown no new cause; then seldom."""
STRIDE = 7919
"""A prime, to look at other places of a batch each time."""
ONLY_THERE = ", only in its batch"
CLOSER = 0.9
"""A later hit of a known cause replaces the finding when it is at most this share of its distance away."""


@dataclass
class Hit:
    """One failing candidate as it came out of a batch (tensors with a leading axis of 1)."""

    candidate: Batch
    anchor: Anchors
    seed_index: int
    parent: int | None
    mutator: str
    key: int
    objective: Objective
    error: Exception | None = None
    count: int = 1
    """How many hits of its batch this one stands for."""
    batch: Batch | None = None
    """The batch that it came out of, where it is known, and its row there."""
    row: int = 0


@dataclass
class KeyState:
    """What is known of hits with one key: how many, how many were looked at, the nearest distance seen."""

    count: int = 0
    looked: int = 0
    nearest: float = float("inf")
    quiet: int = 0
    """Looks since the last new cause."""
    cause: str = ""
    """What the last look found: hits that are not looked at are counted there."""


class Sink(Protocol):
    """Where findings go (a run directory, or memory)."""

    def save_finding(self, finding: Finding) -> Any: ...


@dataclass
class Examiner:
    """Turns hits into findings. Once hits of one key have shown nothing new for a while they are looked at again only
    as their number doubles, or when they are nearer to their seed, so that a common failure does not eat the run."""

    target: Target
    space: InputSpace
    corpus: Corpus
    stats: Stats
    sink: Sink
    reseed: Callable[[int], None]
    enrich: Callable[[Finding, Batch], None]
    announce: Callable[[Finding], None]
    elapsed: Callable[[], float]
    shrink_budget: int = SHRINK_BUDGET
    watch_internal: bool = False
    late: Callable[[], bool] = lambda: False
    seeds: dict[int, Batch] = field(default_factory=dict)
    keys: dict[tuple[str, int], KeyState] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def has_found(self) -> bool:
        """Whether something failed also by itself; what fails only within its batch does not end a search."""
        return any(f.status != "batch-only" for f in self.findings.values())

    def which(self, objective: Objective, key: int, distances: Sequence[float]) -> int | None:
        """Counts the hits of one batch and says which of them should be examined, if any: the nearest, or, in every
        second look, any: one key may hide several causes, and the nearest is always the same."""
        state = self.keys.setdefault((self._slot(objective), key), KeyState())
        state.count += len(distances)
        at = min(range(len(distances)), key=lambda i: distances[i])
        closer = distances[at] < CLOSER * state.nearest
        if state.count < 2**state.looked and state.quiet >= PATIENCE and not closer:
            if state.cause in self.findings:
                self.findings[state.cause].count += len(distances)
            return None
        state.looked += 1
        state.nearest = min(state.nearest, distances[at])
        return at if closer or state.looked % 2 else (state.looked * STRIDE) % len(distances)

    def examine(self, hit: Hit) -> Finding | None:
        """Returns the finding when the hit is a new cause, or a nearer case of a known one."""
        confirmation = confirm(self.target, hit.objective, hit.candidate, self.reseed)
        beside = self._together(hit) if confirmation.cause is None else None
        cause = confirmation.cause or self._cause_in_batch(hit, beside)
        backward = cause.phase == "backward"
        if confirmation.cause is not None:
            bad = self._locate(hit.candidate, cause, backward)
        else:
            bad = locate_together(self.target, beside, watch_internal=self.watch_internal) if beside else None
        if cause.details.get("vanishes again") and hit.objective.want.internal and bad is None:
            return None  # by design after all (a mask of −inf): the closer look says so
        if cause.details.get("vanishes again") and bad is not None:
            cause.symptom = bad.symptom
        text = self._text(cause, bad)
        if confirmation.cause is None:
            text = f"{text.removesuffix(ONLY_THERE)}{ONLY_THERE}"
        far = distance(_one(hit.candidate), self._seed(hit))
        known = self.findings.get(text)
        state = self.keys.setdefault((self._slot(hit.objective), hit.key), KeyState())
        state.cause, state.quiet = text, state.quiet + 1 if known else 0
        if known is not None and not self._better(known, confirmation, beside, far):
            known.count += hit.count
            return None
        candidate, note = hit.candidate, ""
        if confirmation.status == "confirmed" and cause.symptom != "exception":
            candidate, bad, confirmation, note = self._shrink(hit, text, bad, confirmation)
        elif confirmation.status == "confirmed":
            candidate = self._shrink_exception(hit, cause)
            if bad is not None and candidate is not hit.candidate:
                # What is told of operands is told of the input that is kept.
                found = self._locate(candidate, cause, backward)
                same = found is not None and self._text(cause, found) == text
                bad, candidate = (found, candidate) if same else (bad, hit.candidate)
            if candidate is not hit.candidate:  # so is its message
                shown, _ = judge_alone(self.target, hit.objective, candidate)
                if shown is not None and shown.text == cause.text:
                    confirmation.cause = shown
        finding = self._build(hit, candidate, confirmation, cause, text, bad, known)
        if confirmation.cause is None and hit.error is not None:
            finding.notes.append("it raised once, and not when it was run again: the model is not deterministic")
        elif confirmation.cause is None and hit.batch is not None:
            finding.notes.append(told_together(beside, self.target.unit))
        if beside is not None:
            beside.complete(finding, self.target, hit.objective.want)
        if note:
            finding.notes.append(note)
        self.findings[text] = finding
        self.stats.findings = len(self.findings)
        self.stats.last_finding = self.elapsed()
        self.enrich(finding, candidate)
        self.sink.save_finding(finding)
        if known is None:
            self.announce(finding)
        return finding

    @staticmethod
    def _better(known: Finding, seen: Confirmation, beside: Together | None, far: dict[str, float]) -> bool:
        """Whether a case takes the place of a known one with the same cause: what can be rerun is worth more than what
        cannot, and then what is nearer."""
        if known.confirmed and seen.status != "confirmed":
            return False
        saves = beside is not None and beside.fits
        if known.in_batch_only and seen.status == "batch-only" and saves != (known.batch is not None):
            return saves
        return far["linf"] < CLOSER * known.distance["linf"]

    def _slot(self, objective: Objective) -> str:
        return f"{objective.name}{'~backward' if objective.want.backward else ''}"

    def _together(self, hit: Hit) -> Together | None:
        if hit.batch is None or hit.error is not None:
            return None
        return together(self.target, hit.objective, hit.batch, hit.row, self.reseed)

    def _cause_in_batch(self, hit: Hit, beside: Together | None) -> Cause:
        if hit.error is not None:
            return exception_cause(hit.error)
        if beside is not None:
            return beside.cause
        symptom = {"nonfinite": "nan", "disagreement": "disagreement"}.get(hit.objective.name, "property")
        return Cause(symptom, symptom)

    def _locate(self, candidate: Batch, cause: Cause, backward: bool) -> BadOp | None:
        if not cause.trace_site:
            return None
        raises = cause.symptom == "exception"
        return locate(self.target, candidate, backward=backward, raises=raises, watch_internal=self.watch_internal)

    @staticmethod
    def _text(cause: Cause, bad: BadOp | None) -> str:
        if bad is None:
            return cause.text
        if cause.symptom == "exception":
            return f"{cause.text} at {bad.site.key}"
        return f"{cause.phase} non-finite at {bad.site.key}"

    def _shrink(
        self, hit: Hit, text: str, bad: BadOp | None, before: Confirmation
    ) -> tuple[Batch, BadOp | None, Confirmation, str]:
        """Shrinks and looks again: a smaller case of *another* cause is no shrink of this one."""
        values = hit.anchor.values
        if self.shrink_budget <= 0 or any(hit.candidate[n].shape != values[n].shape for n in hit.candidate):
            return hit.candidate, bad, before, ""
        shrinker = Shrinker(self.space, hit.anchor, self._fails_like(hit), self.shrink_budget, self.late)
        small = shrinker.shrink(hit.candidate)
        self.stats.extra_inputs += shrinker.tried
        self.reseed(0)
        cause, trace = judge_alone(self.target, hit.objective, small)
        if cause is not None and trace is not None:
            found = self._locate(small, cause, cause.phase == "backward")
            if cause.details.get("vanishes again") and found is not None:
                cause.symptom = found.symptom
            if self._text(cause, found) == text:
                note = "" if shrinker.complete else f"{STOPPED_EARLY}, after {shrinker.tried:,} inputs"
                return small, found, Confirmation("confirmed", cause, trace), note
        return hit.candidate, bad, before, "not shrunk: nearer cases fail in another way"

    def _fails_like(self, hit: Hit) -> Callable[[Batch], Tensor]:
        def fails(batch: Batch) -> Tensor:
            self.reseed(0)
            guarded = run_guarded(self.target, batch, hit.objective.want)
            mask = torch.zeros(size(batch), dtype=torch.bool)
            if guarded.trace is None:
                return mask
            ran = torch.from_numpy(guarded.ran)
            subset = batch if len(ran) == size(batch) else {n: t[ran.to(t.device)] for n, t in batch.items()}
            verdict = hit.objective.judge(guarded.trace, subset)
            same = verdict.hits if verdict.keys is None else verdict.hits & (verdict.keys == hit.key)
            mask[ran] = same.cpu()
            return mask

        return fails

    def _shrink_exception(self, hit: Hit, cause: Cause) -> Batch:
        values = hit.anchor.values
        if self.shrink_budget <= 0 or any(hit.candidate[n].shape != values[n].shape for n in hit.candidate):
            return hit.candidate

        def fails(batch: Batch) -> Tensor:
            mask = torch.zeros(size(batch), dtype=torch.bool)
            for i in range(size(batch)):
                got, _ = judge_alone(self.target, hit.objective, {n: t[i : i + 1] for n, t in batch.items()})
                mask[i] = got is not None and got.text == cause.text
            return mask

        shrinker = Shrinker(self.space, hit.anchor, fails, min(self.shrink_budget, 1000), self.late)
        small = shrinker.shrink(hit.candidate)
        self.stats.extra_inputs += shrinker.tried
        return small

    def _next_id(self) -> str:
        """After the last one that is there: a finding that somebody has moved away must not cost another its name."""
        numbers = [int(f.id[1:]) for f in self.findings.values() if f.id[1:].isdigit()]
        return f"F{max(numbers, default=0) + 1:04d}"

    def _seed(self, hit: Hit) -> Batch:
        """The given seed itself, one candidate; for a reshaped candidate it has another shape."""
        return self.seeds.get(hit.seed_index) or {n: t[0].cpu() for n, t in hit.anchor.values.items()}

    def _build(
        self,
        hit: Hit,
        candidate: Batch,
        confirmation: Confirmation,
        cause: Cause,
        text: str,
        bad: BadOp | None,
        known: Finding | None,
    ) -> Finding:
        cause = confirmation.cause or cause
        seed = self._seed(hit)
        lone = self.target.model_input({n: t.cpu() for n, t in candidate.items()})
        lone_seed = self.target.model_input({n: t[None] for n, t in seed.items()})
        finding = Finding(
            id=known.id if known else self._next_id(),
            objective=hit.objective.name,
            symptom=cause.symptom,
            cause=text,
            inputs={n: t.clone() for n, t in lone.items()},
            outputs=outputs_of(self.target, confirmation.trace),
            seed={n: t.clone() for n, t in lone_seed.items()},
            seed_index=hit.seed_index,
            lineage=[*self.corpus.lineage(hit.parent), {"id": None, "op": hit.mutator}],
            distance=distance(_one(candidate), seed),
            inputs_tried=known.inputs_tried if known else self.stats.inputs,
            seconds=known.seconds if known else self.elapsed(),
            status=confirmation.status,
            phase=cause.phase,
            site=bad.site if bad else None,
            severity=cause.severity,
            count=known.count + hit.count if known else hit.count,
            details=dict(cause.details),
        )
        if bad is not None:
            finding.details["bad_op"] = str(bad)
        if confirmation.status == "batch-only":
            finding.notes.append("it fails only together with the other candidates of its batch, not alone")
        elif confirmation.status == "flaky":
            finding.notes.append("it fails alone, but not every time: the model is not deterministic")
        return finding


def _one(candidate: Batch) -> Batch:
    return {n: t[0].cpu() for n, t in candidate.items()}


def hit_distances(batch: Batch, anchors: Anchors, at: Sequence[int]) -> list[float]:
    """L∞ of some rows of a batch to their anchors; infinite where the shapes differ."""
    index = torch.tensor(list(at))
    worst = torch.zeros(len(index), dtype=torch.float64)
    for name, x in batch.items():
        anchor = anchors.values[name]
        if x.shape[1:] != anchor.shape[1:]:
            return [float("inf")] * len(index)
        here, there = x[index.to(x.device)], anchor[index.to(anchor.device)]
        if x.is_complex() or not x[0].numel():
            continue
        gap = (here.double() - there.double()).abs().reshape(len(index), -1).nan_to_num(0.0).amax(1)
        worst = torch.maximum(worst, gap.cpu())
    return worst.tolist()
