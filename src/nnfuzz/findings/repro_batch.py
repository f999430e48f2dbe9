"""Of a finding that fails in its batch only: the parts of its script, and what that knows of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnfuzz.findings.batch import JOINED
from nnfuzz.findings.finding import NO_BATCH, Finding
from nnfuzz.findings.parts import boxes, nonfinite, other, pairs
from nnfuzz.findings.parts import in_batch as parts

Parts = tuple[Callable[..., Any], ...]
NONFINITE: Parts = (nonfinite.unlike_seed, nonfinite.shows_symptom, nonfinite.symptomatic)
INSIDE: Parts = (nonfinite.unlike_ordinary, nonfinite.shows_symptom, nonfinite.symptomatic, nonfinite.Inside)
PAIR: Parts = (
    pairs.paired, pairs.disagree, boxes.ctc_text, boxes.lone_boxes, boxes.detections, boxes.shared_area,
    pairs.answers, pairs.main_output,
    other.as_given, other.said,
)  # fmt: skip
_TOGETHER: Parts = (parts.in_batch, parts.taken_together, parts.joined)
_BY_ROWS: Parts = (parts.rows_of, parts.said_of_row)
_OF_PAIR = (parts.pair_in_batch, (*_TOGETHER, *_BY_ROWS, *PAIR))
_IN_BATCH: dict[Callable[..., Any], tuple[Callable[..., Any], Parts]] = {
    nonfinite.fails_forward: (parts.forward_in_batch, (*_TOGETHER, *NONFINITE)),
    nonfinite.fails_inside: (parts.inside_in_batch, (*_TOGETHER, *INSIDE)),
    nonfinite.fails_backward: (parts.backward_in_batch, (parts.joined,)),
    other.fails_property: (parts.property_in_batch, (*_TOGETHER, *_BY_ROWS, other.as_given)),
    pairs.fails_pair: _OF_PAIR,
    pairs.fails_copy: _OF_PAIR,
    pairs.fails_int8: _OF_PAIR,
}
"""In the place of each check: what sees its failure again in a batch, and what that needs."""
_SECOND = {
    pairs.fails_pair: ", second, call_b",
    pairs.fails_copy: ", in_precision(first), call_in_precision",
    pairs.fails_int8: ", in_int8(first), call",
}
BY_NNFUZZ = "this failure is there in its batch only, which `nnfuzz repro` on this folder runs and judges"


def in_batch(check: Callable[..., Any], finding: Finding) -> tuple[Callable[..., Any], Parts] | None:
    """The check that takes the place of another, with what it needs; None where the input is run alone."""
    return _IN_BATCH.get(check) if finding.batch is not None else None


def asked_in_batch(check: Callable[..., Any], finding: Finding) -> str:
    """The call of it; "" where the input is run alone."""
    found = in_batch(check, finding)
    return f"{found[0].__name__}(first{_SECOND.get(check, '')})" if found else ""


def seen_in_batch(check: Callable[..., Any], finding: Finding) -> bool:
    """Whether a script can see the failure again; always where the input is run alone."""
    if finding.batch is None:
        return True
    return check in _IN_BATCH and (check is not nonfinite.fails_backward or finding.batch.ways[0].drive in JOINED)


def heading(finding: Finding) -> str:
    """What a script prints first: the finding, and what is run of its batch."""
    if finding.batch is not None:
        return f"{finding.headline()}\nrun with its batch: it is {finding.batch.told()}"
    return f"{finding.headline()}\nnote: {NO_BATCH}, so it is run alone" if finding.lacks_batch else finding.headline()


def batch_facts(finding: Finding) -> list[str]:
    """Which row of the batch is judged, and how each model takes the batch."""
    if finding.batch is None:
        return []
    ways = [
        {
            "how": "joined" if way.drive in JOINED else way.drive,
            "chunk": way.chunk,
            "inputs": {str(n): a for n, a in way.inputs.items()},
            "outputs": {str(n): a for n, a in way.outputs.items()},
        }
        for way in finding.batch.ways
    ]
    return [f"ROW = {finding.batch.row}", f"WAYS = {ways!r}"]
