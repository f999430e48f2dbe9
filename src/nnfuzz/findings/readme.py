"""README.md of a finding: what happened, in words that need no other page."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.findings.context import RunContext
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.pictures import Picture
from nnfuzz.findings.repro_onnx import in_numpy
from nnfuzz.findings.told_cause import told_cause
from nnfuzz.report.facts import said
from nnfuzz.report.words import plural

LONGEST = 600
"""Of one detail, in characters."""
_SAYS = {
    "nan": "the model gives a number that is not a number (NaN)",
    "+inf": "the model gives plus infinity",
    "-inf": "the model gives minus infinity",
    "exception": "the model raises an exception",
    "crash": "the model takes its whole process down",
    "disagreement": "the two models disagree",
    "property": "a property that should hold does not",
    "rows": "the result of a row depends on the rest of its batch",
    "dead gradient": "the loss is large, but its gradient does not lead out",
}
_STATUS = {
    "confirmed": "It failed again when it was run alone.",
    "flaky": "**It does not fail every time**: the model is not deterministic on it, so a rerun may pass.",
    "batch-only": "**It failed only inside its batch**, not alone, so a rerun of this input by itself will pass.",
}
_NO_BATCH = " That batch was not saved with it, so the commands below run it alone."


def readme(finding: Finding, run: RunContext, directory: Path, pictures: Sequence[Picture]) -> str:
    """The text of README.md. ``directory``: where the finding will lie, for the commands."""
    says = _SAYS.get(finding.symptom, finding.symptom)
    if finding.phase == "backward":
        says = f"a gradient is not finite ({finding.symptom})"
    elif finding.broken_side:
        says = says.replace("the model gives", f"{finding.broken_side} alone of the two models gives")
    parts = [
        f"# {_plain(finding.headline())}",
        f"On the input in `input.safetensors`, {says}: {_plain(told_cause(finding))}.\n{_status(finding)}",
        _where(finding),
        _how_near(finding, run),
        "\n".join(_image_lines(picture) for picture in pictures),
        _outputs(finding),
        _facts(finding),
        _lineage(finding),
        _commands(directory, _needs(finding, run)),
        "\n".join(f"- {_plain(note)}" for note in finding.notes),
        "The input was found by fuzzing (mutating real inputs within the ranges of the run), so it need not look like "
        "anything that occurs in practice. It is a legal input on which the model fails; how much that matters is for "
        "you to judge.",
    ]
    return "\n\n".join(p.strip() for p in parts if p.strip()) + "\n"


def _status(finding: Finding) -> str:
    if finding.batch is None:
        return _STATUS.get(finding.status, "") + _NO_BATCH * finding.lacks_batch
    return (
        f"**It failed only inside its batch**, not alone: it is {finding.batch.told()}, "
        "and the commands below run all of them and judge that one."
    )


def _where(finding: Finding) -> str:
    site = finding.site
    if site is None:
        return ""
    place = f"at `{_plain(site.file)}`, line {site.line}" if site.file else "at no line of user code"
    module = f", in module `{_plain(site.part)}`" if site.module else ""
    if isinstance(node := finding.details.get("node"), Mapping):
        place, module = _node(node), ""
    if site.node and isinstance(node, Mapping):
        place = place.removeprefix("in the node ")
    source = f"\n\n    {_plain(site.source)}" if site.source else ""
    chain = str(finding.details.get("bad_op", "")).splitlines()[1:]  # the first line says the place again
    read = (
        "\n\nWhat it read, and where that came from:\n\n" + "\n".join(f"    {_code(c)}" for c in chain) if chain else ""
    )
    first = "node that goes wrong:" if site.node else f"operation that goes wrong: `{_plain(site.op)}`"
    return f"## Where\n\nFirst {first} {place}{module}.{source}{read}"


def _node(node: Mapping[str, Any]) -> str:
    """The node of a graph, what it reads and what it makes."""
    reads, gives = (
        ", ".join(f"`{_plain(n)}`" for n in node.get(k) or ()) or "nothing" for k in ("reads", "gives")
    )  # fmt: skip
    operator = f" (`{_plain(node['operator'])}`)" if node.get("operator") else ""
    return f"in the node `{_plain(node.get('name'))}`{operator}, which makes {gives} from {reads}"


def _how_near(finding: Finding, run: RunContext) -> str:
    d = {k: float(v) for k, v in finding.distance.items()}
    far = d.get("linf", math.inf)
    if math.isinf(far):
        near = f"Its shape differs from that of seed {finding.seed_index}, so no distance to it is given."
    else:
        near = (
            f"Distance to seed {finding.seed_index} (`seed.safetensors`), in the inputs' own unit: L∞ {far:.4g}, "
            f"L2 {d.get('l2', math.nan):.4g}, {plural(d.get('l0', math.nan), 'element')} changed."
        )
    ranges = ", ".join(f"`{_plain(n)}` {v[0]:g} … {v[1]:g}" for n, v in run.ranges.items() if _is_interval(v))
    modes = [t for t, on in (("training mode", run.train), ("subnormals flushed to zero", run.flush_denormal)) if on]
    extra = (f" Ranges of the run: {ranges}." if ranges else "") + (f" Run in {' and '.join(modes)}." if modes else "")
    hits = f"First hit after {finding.inputs_tried:,} inputs ({finding.seconds:.1f} s); {finding.count:,} hits so far."
    return f"## How near\n\n{near}{extra}\n{hits}"


def _is_interval(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(v, int | float) for v in value)


def _image_lines(picture: Picture) -> str:
    shown = " ".join(f"![{kind}]({file})" for kind, file in picture.files.items())
    words = [f"`{_plain(picture.name)}`: {', '.join(picture.files)}"]
    if picture.scale > 1:
        words.append(f"each pixel drawn {picture.scale} × {picture.scale}")
    if picture.gain is not None:
        words.append(f"the difference is amplified {picture.gain:.3g} times (middle grey is no change)")
    return f"{shown}\n\n{'; '.join(words)}."


def _outputs(finding: Finding) -> str:
    if not finding.outputs:
        return ""
    rows = [f"| `{_plain(name)}` | {_type(t)} | {_values(t)} | {_margin(t)} |" for name, t in finding.outputs.items()]
    return "\n".join(["## Outputs", "", "| output | type | values | top two (margin) |", "|---|---|---|---|", *rows])


def _type(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def _values(t: Tensor) -> str:
    if t.numel() <= 4:
        return ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in t.flatten().tolist())
    if t.is_complex() or t.dtype == torch.bool:
        return "…"
    wide = t.double()
    counts = {"NaN": wide.isnan(), "+inf": wide == math.inf, "−inf": wide == -math.inf}
    bad = [f"{int(c.sum())} × {n}" for n, c in counts.items() if c.any()]
    finite = wide[wide.isfinite()]
    span = [f"{float(finite.min()):.4g} … {float(finite.max()):.4g}"] if finite.numel() else []
    return ", ".join(span + bad)


def _margin(t: Tensor) -> str:
    """For outputs that look like scores of one candidate."""
    row = t.reshape(-1)
    if not t.is_floating_point() or not 2 <= row.numel() <= 100_000 or t.dim() > 2 or t.shape[-1] != row.numel():
        return ""
    if not bool(row.isfinite().all()):
        return ""
    values, labels = row.double().topk(2)
    return f"{int(labels[0])}, {int(labels[1])} ({float(values[0] - values[1]):.4g})"


_TOLD = ("run", "bad_op", "node")
"""Details that have a place of their own, or are there for ``repro`` alone."""


def _facts(finding: Finding) -> str:
    facts: dict[str, Any] = {"severity": finding.severity}
    for name, value in finding.details.items():
        if name in _TOLD:
            continue
        if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
            facts |= {f"{name} {part}": v for part, v in value.items()}
        else:
            facts[name] = value
    shown = {k: v for k, v in facts.items() if v is not None and v is not False and v not in ("", [], {})}
    return "\n".join(f"- {_plain(k.replace('_', ' '))}: {_short(_plain(said(v)))}" for k, v in shown.items())


def _short(text: str) -> str:
    """Cut where a word ends, and that it was cut is seen."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rpartition(' ')[0]} … (all of it in finding.json)"


