"""Running a saved finding again, and shrinking it further."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.callform import CallForm
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.findings.batch import as_taken, take_ways
from nnfuzz.findings.companions import confirm_in, failing_in, judge_in, with_row
from nnfuzz.findings.confirm import Confirmation, confirm, judge_alone, outputs_of
from nnfuzz.findings.finding import NO_BATCH, Finding, distance
from nnfuzz.findings.save import load_finding
from nnfuzz.findings.shrink import STOPPED_EARLY, Shrinker
from nnfuzz.findings.told_cause import told_cause
from nnfuzz.fingerprint import changes, said
from nnfuzz.guard import run_guarded
from nnfuzz.inputs import build_space
from nnfuzz.jobs import Job, make_job, with_copy
from nnfuzz.loading.models import given_model
from nnfuzz.objectives.base import Cause
from nnfuzz.objectives.compare import COMPARISONS
from nnfuzz.seeds import SeedGroup, Seeds
from nnfuzz.settings import Settings, at_least
from nnfuzz.space import Batch, size
from nnfuzz.targets import PairTarget, Trace
from nnfuzz.targets.precision import QuantizedLayer

NOWHERE = Path("/", "nnfuzz", "no", "directory")
"""Stands for the directory of a finding that was never saved."""


@dataclass
class ReproResult:
    """``reproduced``: it fails in the same way. ``symptom``: what it shows now ("" when it does not fail)."""

    reproduced: bool
    symptom: str
    lines: list[str] = field(default_factory=list)


def repro(finding: str | Path | Finding, model: Any = None, model_b: Any = None) -> ReproResult:
    """Runs a finding again in the real model.

    Args:
        finding: its directory, or a ``Finding``; of ``nnfuzz train``, ``nnfuzz text`` and ``nnfuzz crash`` the
            directory alone.
        model, model_b: needed when the run was started in Python; from the command line they are loaded by name.

    Raises:
        UsageError: what is missing, in one sentence.
    """
    if not isinstance(finding, Finding) and is_training(finding):
        from nnfuzz.training import again as training

        return training.repro(finding, model)
    finding, place = _opened(finding)
    if _is_text(finding):
        from nnfuzz.text import again

        return again.repro(_saved(finding, place), model, model_b)
    if finding.symptom == "crash":
        return _repro_crash(_saved(finding, place), finding)
    job = job_of(finding, place, model, model_b)
    with job.target_session():
        prepare(job, finding)
        objective = _objective_of(job, finding)
        _learn_from_seed(job, objective, finding)
        alone = confirm(job.target, objective, _candidate(finding, job), reseed)
        beside = None if finding.batch is None else confirm_in(job.target, objective, finding.batch, reseed)
    lines = [f"recorded: {finding.symptom} ({told_cause(finding)})"]
    if changed := changed_since(finding, job, by_name=model is None and model_b is None):
        lines.append(f"note: {changed}")
    lines += _told_of_batch(finding, beside, alone)
    seen = alone if beside is None or beside.cause is None else beside
    if seen.cause is None:
        return ReproResult(False, "", [*lines, "seen now: it does not fail"])
    lines += [f"seen now: {seen.cause.symptom} ({seen.cause.text}), {seen.status}"]
    return ReproResult(seen.cause.symptom == finding.symptom, seen.cause.symptom, lines)


def _told_of_batch(finding: Finding, beside: Confirmation | None, alone: Confirmation) -> list[str]:
    """What was run, where the candidate failed in its batch only."""
    if finding.lacks_batch:
        return [f"note: {NO_BATCH}, so it is run alone"]
    if beside is None or finding.batch is None:
        return []
    lines = [f"run with its batch: it is {finding.batch.told()}"]
    if beside.cause is None:
        lines.append("run again with its batch it does not fail: the model is not deterministic, or has been mended")
    if alone.cause is not None:
        lines.append(f"run alone it fails: {alone.cause.symptom} ({alone.cause.text}), {alone.status}")
    return lines


def checked_place(given: Any) -> Path:
    """A finding's directory as a path. Raises ``UsageError`` for what names none."""
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise UsageError(
        f"a {type(given).__name__} was given, but a finding is needed: give its directory, such as RUN/findings/F0001, "
        "or one of run.findings"
    )


