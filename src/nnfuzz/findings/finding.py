"""A finding: an input that breaks the model, with all that is needed to see it break again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm
from nnfuzz.probe.sites import Site
from nnfuzz.space import Batch

if TYPE_CHECKING:
    from nnfuzz.findings.batch import InBatch

NO_BLAME = "no input is to blame"
"""In every note that says so."""
NO_BATCH = "it failed only in its batch, and that batch was not saved with it"
"""Said wherever a finding is gone back to that an older version saved, or that did not fail again in its batch."""


@dataclass
class Finding:
    """One way in which the model fails, and the input nearest to its seed that shows it.

    Attributes:
        id: ``F0001`` …, in order of discovery.
        objective: name of the objective that was hit.
        symptom: "nan", "+inf", "-inf", "exception", "disagreement", "property", "rows",
            "dead gradient" or "crash".
        cause: what findings are deduplicated by; stable text such as ``nan in output at log (model.py:12)``.
        inputs: one candidate, as the model takes it (in sample mode with a leading axis of 1).
        outputs: what the model gave for it, by output name; of a pair ``a.*`` and ``b.*``.
        seed: the candidate it descends from, same form as ``inputs``.
        seed_index: its index among the given seeds.
        lineage: from the seed to the finding, ``{"op": mutator, "id": corpus id or None}`` each.
        distance: to the seed over all inputs: ``linf``, ``l2`` in the inputs' own unit, ``l0`` elements
            changed; infinite where the shapes differ.
        inputs_tried: candidates that had been run when it was first hit.
        seconds: since the start of the run.
        status: "confirmed" (fails alone and again), "flaky" (not every time), "batch-only" (fails only in its batch).
        phase: "forward" or "backward".
        site: the first operation that went wrong, where it could be found.
        severity: higher is worse (disagreement: how sure both models were of their own answer), or None.
        count: hits with this cause so far.
        details: objective-specific facts, JSON-able (margins, labels, referee, operand values).
        notes: sentences for the reader.
        call: how ``inputs`` are passed to the model.
        batch: where it fails in its batch only, the smallest that was found; None where none is known.
        place: its directory in the run that saved it, or the one it was read from; None where it lies in memory alone.
    """

    id: str
    objective: str
    symptom: str
    cause: str
    inputs: Batch
    outputs: dict[str, Tensor]
    seed: Batch
    seed_index: int
    lineage: list[dict[str, Any]]
    distance: dict[str, float]
    inputs_tried: int
    seconds: float
    status: str = "confirmed"
    phase: str = "forward"
    site: Site | None = None
    severity: float | None = None
    count: int = 1
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    call: CallForm | None = None
    batch: InBatch | None = None
    place: Path | None = field(default=None, compare=False, repr=False)

    @property
    def confirmed(self) -> bool:
        """Fails alone, and again."""
        return self.status == "confirmed"

    @property
    def is_its_seed(self) -> bool:
        """Whether it is a seed as it was given, to which nothing is nearer."""
        return self.inputs.keys() == self.seed.keys() and all(
            torch.equal(t, self.seed[n]) for n, t in self.inputs.items()
        )

    @property
    def in_batch_only(self) -> bool:
        """Fails beside others of its batch, and not alone."""
        return self.status == "batch-only"

    @property
    def lacks_batch(self) -> bool:
        """Fails in a batch only, which was not saved; what takes the process down holds all of its batch itself."""
        return self.in_batch_only and self.batch is None and self.symptom != "crash"

    @property
    def blames_no_input(self) -> bool:
        """Whether a constant of the model is at fault, which no input can change."""
        return any(NO_BLAME in note for note in self.notes)

    @property
    def broken_side(self) -> str:
        """A or B, where that one of two models gives a number that is not finite and the other does not; else ""."""
        return str(self.details.get("broken side", ""))

    def headline(self) -> str:
        """One line: what, where, how near."""
        side = f" in {self.broken_side}" if self.broken_side else ""
        where = f" at {self.site.called}" if self.site else ""
        line = f" ({Path(self.site.file).name}:{self.site.line})" if self.site and self.site.file else ""
        near = self.distance.get("linf", float("inf"))
        return f"{self.id} {self.symptom}{side}{where}{line}, L∞ {near:.3g} from seed {self.seed_index}"

    def save(self, directory: str | Path) -> Path:
        """Writes the finding as a directory that anyone can rerun; returns its path."""
        from nnfuzz.findings.save import save_finding

        return save_finding(self, Path(directory))


def distance(inputs: Batch, seed: Batch) -> dict[str, float]:
    """L∞, L2 and number of changed elements between two candidates, over all inputs, computed in float64.

    Bool and integer inputs count as numbers. Infinite when any shape differs.
    """
    if any(inputs[n].shape != seed[n].shape for n in inputs):
        return {"linf": float("inf"), "l2": float("inf"), "l0": float("inf")}
    linf = l2 = 0.0
    l0 = 0
    for name, x in inputs.items():
        kind = torch.complex128 if x.is_complex() else torch.float64
        gap = (x.to(kind) - seed[name].to(kind)).abs()
        gap = torch.where(x == seed[name], 0.0, gap)
        if gap.numel():
            linf = max(linf, float(gap.max()))
            l2 += float(gap.square().sum())
            l0 += int((gap > 0).sum())
    return {"linf": linf, "l2": l2**0.5, "l0": float(l0)}