def _lineage(finding: Finding) -> str:
    if not finding.lineage:
        return ""
    steps = [str(step.get("op", "?")) if isinstance(step, dict) else str(step) for step in finding.lineage]
    steps = steps[steps[:1] == ["seed"] :]
    shown = steps if len(steps) <= 12 else [*steps[:6], f"… {len(steps) - 12} more …", *steps[-6:]]
    return f"## How it came about\n\nseed {finding.seed_index} → {' → '.join(_plain(s) for s in shown)}"


def _needs(finding: Finding, run: RunContext) -> str:
    if in_numpy(finding, run):
        return "onnxruntime, numpy and safetensors"
    return "torch, onnxruntime, numpy and safetensors" if run.onnx else "torch and safetensors"


def _commands(directory: Path, needs: str) -> str:
    place = shlex.quote(os.path.relpath(directory) if directory.is_relative_to(Path.cwd()) else str(directory))
    return (
        f"## Again\n\n    nnfuzz repro {place}\n    nnfuzz shrink {place}\n    python {place}/repro.py\n"
        f"    pytest {place}/test_finding.py\n\n"
        f"`repro.py` needs {needs} alone; it exits with 1 while the failure is there, with 0 when it is "
        "gone. `test_finding.py` fails until then."
    )


def _code(line: str) -> str:
    """A line of an indented block, in which Markdown has no signs; its own indent stays."""
    return line.replace("\r", " ")


def _plain(value: object) -> str:
    """On one line, and nothing in it that Markdown or a table would take for its own."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
