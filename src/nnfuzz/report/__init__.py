"""What a person (or a machine) sees of a run: a live panel, plain lines, JSON lines, and the summary at the end."""

from __future__ import annotations

from nnfuzz.report.base import InputRow, Reporter, RunInfo, SilentReporter

__all__ = ["InputRow", "Reporter", "RunInfo", "SilentReporter"]
