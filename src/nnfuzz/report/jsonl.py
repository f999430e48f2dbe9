"""The reporter for machines: one JSON object a line, each with ``event`` first.

``start`` (the run's facts), ``status`` (as stats.json), ``note``, ``finding``, ``end``. Numbers that JSON has no words
for are the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from nnfuzz.report.base import RunInfo, SilentReporter
from nnfuzz.report.harmless import harmless_json

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import Stats


class JsonReporter(SilentReporter):
    """Writes to ``stream``, flushed line by line."""

    def __init__(self, stream: TextIO | None = None, every: float = 1.0):
        self._stream = stream or sys.stdout
        self._every = every
        self._next = 0.0

    def start(self, info: RunInfo) -> None:
        self.info = info
        self._write("start", info.to_json())

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self._write("status", stats.to_json())

    def note(self, text: str) -> None:
        self._write("note", {"text": text})

    def finding(self, finding: Finding) -> None:
        self._write("finding", facts(finding))

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        home = None if path is None else str(path)
        self._write("end", {"path": home, "findings": [facts(f, path) for f in findings], "stats": stats.to_json()})

    def _write(self, event: str, body: Mapping[str, Any]) -> None:
        self._stream.write(dumps({"event": event, **plain(body)}, self._stream) + "\n")
        self._stream.flush()


def dumps(document: Any, stream: TextIO | None = None) -> str:
    """Strict JSON on one line, in letters that the stream (stdout by default) can take."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(document, ensure_ascii=not encoding.lower().startswith("utf"), allow_nan=False)
    return harmless_json(text)


def facts(finding: Finding, path: str | Path | None = None) -> dict[str, Any]:
    """A finding without its tensors."""
    site = finding.site
    told = {
        "id": finding.id,
        "symptom": finding.symptom,
        "cause": finding.cause,
        "objective": finding.objective,
        "phase": finding.phase,
        "status": finding.status,
        "count": finding.count,
        "severity": finding.severity,
        "seed_index": finding.seed_index,
        "distance": finding.distance,
        "inputs_tried": finding.inputs_tried,
        "seconds": finding.seconds,
        "site": None
        if site is None
        else {"op": site.called, "module": site.part, "file": site.file, "line": site.line, "source": site.source},
        "details": finding.details,
        "notes": finding.notes,
    }
    return told if path is None else {**told, "path": str(Path(path) / "findings" / finding.id)}


def plain(value: Any) -> Any:
    """Anything → what strict JSON can hold."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
