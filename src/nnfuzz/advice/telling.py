"""The text of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.advice.advise import Proposal, advise
from nnfuzz.advice.graph_words import in_graph_terms
from nnfuzz.advice.others import other_inputs
from nnfuzz.advice.remedy import computing_dtype
from nnfuzz.advice.search import safe_radius, search_with
from nnfuzz.advice.static import static_warnings
from nnfuzz.advice.verify import Case
from nnfuzz.findings.finding import NO_BATCH, NO_BLAME, Finding
from nnfuzz.findings.told_cause import told_cause
from nnfuzz.findings.weights import bad_weights
from nnfuzz.objectives.base import differences
from nnfuzz.probe.first_bad import BadOp
from nnfuzz.targets import PairTarget, TorchTarget

if TYPE_CHECKING:
    from nnfuzz.jobs import Job

_WIDTH = 118


def told_nonfinite(finding: Finding, job: Job, *, seconds: float, inputs: int, place: Path) -> list[str]:
    """The first bad operation, its operands and chain, and the remedies that hold. ``place``: the finding's directory,
    where a repaired model may be written."""
    side = job.side
    if not side.sees_inside:
        return [*_head(finding), "", *side.notes, *_facts(finding)]
    together = None if finding.batch is None else finding.batch.ways[0].joined(finding.batch.inputs)
    if together is not None:
        seconds, inputs = 0.0, 0  # a search judges what it finds alone
    case = case_of(finding, side, together)
    case.watch = "outputs" if job.settings.watch == "outputs" else "internal"
    others = other_inputs(finding, job)
    case.others = [bound_to(finding, side, values) for values in others]
    if inputs > 0:
        case.search = search_with(finding, job, seconds=seconds, inputs=inputs)
    lines = _head(finding)
    try:
        bad = case.bad()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        said = f"it cannot be looked into: the model raises {type(error).__name__}: {first}"
        return [*lines, "", said, *_facts(finding)]
    if bad is None:
        told = _nothing_bad(finding, side, together)
        return [*lines, "", *told, *_facts(finding, besides=[*told, side.second_opinion(finding.inputs)])]
    if finding.blames_no_input:  # what another input would give is of no interest then
        blame = [note for note in finding.notes if NO_BLAME in note]
        return [*lines, "", *told_operation(bad, side.parts), "", *blame, *_facts(finding, besides=blame)]
    proposals = advise(case, bad)
    lines += ["", *told_operation(bad, side.parts), "", *told_remedies(proposals, code=side.parts == "module")]
    if finding.phase == "forward":
        failing = together or finding.inputs
        lines += side.repaired(proposals, computing_dtype(bad), failing, [finding.seed], place, others)
    if inputs > 0:
        lines += safe_radius(finding, job, bad.site, seconds=seconds, inputs=inputs)
    args, kwargs = case.seeds[0]
    try:
        warnings = static_warnings(side.model, (args, kwargs))
    except Exception:  # the seed ran before; what only tracing cannot bear takes no explanation away
        warnings = []
    if warnings:
        lines += ["", "also in this model, seen on the seed without any search:", *(f"  {w}" for w in warnings)]
    return [*lines, *_facts(finding)]


def case_of(finding: Finding, side: TorchTarget, together: dict[str, Tensor] | None = None) -> Case:
    """The failure as the advice sees it. ``together``: the model input of the batch in which it fails."""
    args, kwargs = bound_to(finding, side, together or finding.inputs)
    backward = finding.phase == "backward"
    params = [p for p in side.parameters if p.requires_grad] if backward else []
    return Case(
        side.model, args, kwargs, backward=backward, params=params, seeds=[bound_to(finding, side, finding.seed)]
    )


def bound_to(finding: Finding, side: TorchTarget, values: dict[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model input as the arguments of the call."""
    assert finding.call is not None
    return finding.call.bind({n: t.to(side.device) for n, t in values.items()})


