"""The live panel: what the run is doing now, in about fifteen calm lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nnfuzz.report.base import RunInfo
from nnfuzz.report.telling import place, what
from nnfuzz.report.words import bars, clock, count, lasting, percent, rate, short

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import MutatorYield, Stats

WIDEST = 100
MUTATORS_SHOWN = 6
FINDINGS_SHOWN = 5


def panel(info: RunInfo, stats: Stats, findings: Sequence[Finding], growth: Sequence[float], width: int) -> Panel:
    """``growth``: the corpus size at equal steps of time, oldest first."""
    parts: list[RenderableType] = [_numbers(info, stats, growth)]
    if stats.yields:
        parts += [Text(), _mutators(list(stats.yields.values()))]
    if findings:
        parts += [Text(), _findings(findings)]
    ends = f" of {clock(info.max_seconds)}" if info.max_seconds else ""
    title = Text.assemble((info.title, "bold"), "  ", (f"{clock(stats.seconds)}{ends}", "cyan"), "  ", info.target)
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle="Ctrl-C stops and saves",
        subtitle_align="right",
        border_style="dim",
        box=ROUNDED,
        padding=(0, 1),
        width=min(width, WIDEST),
    )


def _numbers(info: RunInfo, stats: Stats, growth: Sequence[float]) -> Table:
    share = f", {percent(stats.share)} of the model alone" if stats.share is not None else ""
    goal = f" of {count(info.max_inputs)}" if info.max_inputs else ""
    radius = "no coverage" if math.isnan(stats.radius) else short(stats.radius)
    best = short(stats.best_score) if math.isfinite(stats.best_score) else "-"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=8)
    table.add_column(min_width=12)
    table.add_column()
    table.add_row("inputs", count(stats.inputs) + goal, Text(rate(stats.rate) + share))
    table.add_row("corpus", count(stats.corpus), Text.assemble((bars(growth), "cyan"), "  ", since_novel(stats)))
    table.add_row("radius", radius, Text.assemble(("best score ", "dim"), best))
    return table


def since_novel(stats: Stats) -> str:
    """How long nothing new has been seen."""
    return f"newest {lasting(max(0.0, stats.seconds - stats.last_novel))} ago"


def best_first(yields: Sequence[MutatorYield]) -> list[MutatorYield]:
    """By what they earned, hits before novelty."""
    return sorted(yields, key=lambda y: (-y.hits, -y.novel, -y.tried, y.name))


def _mutators(yields: Sequence[MutatorYield]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=22)
    for _ in range(3):
        table.add_column(justify="right", min_width=9)
    table.add_row(*(Text(t, style="dim") for t in ("mutator", "inputs", "new", "hits")))
    ranked = best_first(yields)
    for each in ranked[:MUTATORS_SHOWN]:
        table.add_row(each.name, count(each.tried), count(each.novel), count(each.hits) if each.hits else "")
    rest = ranked[MUTATORS_SHOWN:]
    if rest:
        tried, novel, hits = (sum(n) for n in zip(*((y.tried, y.novel, y.hits) for y in rest), strict=True))
        last = (f"{len(rest)} more", count(tried), count(novel), count(hits) if hits else "")
        table.add_row(*(Text(t, style="dim") for t in last))
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="bold red", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    for finding in findings[-FINDINGS_SHOWN:]:
        spot = place(finding)
        status = "" if finding.confirmed else f" ({finding.status})"
        text = Text(f"{what(finding)} at {spot}{status}" if spot else what(finding) + status)
        table.add_row(finding.id, text, _near(finding.distance.get("linf", math.inf)), f"{count(finding.count)} x")
    hidden = len(findings) - FINDINGS_SHOWN
    if hidden > 0:
        nearest = min(f.distance.get("linf", math.inf) for f in findings)
        table.add_row("", Text(f"and {hidden} earlier; nearest of all", style="dim"), _near(nearest), "")
    return table


def _near(linf: float) -> str:
    return "other shape" if math.isinf(linf) else f"L∞ {short(linf)}"
