"""Words that repeat, and loops: where it begins, what comes again, and how sure the model grows of it."""

from __future__ import annotations

import re

from nnfuzz.findings.finding import Finding
from nnfuzz.text.explain.seen import UNKNOWN, Seen, percent
from nnfuzz.text.telling import visible

WORD = re.compile(r"\w+")
MOST = 8
"""Repetitions that are told."""
EACH = 4
"""Ids of one repetition whose probabilities are told each; of more their least and their mean."""


def told(finding: Finding, seen: Seen) -> list[str]:
    """Where, what, and the probabilities of one repetition after the other."""
    spans = finding.details.get("spans") or []
    if not spans:
        return []
    start = int(spans[0][0])
    times = _words(seen, start) if finding.symptom == "repeated word" else _loop(finding, seen, start)
    if not times:
        return []
    first = times[0]
    again = seen.model.out.decode(seen.ids[first[0] : first[1]])
    unit = seen.model.out.unit
    period = times[1][0] - first[0] if len(times) > 1 else first[1] - first[0]
    lines = [
        f"begins at character {start} of the continuation (step {first[0]}), with a period of {period} {unit}"
        f"{'s' * (period != 1)}: '{visible(again)}', {len(times)} times"
    ]
    if seen.logp is None:
        return [*lines, UNKNOWN]
    means = []
    for n, (a, b) in enumerate(times):
        each = [seen.probability(step) for step in range(a, b)]
        mean = float(sum(each) / len(each))
        means.append(mean)
        if n < MOST:
            some = ", ".join(map(percent, each))
            shown = some if len(each) <= EACH else f"mean {percent(mean)}, least {percent(min(each))}"
            lines.append(f"repetition {n + 1}: probability {shown}")
    if len(times) > 1:
        way = "grows" if means[-1] > means[0] else "falls" if means[-1] < means[0] else "stays"
        lines.append(f"from the first to the last the mean {way} from {percent(means[0])} to {percent(means[-1])}")
    return lines


def _words(seen: Seen, start: int) -> list[tuple[int, int]]:
    """The steps of each equal word, from the first one on."""
    words = list(WORD.finditer(seen.text, start))
    same = []
    for word in words:
        if word[0].casefold() != words[0][0].casefold():
            break
        same.append((seen.step_at(word.start()), seen.step_at(word.end() - 1) + 1))
    return same


def _loop(finding: Finding, seen: Seen, start: int) -> list[tuple[int, int]]:
    """The steps of each whole period."""
    period, first = int(finding.details.get("period", 1)), seen.step_at(start)
    run = seen.ids[first : first + period]
    times = []
    for at in range(first, len(seen.ids) - period + 1, period):
        if seen.ids[at : at + period] != run:
            break
        times.append((at, at + period))
    return times
