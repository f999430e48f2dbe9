"""One finding in words: the pieces that the panel, the plain lines, the summary and ``nnfuzz show`` share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nnfuzz.findings.told_cause import told_cause
from nnfuzz.report.words import count, lasting, near, plural, short

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding

_NAMES = {"nan": "NaN", "+inf": "+Inf", "-inf": "-Inf"}
STATUS = {
    "flaky": "flaky: it does not fail every time",
    "batch-only": "batch-only: it fails in its batch, and not alone",
}


def symptom(finding: Finding) -> str:
    """``NaN``, ``NaN in the gradient``, of two models ``NaN in A``, ``disagreement``."""
    name = _NAMES.get(finding.symptom, finding.symptom)
    name = f"{name} in {side}" if (side := finding.broken_side) else name
    return f"{name} in the gradient" if finding.phase == "backward" else name


def what(finding: Finding) -> str:
    """The symptom and, where no operation tells more, the cause."""
    if finding.site is not None or not finding.cause or finding.cause == finding.symptom:
        return symptom(finding)
    if finding.broken_side:
        return f"{symptom(finding)} only"
    cause = told_cause(finding).removeprefix(finding.symptom).lstrip(" :,")
    return f"{symptom(finding)}: {cause}"


def where(finding: Finding) -> str:
    """``log in head.softmax, mnist.py:41``; "" where no operation was found."""
    site = finding.site
    if site is None:
        return ""
    if site.node:
        return f"{site.node}, node {site.part}"
    inside = f" in {site.part}" if site.module else ""
    line = f", {near(site.file)}:{site.line}" if site.file else ""
    return f"{site.op}{inside}{line}"


def place(finding: Finding) -> str:
    """The shortest form of ``where``: ``log (mnist.py:41)``."""
    site = finding.site
    if site is None:
        return ""
    spot = f"{site.file.rpartition('/')[2]}:{site.line}" if site.file else site.part
    return f"{site.called} ({spot})" if spot else site.called


def nearness(finding: Finding) -> str:
    """``L∞ 0.31, L2 1.2, 14 of 784 elements changed, from seed 3``."""
    linf = finding.distance.get("linf", math.inf)
    if "near" in finding.details:  # text has no distance
        return f"{finding.details['near']}, from seed {finding.seed_index}"
    if math.isinf(linf):
        return f"another shape than seed {finding.seed_index}"
    if linf == 0:
        return f"seed {finding.seed_index} itself"
    total = sum(t.numel() for t in finding.inputs.values())
    changed = finding.distance.get("l0")
    parts = [f"L∞ {short(linf)}", f"L2 {short(finding.distance.get('l2', math.nan))}"]
    if changed is not None:
        of_all = f"{count(changed)} of {plural(total, 'element')}" if total else plural(changed, "element")
        parts.append(f"{of_all} changed")
    return ", ".join(parts) + f", from seed {finding.seed_index}"


def seen(finding: Finding) -> str:
    """``after 5,120 inputs, 0.9 s; seen 37 times``."""
    again = f"; seen {count(finding.count)} times" if finding.count > 1 else ""
    if finding.inputs_tried == 0:
        return f"on the seeds, before any search{again}"
    return f"after {plural(finding.inputs_tried, 'input')}, {lasting(finding.seconds)}{again}"


def one_line(finding: Finding) -> str:
    """``F0001  NaN at log (mnist.py:41), L∞ 0.31 from seed 3``."""
    spot = f" at {place(finding)}" if finding.site is not None else ""
    linf = finding.distance.get("linf", math.inf)
    distance = "another shape than" if math.isinf(linf) else f"L∞ {short(linf)} from"
    status = f" ({finding.status})" if finding.status != "confirmed" else ""
    if "near" in finding.details:
        return f"{finding.id}  {what(finding)}, {nearness(finding)}{status}"
    return f"{finding.id}  {what(finding)}{spot}, {distance} seed {finding.seed_index}{status}"
