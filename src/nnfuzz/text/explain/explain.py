"""A finding of text explained: what it is, where in the output it begins, how sure the model was, what it hangs on."""

from __future__ import annotations

from pathlib import Path

from nnfuzz.errors import NnfuzzError, UsageError
from nnfuzz.findings.confirm import judge_alone
from nnfuzz.findings.finding import Finding
from nnfuzz.objectives.base import Objective
from nnfuzz.rerun import reseed
from nnfuzz.targets.base import Trace
from nnfuzz.text import again
from nnfuzz.text.codec import pack, unpack
from nnfuzz.text.document import saved_prompts
from nnfuzz.text.explain import influence, nonfinite, pairs, raised, repeats, spans
from nnfuzz.text.explain.seen import UNKNOWN, Seen, seen
from nnfuzz.text.objectives.together import Only
from nnfuzz.text.session import TextSession
from nnfuzz.text.space import PROMPT
from nnfuzz.text.telling import lines as told_before
from nnfuzz.text.telling import named, storable, visible

_MARKED = ("blacklisted word", "forbidden text", "echo", "invalid UTF-8")
_REPEATED = ("repeated word", "loop")
_ENDINGS = ("endless output", "empty output")


def explain_text(finding: Finding, place: str | Path, model: object = None, model_b: object = None) -> str:
    """What a finding of text hangs on, measured by running the model again.

    Args:
        place: its directory. model, model_b: needed when the run was started in Python.

    Raises:
        UsageError: what is missing, in one sentence.
    """
    lines = [f"{finding.id}  {finding.symptom}: {finding.cause}", *told_before(finding), _ancestry(finding)]
    if finding.symptom != "exception" and not finding.details.get("run", {}).get("objective"):
        alone = "it failed only together with others in one batch, and it is not known what it did there"
        lost = "its objective was given in Python, and cannot be asked again"
        return "\n".join([*lines, f"{alone if finding.status == 'batch-only' else lost}: this is all there is"])
    session = again.session_of(finding, place, model, model_b)
    if changed := again.changed(finding, session, by_name=model is None and model_b is None):
        lines.insert(0, f"note: {changed}")
    target, ids = session.setup.target, unpack(finding.inputs[PROMPT])[0]
    batch = {PROMPT: pack([ids], max(1, len(ids)))}
    only: Objective = session.together if finding.symptom == "exception" else Only(session.together, finding.cause)
    reseed(0)
    cause, trace = judge_alone(target, only, batch)
    if finding.symptom == "exception":
        reseed(0)
        lines += _section("where it is raised", raised.told(target, batch))
    elif cause is not None and cause.symptom == "exception":
        lines += _section("seen now: the model raises", raised.told(target, batch))
    elif trace is not None:
        lines += _section("where it begins", _where(finding, session, ids, trace, _seeds(session, place)))
    if cause is None or (finding.symptom != "exception" and cause.text != finding.cause):
        now = "it does not fail alone" if cause is None else f"it fails differently ({cause.symptom}: {cause.text})"
        return "\n".join([*lines, "", f"{now}, so what it hangs on cannot be measured"])
    return "\n".join([*lines, *_section("what it hangs on", _influence(session, finding, ids, only))])


def _where(finding: Finding, session: TextSession, ids: list[int], trace: Trace, seeds: list[list[int]]) -> list[str]:
    target, symptom = session.setup.target, finding.symptom
    if symptom == "disagreement":
        return pairs.told(target, ids, seeds)
    if symptom == "non-finite logits":
        written = unpack(trace.outputs["tokens"])[0] if "tokens" in trace.outputs else []
        return nonfinite.told(target, ids, written, trace.outputs["bad"][0])
    if target.model.classifies:
        return [named(trace.outputs["classes"][0].tolist())]
    now = seen(target.model, ids, target)
    lines = [*_drawn(session, now), *_otherwise(finding, now)]
    if symptom in _REPEATED:
        return [*repeats.told(finding, now), *lines]
    if symptom in _MARKED:
        return [*spans.told(finding, now), *lines]
    if symptom in _ENDINGS:
        return [*spans.told_ending(finding, now), *lines]
    return [UNKNOWN] if now.logp is None else ["only your function knows which part of the output is wrong", *lines]


def _drawn(session: TextSession, now: Seen) -> list[str]:
    temperature = session.settings.temperature
    if not temperature or now.logp is None:
        return []
    return [f"probabilities are the model's own; at temperature {temperature:g} what is written was drawn by them"]


def _otherwise(finding: Finding, now: Seen) -> list[str]:
    """Where the model does not write what it wrote, what is told is of the text of now."""
    if storable(now.text) == finding.details.get("continuation"):
        return []
    text = f"'{visible(now.text[:80])}'" + (" …" if len(now.text) > 80 else "")
    return [f"all this is of what it writes now, which is not what was recorded: {text}"]


def _influence(session: TextSession, finding: Finding, ids: list[int], only: Objective) -> list[str]:
    examiner, codec = session.examiner_alone(), session.setup.codec
    width = max(1, len(ids))

    def fails(prompts: list[list[int]]) -> list[bool]:
        reseed(0)
        return examiner.failing(pack(prompts, width), only, finding.cause)

    found, tried = influence.influences(codec, ids, session.setup.model.shortest, fails)
    return influence.told(found, tried, codec.unit, len(ids))


def _seeds(session: TextSession, place: str | Path) -> list[list[int]]:
    """Of the run directory around the finding, else the finding's own."""
    run = Path(place).resolve().parent.parent
    try:
        return saved_prompts(run)
    except (NnfuzzError, OSError, UsageError):
        return session.setup.prompts


def _ancestry(finding: Finding) -> str:
    way = [str(step.get("op")) for step in finding.lineage if step.get("op") != "seed"]
    seed = str(finding.details.get("seed prompt", ""))
    short = repr(seed[:60]) + (" …" if len(seed) > 60 else "")
    how = f"by {' → '.join(way)}, then shrunk" if way else "unchanged, then shrunk"
    return f"{'ancestry':<12}  seed {finding.seed_index}, {short}, {how}"


def _section(title: str, told: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in told)] if told else []
