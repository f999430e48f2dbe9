"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nnfuzz.corpus import Corpus
from nnfuzz.findings.finding import Finding
from nnfuzz.stats import Stats

if TYPE_CHECKING:
    from nnfuzz.divergence.least import Least
    from nnfuzz.divergence.sensitivity import Sensitivity


@dataclass
class Run:
    """The result of ``find_nans``, ``diff``, ``fuzz``, ``check_rows`` and ``resume``.

    Attributes:
        findings: one for each cause, in order of discovery; empty when nothing was found.
        stats: counters, times, yields.
        corpus: all entries, with lineage (``len(run.corpus)``, ``run.corpus.candidate(id)``).
        path: the run directory, None when the run was kept in memory.
        least, sensitivity: of ``diff``: see ``nnfuzz.divergence``.
        notes: what the user should know (which unit, which mode, what could not be watched).
    """

    findings: list[Finding]
    stats: Stats
    corpus: Corpus
    path: Path | None = None
    notes: list[str] = field(default_factory=list)
    least: Least | None = None
    sensitivity: Sensitivity | None = None

    def __repr__(self) -> str:
        found = "; ".join(f.headline() for f in self.findings) or "nothing found"
        return f"<Run: {self.stats.inputs:,} inputs, {self.stats.seconds:.1f} s, {found}>"