def _opened(given: str | Path | Finding) -> tuple[Finding, Path]:
    """A finding and where it lies; ``NOWHERE`` for one in memory."""
    if not isinstance(given, Finding):
        place = checked_place(given)
        return load_finding(place), place
    saved = given.place is not None and (given.place / "finding.json").is_file()
    return given, given.place if saved and given.place is not None else NOWHERE


def _saved(finding: Finding, place: Path) -> Path:
    """The directory of what can be rerun from its directory alone."""
    if place == NOWHERE:
        raise UsageError(
            f"{finding.id} ({finding.symptom}) is rerun from what was saved of it: give its directory, such as "
            f"RUN/findings/{finding.id}"
        )
    return place


def is_training(finding_dir: str | Path) -> bool:
    """Whether a directory holds a finding of ``nnfuzz train``, which other code reruns."""
    from nnfuzz.store_files import from_json

    path = checked_place(finding_dir) / "finding.json"
    return path.is_file() and from_json(path).get("kind") == "training"


def _is_text(finding: Finding) -> bool:
    return bool(finding.details.get("run", {}).get("job") == "text")


def _repro_crash(place: Path, finding: Finding) -> ReproResult:
    from nnfuzz.crash.find import died_of

    recorded, signal = f"recorded: {finding.symptom} ({finding.cause})", died_of(place / "repro.py")
    if not signal:
        return ReproResult(False, "", [recorded, "seen now: its process, one of its own, comes through"])
    return ReproResult(True, finding.symptom, [recorded, f"seen now: its process, one of its own, died of {signal}"])


def reseed(run: int) -> None:
    """A model that draws random numbers draws the same ones in every rerun."""
    torch.manual_seed(run)


def shrink(finding: str | Path | Finding, model: Any = None, model_b: Any = None, max_inputs: int = 20_000) -> Any:
    """Shrinks a finding further and saves it in place; returns it. It only ever gets nearer to its seed.

    A ``Finding`` is changed itself, and saved too where its run has a directory. One in memory knows the ranges of its
    run, but no other limit to what is legal (kinds, a constraint). A finding of ``nnfuzz train`` (its directory; then
    ``model`` is the program's file) loses training steps instead, ``max_inputs`` of them are spent on it, and a
    ``TrainingFinding`` is returned.

    Raises:
        UsageError: what is missing, in one sentence.
    """
    if max_inputs is None or not at_least(0, max_inputs):
        raise UsageError(f"max_inputs is {max_inputs!r}, but it is a limit: give a number from 0 up")
    if not isinstance(finding, Finding) and is_training(finding):
        from nnfuzz.training import again as training

        return training.shrink(finding, model, max_inputs)
    finding, place = _opened(finding)
    if _is_text(finding):
        from nnfuzz.text import again

        return again.shrink(_saved(finding, place), model, model_b, max_inputs)
    if finding.lacks_batch:
        raise UsageError(f"{finding.id} cannot be shrunk: {NO_BATCH}")
    job = job_of(finding, place, model, model_b)
    if any(finding.inputs[n].shape != finding.seed[n].shape for n in finding.inputs):
        raise UsageError("the finding has other shapes than its seed, and such findings cannot be shrunk yet")
    if finding.is_its_seed:
        return finding
    with job.target_session():
        prepare(job, finding)
        settings = job.settings
        seeds = Seeds(job.given.form, [SeedGroup(_wrapped(finding.seed, job), [finding.seed_index])], False)
        space = build_space(
            seeds, ranges=_ranges_of(finding, settings), kinds=settings.kinds, fixed=settings.fixed, eps=settings.eps,
            constraint=job.constraint(),
        )  # fmt: skip
        objective = _objective_of(job, finding)
        _learn_from_seed(job, objective, finding)
        candidate = _candidate(finding, job)
        judge = _judging(job, objective, finding)
        before, _ = judge(candidate)
        if before is None:
            raise UsageError(f"{finding.id} does not fail any more, so there is nothing to shrink: see nnfuzz repro")

        def fails(batch: Batch) -> torch.Tensor:
            mask = torch.zeros(size(batch), dtype=torch.bool)
            guarded = run_guarded(job.target, batch, objective.want)
            for row in guarded.ran.tolist() if guarded.trace is not None else []:
                lone = {n: t[row : row + 1] for n, t in batch.items()}
                at = guarded.ran.tolist().index(row)
                assert guarded.trace is not None
                part = guarded.trace.rows(slice(at, at + 1))
                if bool(objective.judge(part, lone).hits[0]):
                    mask[row] = objective.cause(part, lone).text == before.text
            return mask

        if (saved := finding.batch) is None:
            judged: Callable[[Batch], Tensor] = fails
        else:
            judged = failing_in(job.target, objective, saved, before.text, reseed)
        shrinker = Shrinker(space, space.anchors(_wrapped(finding.seed, job)), judged, max_inputs)
        small = shrinker.shrink(candidate)
        after, trace = judge(small)
        told = finding.notes
        if shrinker.complete:
            finding.notes = [note for note in told if not note.startswith(STOPPED_EARLY)]
        same = after is None or all(torch.equal(small[n], candidate[n]) for n in small)
        if after is not None:
            finding.severity = after.severity
            others = {k: v for k, v in finding.details.items() if k not in before.details}
            finding.details = others | after.details
            finding.inputs = {n: t.cpu().clone() for n, t in job.target.model_input(small).items()}
            finding.distance = distance(finding.inputs, finding.seed)
            if saved is not None:
                for name, t in saved.inputs.items():
                    t[saved.row] = finding.inputs[name]
            if trace is not None:
                finding.outputs = outputs_of(job.target, trace)
    if changed := changed_since(finding, job, by_name=model is None and model_b is None):
        finding.notes.append(f"when it was shrunk, {changed}")
        finding.details["run"]["fingerprint"] = job.fingerprint
    if place != NOWHERE and (not same or changed or finding.notes != told):
        finding.save(place)
    return finding