def told_disagreement(finding: Finding, job: Job) -> list[str]:
    """Answers, margins, the referee, and where in the layers the sides part."""
    lines = _head(finding)
    details = finding.details
    for name in ("a", "b"):
        if f"answer_{name}" in details:
            margin = details.get(f"margin_{name}")
            sure = f", margin {margin:.3g}" if margin is not None else ""
            lines.append(f"{name.upper()} says {details[f'answer_{name}']}{sure}")
    lines += _output_gap(finding)
    lines += _referee(details.get("referee", {}))
    if finding.batch is not None:
        lines.append("layer by layer the two sides are compared on the input alone, where they agree")
    if isinstance(job.target, PairTarget):
        lines += _layers(finding, job, job.target)
    return [*lines, *_facts(finding)]


def told_other(finding: Finding) -> list[str]:
    """Properties and rows: what the objective noted."""
    lines = _head(finding)
    for key, value in finding.details.items():
        if key not in ("run", "bad_op", "referee"):
            lines.append(f"{key}: {_short(value)}")
    return [*lines, *_facts(finding)]


# ------------------------------------------------------------------------------------------------- parts


def _head(finding: Finding) -> list[str]:
    lines = [finding.headline(), f"cause: {told_cause(finding)} ({finding.status})"]
    if finding.batch is not None:
        return [*lines, f"it fails in its batch only: it is {finding.batch.told()}"]
    return [*lines, f"{NO_BATCH}: what follows is of the input alone"] if finding.lacks_batch else lines


def _nothing_bad(finding: Finding, side: TorchTarget, together: dict[str, Tensor] | None) -> list[str]:
    """No operation made something non-finite out of finite numbers: a weight that is not finite, what shows operations
    is finite where what gives the answers is not, or no failure. ``together``: the batch, where it was run in one."""
    run = "in its batch" if together is not None else "alone"
    weights = bad_weights(side.model, finding.symptom)
    if weights:
        return weights
    if told := side.told_apart(together or finding.inputs):
        return wrap(f"rerun here, {told}", _WIDTH)
    if finding.status == "confirmed":
        return ["rerun here, every operation is finite: the failure does not show in this environment (nnfuzz repro)"]
    seen = str(finding.details.get("bad_op", "")).splitlines()
    if finding.in_batch_only and seen:
        part = "node" if finding.site is not None and finding.site.node else "operation"
        where = "when it was found" if finding.batch is not None and run != "alone" else "in its batch"
        return [f"rerun {run}, every {part} is finite; {where} the first bad {part} was:", *seen]
    return [f"rerun {run}, every operation is finite: the finding is {finding.status}"]


def told_operation(bad: BadOp, part: str) -> list[str]:
    """Where it stands, its operands, and the chain back to the inputs."""
    where = f" at {Path(bad.site.file).name}:{bad.site.line}" if bad.site.file else ""
    if not where and part == "module":
        where = " in a stock module"
    module = f"{',' if where else ' in'} {part} {bad.site.part}" if bad.site.module else ""
    phase = "gradient of " if bad.site.phase == "backward" else ""
    what = "raises" if bad.symptom == "exception" else f"{bad.symptom} at {list(bad.index)}"
    kind = "node" if bad.site.node else "operation"
    lines = [f"first bad {kind}: {phase}{bad.site.called}{where}{module}, {what}"]
    if bad.site.source:
        lines.append(f"    {bad.site.source}")
    if bad.told_detail:
        lines.append(f"  in the gradient: {bad.told_detail}")
    lines += [f"  {'reads' if bad.site.node else 'operand'} {o}" for o in bad.operands]
    lines += [f"  <- {link}" for link in bad.told_chain]
    if bad.absorbed:
        lines.append("  it vanishes again before the output, which is finite and may be wrong")
    if bad.reached == "exception" and bad.symptom != "exception":
        lines.append("  the model raises because of it")
    return lines


