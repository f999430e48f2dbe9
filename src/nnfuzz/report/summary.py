"""The last thing a run prints: each finding with where to look and how to rerun it, or what was searched in vain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from nnfuzz.leftover import longer as larger
from nnfuzz.report.base import RunInfo
from nnfuzz.report.printing import command, labelled
from nnfuzz.report.telling import STATUS, nearness, seen, what, where
from nnfuzz.report.words import lasting, percent, plural, rate, short, typed

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import Stats

LISTED = 20
"""Findings told in full; the others are in the run directory."""
STALE = 0.5
"""Share of the run's time without anything new after which the summary says so."""


def summary(
    info: RunInfo, stats: Stats, findings: Sequence[Finding], path: str | Path | None, resumable: bool = True
) -> list[RenderableType]:
    """``resumable``: whether ``nnfuzz resume`` can load the model again (a run started from the command line)."""
    parts: list[RenderableType] = [_verdict(stats, findings, saved=path is not None)]
    for finding in findings[:LISTED]:
        parts += [Text(), *about(finding, path)]
    if len(findings) > LISTED:
        parts += [Text(), Text(f"and {len(findings) - LISTED} more: nnfuzz show {typed(path) if path else 'RUN'}")]
    if not findings:
        parts.append(labelled(_in_vain(info, stats)))
    if path is not None and resumable and stats.stopped == "interrupted":
        parts += [Text(), command("go on", f"nnfuzz resume {typed(path)}")]
    elif path is not None and resumable and not findings and not info.futile:
        parts.append(command("go on", f"nnfuzz resume {typed(path)} {longer(info, stats)}"))
    return parts


def longer(info: RunInfo, stats: Stats) -> str:
    """Larger limits, as options."""
    return larger(info.max_inputs, info.max_seconds, stats.inputs, stats.seconds)


def _verdict(stats: Stats, findings: Sequence[Finding], *, saved: bool) -> Text:
    speed = f", {percent(stats.share)} of the model alone" if stats.share is not None else ""
    cost = f" in {plural(stats.inputs, 'input')}, {lasting(stats.seconds)} ({rate(stats.rate)}{speed})"
    found = plural(len(findings), "finding") if findings else "Nothing found" if stats.inputs else "Nothing tried"
    stopped = f"Interrupted{', saved' * saved}. " if stats.stopped == "interrupted" else ""
    return Text.assemble(stopped, (found, "bold red" if findings else "bold"), cost)


def about(finding: Finding, path: str | Path | None) -> list[RenderableType]:
    """One finding: what, where to look, how near, and the line that reruns it (``path``: its run)."""
    spot = f" at {finding.site.called}" if finding.site is not None else ""
    title = Text.assemble((finding.id, "bold red"), "  ", (what(finding) + spot, "bold"))
    if not finding.confirmed:
        title.append(f"  {STATUS.get(finding.status, finding.status)}", style="yellow")
    rows: list[tuple[str, RenderableType]] = []
    if finding.site is not None:
        rows.append(("where", Text(where(finding))))
        if finding.site.source:
            rows.append(("", Text(finding.site.source.strip(), style="green")))
    if finding.severity and math.isfinite(finding.severity):
        rows.append(("severity", Text(short(finding.severity))))
    if "near" in finding.details:
        from nnfuzz.text.telling import rows as told

        rows += [(label, Text(text)) for label, text in told(finding)]
    rows.append(("distance", Text(nearness(finding))))
    rows.append(("found", Text(seen(finding))))
    rows += [("note", Text(note)) for note in finding.notes[:3]]
    parts: list[RenderableType] = [title, labelled(rows)]
    if path is not None:
        parts.append(command("rerun", f"nnfuzz repro {typed(Path(path) / 'findings' / finding.id)}"))
    return parts


def _in_vain(info: RunInfo, stats: Stats) -> list[tuple[str, RenderableType]]:
    inputs = ", ".join(f"{r.name} {'fixed' if r.fixed else r.range or r.kind}" for r in info.inputs)
    state = f"{plural(stats.corpus, 'corpus entry', 'corpus entries')}"
    if not math.isnan(stats.radius):
        state += f" at a coverage radius of {short(stats.radius)}"
    searched = [("searched", info.searched), ("inputs", inputs), ("kept", state)]
    rows: list[tuple[str, RenderableType]] = [(label, Text(text)) for label, text in searched if text]
    return rows + [("try" if i == 0 else "", Text(h)) for i, h in enumerate(harder(info, stats))]


def harder(info: RunInfo, stats: Stats) -> list[str]:
    """What could find more, most promising first."""
    hints = list(info.hints)
    if info.futile:
        return [info.futile]
    if not stats.inputs:
        return [f"{longer(info, stats)}: looking at the seeds took all the time, and no other input was tried"]
    if stats.seconds and (stats.seconds - stats.last_novel) > STALE * stats.seconds:
        quiet = lasting(stats.seconds - stats.last_novel)
        other = "another --coverage" if info.title == "nnfuzz text" else "other --layers or --coverage"
        hints.append(f"nothing new was seen for {quiet}: {other}, or more seeds")
    else:
        hints.append(f"{longer(info, stats)}: new behaviour was still turning up")
    if info.settings.get("watch") == "outputs" and info.title == "nnfuzz nan":
        hints.append("--watch layers: look at every module's output too")
    if info.settings.get("gradients") is False:
        hints.append("drop --no-gradients: gradients lead to the edge of what an operation can take")
    if any(r.eps is not None for r in info.inputs):
        hints.append("a larger --eps")
    spanned = [r for r in info.inputs if r.source == "seeds" and not r.fixed and r.range]
    if spanned:
        whole = [r.name for r in spanned if "int" in r.dtype]
        end = f"; of {', '.join(whole)}, if these are token ids, up to the vocabulary's size less 1" if whole else ""
        hints.append(f"--range: the inputs were held to what the seeds span{end}")
    return hints[:5]
