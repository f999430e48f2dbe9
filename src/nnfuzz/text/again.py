"""Text findings and runs that were left behind: rerun, shrunk further, gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.findings.confirm import confirm
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import load_finding
from nnfuzz.fingerprint import changes, fingerprint, said
from nnfuzz.loading import started_in
from nnfuzz.report.base import Reporter
from nnfuzz.rerun import ReproResult, reseed
from nnfuzz.run import Run
from nnfuzz.store import RunStore
from nnfuzz.text.codec import pack, unpack
from nnfuzz.text.document import saved_prompts
from nnfuzz.text.models.blackbox import BlackBox
from nnfuzz.text.models.load import load_given
from nnfuzz.text.objectives.together import Only
from nnfuzz.text.session import TextSession
from nnfuzz.text.settings import JOB, TextSettings
from nnfuzz.text.space import PROMPT
from nnfuzz.text.telling import lines


def is_text(finding: Finding) -> bool:
    """Whether a finding is one of text."""
    run = finding.details.get("run")
    return isinstance(run, dict) and run.get("job") == JOB


def repro(place: str | Path, model: Any = None, model_b: Any = None) -> ReproResult:
    """Runs a saved finding in the real model."""
    finding = load_finding(Path(place))
    session = session_of(finding, place, model, model_b)
    ids = unpack(finding.inputs[PROMPT])[0]
    batch = {PROMPT: pack([ids], max(1, len(ids)))}
    target = session.setup.target
    exact = finding.symptom == "exception"
    seen = confirm(target, session.together if exact else Only(session.together, finding.cause), batch, reseed)
    told = [f"recorded: {finding.symptom} ({finding.cause})"]
    if differs := changed(finding, session, by_name=model is None and model_b is None):
        told.append(f"note: {differs}")
    if seen.cause is None or seen.trace is None:
        symptom = seen.cause.symptom if seen.cause is not None else ""
        told.append(f"seen now: {symptom} ({seen.cause.text})" if seen.cause else "seen now: the model does not do it")
        return ReproResult(symptom == finding.symptom and bool(symptom), symptom, told)
    now = session.together.read(seen.trace, batch).texts[0] if "tokens" in seen.trace.outputs else ""
    shown = Finding(**{**vars(finding), "details": {**finding.details, **seen.cause.details, "continuation": now}})
    told += [f"seen now: {seen.cause.symptom} ({seen.cause.text}), {seen.status}", *lines(shown)]
    return ReproResult(seen.cause.symptom == finding.symptom, seen.cause.symptom, told)


def shrink(place: str | Path, model: Any = None, model_b: Any = None, max_inputs: int = 20_000) -> Finding:
    """Makes a saved prompt shorter and plainer, and saves the finding in place."""
    from nnfuzz.text.save import save_text_finding

    finding = load_finding(Path(place))
    session = session_of(finding, place, model, model_b)
    examiner = session.examiner_alone()
    ids = unpack(finding.inputs[PROMPT])[0]
    batch = {PROMPT: pack([ids], max(1, len(ids)))}
    exact = finding.symptom == "exception"
    only = session.together if exact else Only(session.together, finding.cause)
    if confirm(session.setup.target, only, batch, reseed).cause is None:
        raise UsageError(f"{finding.id} does not fail any more, so there is nothing to shrink: see nnfuzz repro")
    small = examiner.redone(finding, ids, only, max_inputs)
    if differs := changed(finding, session, by_name=model is None and model_b is None):
        small.notes.append(f"when it was shrunk, {differs}")
    save_text_finding(small, Path(place))
    return small


def resume(
    path: str | Path,
    store: RunStore,
    *,
    model: Any = None,
    model_b: Any = None,
    objective: Any = None,
    max_inputs: int | None = None,
    max_seconds: float | None = None,
    stop_on_first: bool | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Goes on with a run directory whose store is open."""
    manifest = store.manifest
    context = manifest.get("context") or {}
    specs = objective if objective is not None else manifest.get("objectives", [])
    if objective is None and not all(specs):
        raise UsageError("the run had an objective that was given in Python: pass objective= again to resume it")
    seeds: list[Any] = list(saved_prompts(store.path))  # before the folder changes: the path may be relative
    with started_in(context.get("cwd")):
        settings = TextSettings.from_json(
            manifest["settings"], objectives=specs, max_inputs=max_inputs, max_seconds=max_seconds,
            stop_on_first=stop_on_first, context=context,
        )  # fmt: skip
        a = _model(context, "model", model, path, settings.device)
        b = _model(context, "model_b", model_b, path, settings.device) if context.get("model_b") or model_b else None
        session = TextSession(settings, a, b, seeds, out=path, reporter=reporter, store=store)
    session.document.check_ids(manifest.get("ids"), str(path))
    return session.run(resume=True)


def session_of(finding: Finding, place: str | Path, model: Any, model_b: Any) -> TextSession:
    """A session with the finding's seed as its only seed."""
    run = finding.details["run"]
    spec = run.get("objective")
    if not spec and finding.status == "batch-only":
        raise UsageError(
            f"{place} failed only together with others in one batch, and it is not known what it did there"
        )
    if not spec and finding.symptom != "exception":
        raise UsageError(
            f"{place} was found by an objective given in Python, which it does not know: run the search again"
        )
    context = {n: run.get(n) for n in ("model", "model_b", "cwd") if run.get(n)}
    with started_in(run.get("cwd")):
        settings = TextSettings.from_json(run["settings"], objectives=[spec or "crash"], context=context)
        a = _model(run, "model", model, place, settings.device)
        b = _model(run, "model_b", model_b, place, settings.device) if run.get("model_b") or model_b else None
        seed, ids = (unpack(part[PROMPT])[0] for part in (finding.seed, finding.inputs))
        settings.max_prompt = max(len(seed), len(ids), 1)
        seeds: list[Any] = [seed or ids]
        session = TextSession(settings, a, b, seeds, alphabet=run.get("alphabet"))
    session.document.check_ids(run.get("ids"), str(place))
    if finding.symptom == "exception":
        session.setup.target.quoting.causes.add(finding.cause)
        for model in (session.setup.model, session.setup.other):
            if isinstance(model, BlackBox):
                model.proven = True  # as in the run
    return session


def _model(context: dict[str, Any], which: str, given: Any, place: str | Path, device: str | None) -> Any:
    if given is not None:
        return load_given(given, device) if isinstance(given, str | Path) else given
    if not context.get(which):
        raise UsageError(f"{place} was made in Python, so it does not know its model: pass {which}=…")
    return load_given(context[which], device)


def changed(finding: Finding, session: TextSession, *, by_name: bool) -> str:
    run = finding.details["run"]
    now = fingerprint(session.settings.context, {}) | {"weights": session.fingerprint.get("weights", {})}
    return said(changes(run.get("fingerprint"), now, cwd=run.get("cwd"), files=by_name), "this was found")