def _judging(job: Job, objective: Any, finding: Finding) -> Callable[[Batch], tuple[Cause | None, Trace | None]]:
    """Judges a candidate alone, or, where the finding has a batch, in the place of its row there."""
    saved = finding.batch
    if saved is None:
        return lambda candidate: judge_alone(job.target, objective, candidate)
    take_ways(job.target, saved.ways)
    batch, row = as_taken(job.target, saved), saved.row

    def judge(candidate: Batch) -> tuple[Cause | None, Trace | None]:
        reseed(0)
        return judge_in(job.target, objective, with_row(batch, row, candidate), row)

    return judge


def changed_since(finding: Finding, job: Job, *, by_name: bool) -> str:
    """One sentence when the model is no longer the one that the finding was made with, else ""."""
    recorded, cwd = finding.details.get("run", {}).get("fingerprint"), job.settings.context.get("cwd")
    return said(changes(recorded, job.fingerprint, cwd=cwd, files=by_name), "this was found")


def _ranges_of(finding: Finding, settings: Settings) -> Any:
    """The ranges of the run: what the user gave, and what its seeds spanned where nothing was given."""
    if settings.ranges is not None and not isinstance(settings.ranges, dict):
        return settings.ranges
    spanned = {n: tuple(r) for n, r in finding.details.get("run", {}).get("ranges", {}).items()}
    assert finding.call is not None
    return spanned | {finding.call.resolve(n, "ranges"): r for n, r in (settings.ranges or {}).items()}


def job_of(finding: Finding, place: str | Path, model: Any, model_b: Any) -> Job:
    """The job that found it, with the seed of the finding as its only seed."""
    if finding.symptom == "crash":
        raise Unsupported(
            f"{finding.id} takes the whole process down: only nnfuzz repro, in a process of its own, and its repro.py "
            "run it"
        )
    run = finding.details.get("run", {})
    settings = _settings_of(finding, Path(place))
    named = finding.id if Path(place) == NOWHERE else place
    a = given_model(model, run, "model") or model_by_name(run, "model", named)
    needs_b = settings.job == "diff" and settings.as_ is None
    b = given_model(model_b, run, "model_b") or (model_by_name(run, "model_b", named) if needs_b else None)
    assert finding.call is not None
    job = make_job(settings, a, b, _seeds_of(finding, finding.call, settings))
    job.found_in = Path(place)
    return job


def _seeds_of(finding: Finding, call: CallForm, settings: Settings) -> Seeds:
    """The finding's seed in the form in which its run took seeds."""
    if settings.job == "rows":  # a candidate is made of rows, and rows are what that job takes
        return Seeds(call, [SeedGroup(finding.seed, list(range(size(finding.seed))))], True)
    whole = finding.details.get("run", {}).get("unit") == "batch"
    batch = {n: (t[None] if whole else t) for n, t in finding.seed.items()}
    return Seeds(call, [SeedGroup(batch, [0])], not whole)


