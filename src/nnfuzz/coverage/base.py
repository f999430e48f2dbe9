"""The seam for coverage: from a run's trace to the vectors in which novelty is measured."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from nnfuzz.registry import Registry
from nnfuzz.targets.base import Trace


class Coverage(Protocol):
    """Turns a trace into one vector per candidate."""

    def fit(self, trace: Trace, seed: int) -> None:
        """Learns sizes and scales from the trace of the seeds; called once, before the first ``vectors``."""

    def vectors(self, trace: Trace) -> Tensor:
        """float32, shape ``(batch, d)``, finite, on the CPU or the trace's device."""


COVERAGES: Registry[type[Coverage]] = Registry("coverage")