def told_remedies(proposals: list[Proposal], *, code: bool) -> list[str]:
    """What holds, with what was tried; then what does not, with why."""
    fine = [p for p in proposals if p.verified]
    if not proposals:
        return [f"no remedy is known for this {'operation' if code else 'node'} here"]
    how = "" if code else "on the graph, computed "
    lines = [f"what helps (each tried {how}with torch {torch.__version__}):" if fine else "no remedy held up"]
    for i, p in enumerate(fine, 1):
        words = p.words if code else in_graph_terms(p.words)
        lines += wrap(f"{i}. {words} [{p.id}]", _WIDTH, initial_indent="  ", subsequent_indent="     ")
        lines += [f"       {line}" for line in p.code.splitlines() if code]
        lines += wrap(f"tried: {p.verification}", _WIDTH, initial_indent="     ", subsequent_indent="     ")
        if p.verification.gradients is False:
            lines.append("     but: the gradients of the failing inputs are still not finite with it")
    rest = [p for p in proposals if not p.verified]
    if rest:
        lines.append("not verified:")
        lines += [f"  {p.id}: {p.verification.reason}" for p in rest]
    return lines


def _facts(finding: Finding, besides: Sequence[str] = ()) -> list[str]:
    """``besides``: notes that were told already."""
    lines = [""]
    near = finding.distance
    if near.get("linf", float("inf")) < float("inf"):
        seed, changed = f"seed {finding.seed_index}", f"{int(near['l0']):,} elements changed"
        lines.append(f"distance to {seed}: L∞ {near['linf']:.3g}, L2 {near['l2']:.3g}, {changed}")
    else:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in finding.inputs.items())
        lines.append(f"it has another shape than seed {finding.seed_index}: {shapes}")
    steps = [str(step.get("op")) for step in finding.lineage]
    if steps:
        lines.append(f"lineage: {' > '.join(steps[-8:])}")
    return [*lines, *(note for note in finding.notes if note not in besides)]


def _output_gap(finding: Finding) -> list[str]:
    worst: tuple[float, str, float, float] | None = None
    for name, x in finding.outputs.items():
        y = finding.outputs.get(f"b.{name[2:]}") if name.startswith("a.") else None
        if y is None or x.shape != y.shape or not x.is_floating_point() or not x.numel():
            continue
        gap = differences(x, y).flatten()
        at = int(gap.argmax())
        value = float(gap[at])
        if worst is None or value > worst[0]:
            worst = (value, f"{name[2:]}[{at}]", float(x.flatten()[at]), float(y.flatten()[at]))
    if worst is None:
        return []
    return [f"largest output difference: {worst[0]:.3g} at {worst[1]} (A {worst[2]:.6g}, B {worst[3]:.6g})"]


def _referee(told: dict[str, Any]) -> list[str]:
    lines = []
    for name in ("a", "b"):
        side = told.get(name, {})
        if "error" in side:
            beyond = "more than its dtype explains" if side.get("beyond its dtype") else "within its dtype"
            answer = side.get("answer in float64")
            said = f"; float64 says {answer}" if answer is not None else ""
            lines.append(f"{name.upper()} against float64: error {side['error']:.3g}, {beyond}{said}")
        elif "unavailable" in side:
            lines.append(f"{name.upper()} against float64: {side['unavailable']}")
    return lines


def _layers(finding: Finding, job: Job, target: PairTarget) -> list[str]:
    """Where it begins, beside what the seeds of the run show, or, where they are gone, the finding's own seed."""
    from nnfuzz.divergence.begins import Parting
    from nnfuzz.divergence.usual import usual_seeds

    whole = target.unit == "batch"
    candidate = {n: (t[None] if whole else t).to(target.device) for n, t in finding.inputs.items()}
    try:
        derived = job.settings.as_ is not None
        begins = Parting(target, usual_seeds(finding, job), job.objectives()[0], derived=derived).begins(candidate)
    except Exception as error:
        return [f"layer by layer: cannot be compared ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"]
    return ["", *begins.lines()]


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
