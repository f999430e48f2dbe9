"""The search of the finding's own run, made short, against a repaired model or inside a smaller ball."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from nnfuzz.advice.verify import Found, same_place
from nnfuzz.errors import NnfuzzError
from nnfuzz.findings.finding import Finding
from nnfuzz.probe.sites import Site
from nnfuzz.seeds import SeedGroup, Seeds
from nnfuzz.settings import Settings

if TYPE_CHECKING:
    from nnfuzz.jobs import Job

SHARES = (0.5, 0.1)
"""Radii at which a safe ball is looked for, as shares of the finding's own distance."""


def search_with(finding: Finding, job: Job, *, seconds: float, inputs: int) -> Callable[[Callable[..., Any]], Found]:
    """A search of the run's kind that starts from the seed and from the failing inputs themselves."""
    settings = _short(finding, job, seconds, inputs)
    return lambda repaired: _run(settings, repaired, starts(finding, job, failing=True))


def safe_radius(finding: Finding, job: Job, site: Site, *, seconds: float, inputs: int) -> list[str]:
    """A ball round the seed in which the search found no failure at the site: a precondition, no proof (RANUM
    proves its own; this one is only what was tried)."""
    far = finding.distance.get("linf", float("inf"))
    if not 0 < far < float("inf"):
        return []
    settings = _short(finding, job, seconds / 2, inputs)
    for share in SHARES:
        try:
            found = _run(dataclasses.replace(settings, eps=far * share), job.model, starts(finding, job))
        except NnfuzzError:  # an eps-ball makes no sense for these inputs (masks, one-hot, ids)
            return []
        if not found.inputs:  # the seed itself fails, or time is up: nothing was looked at
            return []
        if not any(same_place(s, site) for s in found.sites):
            return [
                "",
                f"inputs: no failure there was found within L∞ {far * share:.3g} of the seed in {found.inputs:,} "
                "inputs (a search, not a proof)",
            ]
    return []


def _short(finding: Finding, job: Job, seconds: float, inputs: int) -> Settings:
    return dataclasses.replace(
        job.settings, job="nan", max_seconds=seconds, max_inputs=inputs, max_shrink=0, eps=None,
        phase="auto" if finding.phase == "backward" else "forward", ranges=ranges_of(finding, job), context={},
        layers=None,  # they are parts of the model, and what was repaired may have none
    )  # fmt: skip


def ranges_of(finding: Finding, job: Job) -> Any:
    """Those of the run as it resolved them, also of inputs for which none was given: the seed alone spans nothing."""
    recorded, given = finding.details.get("run", {}).get("ranges", {}), job.settings.ranges
    if not recorded or not (given is None or isinstance(given, Mapping)):
        return given
    assert finding.call is not None
    named = {finding.call.resolve(n, "ranges"): r for n, r in (given or {}).items()}
    return {n: tuple(r) for n, r in recorded.items()} | named


def starts(finding: Finding, job: Job, *, failing: bool = False) -> Seeds:
    """The finding's seed and, if asked, its failing inputs after it, as candidates of the run."""
    assert finding.call is not None
    whole = finding.details.get("run", {}).get("unit") == "batch"
    given = [finding.seed, finding.inputs] if failing else [finding.seed]
    batches = [{n: (t[None] if whole else t) for n, t in g.items()} for g in given]
    if len(batches) == 2 and all(batches[0][n].shape == t.shape for n, t in batches[1].items()):
        joined = {n: torch.cat([b[n] for b in batches]) for n in batches[0]}
        return Seeds(finding.call, [SeedGroup(joined, [0, 1])], not whole)
    return Seeds(finding.call, [SeedGroup(b, [i]) for i, b in enumerate(batches)], not whole)


def _run(settings: Settings, model: Callable[..., Any], seeds: Seeds) -> Found:
    from nnfuzz.session import Session

    run = Session(settings, model, None, seeds, out=None, reporter=None).run()
    return Found(tuple(f.site for f in run.findings), run.stats.inputs)
