"""Why a finding fails, and what helps: `nnfuzz.explain` and `nnfuzz explain FINDING`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnfuzz.advice.telling import told_disagreement, told_nonfinite, told_other
from nnfuzz.errors import UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import load_finding
from nnfuzz.rerun import NOWHERE, changed_since, checked_place, is_training, job_of, prepare
from nnfuzz.settings import at_least

_TOLD_BY_ITSELF = ("fuzz", "rows")
"""Jobs whose findings hold all that can be said: only the user's objective knows what is wrong."""


def explain(
    finding: str | Path | Finding, model: Any = None, model_b: Any = None, *, seconds: float = 1.0, inputs: int = 1000
) -> str:
    """What is known of a finding, in words; for NaN and Inf also remedies, each tried before it is shown.

    Args:
        finding: a finding directory, or a ``Finding``.
        model, model_b: needed when the run was started in Python; from the command line they are loaded by name.
        seconds, inputs: limits of each search against a repaired model; 0 inputs leave the searches out.

    Raises:
        UsageError: what is missing, in one sentence.
    """
    for name, limit in (("seconds", seconds), ("inputs", inputs)):
        if not at_least(0, limit):
            raise UsageError(f"{name} is {limit!r}, but it is a limit of each search: give a number from 0 up")
    if not isinstance(finding, Finding):
        finding = checked_place(finding)
    if not isinstance(finding, Finding) and is_training(finding):
        from nnfuzz.advice.training import explain_training

        return explain_training(finding, model)
    place = NOWHERE if isinstance(finding, Finding) else Path(finding)
    if not isinstance(finding, Finding):
        finding = load_finding(place)
    if finding.details.get("run", {}).get("job") in _TOLD_BY_ITSELF:
        return "\n".join(told_other(finding))
    if finding.details.get("run", {}).get("job") == "text":
        from nnfuzz.text.explain import explain_text

        return explain_text(finding, place, model, model_b)
    if finding.call is None:
        raise UsageError(f"{finding.id} does not say how its inputs are passed to the model, so it cannot be rerun")
    job = job_of(finding, place, model, model_b)
    with job.target_session():
        prepare(job, finding)
        if job.settings.job == "diff":
            lines = told_disagreement(finding, job)
        else:
            lines = told_nonfinite(finding, job, seconds=seconds, inputs=inputs, place=place)
    changed = changed_since(finding, job, by_name=model is None and model_b is None)
    return "\n".join([f"note: {changed}", *lines] if changed else lines)