def prepare(job: Job, finding: Finding) -> None:
    """Prepares a finding's job. An int8 copy of a module is calibrated on all seeds of a run, of which a finding has
    one: it gets the ranges of activations that the run found."""
    job.prepare()
    recorded = finding.details.get("run", {}).get("int8") or {}
    if not recorded or not isinstance(job.target, PairTarget) or not isinstance(job.target.b.model, nn.Module):
        return
    for path, layer in job.target.b.model.named_modules():
        if isinstance(layer, QuantizedLayer) and path in recorded:
            low, high = recorded[path]
            layer.low.fill_(low)
            layer.high.fill_(high)


def _settings_of(finding: Finding, place: Path) -> Settings:
    """Those of the run directory around the finding when it is still there, else what the finding itself knows."""
    from nnfuzz.store_files import from_json

    run = finding.details.get("run", {})
    live = {
        "objective": object_by_name(run, "objective"),
        "compare": object_by_name(run, "compare"),
    }
    manifest = place.resolve().parent.parent / "run.json"
    if manifest.is_file():
        data = from_json(manifest)
        live["constraint"] = object_by_name(data.get("context", {}), "constraint")
        settings = Settings.from_json(data["settings"], **live)
        settings.context = with_copy(data.get("context", {}), manifest.parent)
    else:
        ranges = {n: tuple(r) for n, r in run.get("ranges", {}).items()}
        settings = Settings(
            job=run.get("job", "nan"), ranges=ranges, as_=run.get("as_"), ties=bool(run.get("ties")),
            train=bool(run.get("train")), tolerance=tuple(run.get("tolerance", (1e-5, 1e-4))),
            compare=live["compare"] or run.get("compare") or "argmax",
            objective=live["objective"] or run.get("objective"),
            flush_denormal=bool(run.get("flush_denormal")), context=run,
        )  # fmt: skip
    settings.unit = run.get("unit", "auto") if run.get("unit") != "batch" else "auto"
    settings.shapes = None
    return settings


def _objective_of(job: Job, finding: Finding) -> Any:
    objectives = job.objectives()
    wanted = finding.phase == "backward"
    return next((o for o in objectives if o.want.backward == wanted), objectives[0])


def _learn_from_seed(job: Job, objective: Any, finding: Finding) -> None:
    batch = _wrapped(finding.seed, job)
    guarded = run_guarded(job.target, batch, objective.want)
    if guarded.trace is not None:
        objective.learn(guarded.trace, batch)
    objective.recall(finding.details)


def _candidate(finding: Finding, job: Job) -> Batch:
    return _wrapped(finding.inputs, job)


def _wrapped(inputs: Batch, job: Job) -> Batch:
    """Model input → a batch of one candidate, on the target's device."""
    device = job.target.device
    return {n: (t if job.target.unit == "sample" else t[None]).to(device) for n, t in inputs.items()}


def model_by_name(context: dict[str, Any], which: str, place: str | Path) -> Callable[..., Any]:
    """Loads the model that the command line named; says what to pass when there was no name."""
    spec, option = context.get(which), f"--{which.replace('_', '-')}"
    if not spec:
        raise UsageError(
            f"{place} was made in Python, so it does not know its model: pass {which}=…, on the command line {option}"
        )
    from nnfuzz.loading import started_in
    from nnfuzz.loading.models import load_model, runtime_of

    folder = context.get("cwd")
    try:
        with started_in(folder):
            return load_model(spec, bool(context.get("trust", False)), runtime_of(context, which))
    except UsageError as error:
        if not folder or Path(folder).is_dir():
            beside = f" in {folder}" if folder else ""
            raise UsageError(
                f"{error}: {place} names its model {spec}, to be loaded{beside}; say where it is now with {option}"
            ) from error
        raise UsageError(f"{error} (the run was started in {folder}, which is gone: give {option})") from error


def object_by_name(context: dict[str, Any], which: str) -> Any:
    """A function named on the command line (``pkg.mod:fn``), None when there is none."""
    spec = context.get(which)
    if not isinstance(spec, str) or ":" not in spec or spec.split(":")[0] in COMPARISONS:
        return None
    from nnfuzz.loading import load_object, started_in

    with started_in(context.get("cwd")):
        return load_object(spec)
