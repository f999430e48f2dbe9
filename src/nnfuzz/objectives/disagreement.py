"""Two models that should answer alike, and do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict, flat, floating
from nnfuzz.objectives.compare import Compared, comparison
from nnfuzz.objectives.nonfinite import symptom_of
from nnfuzz.space import Batch
from nnfuzz.targets.base import Trace


@OBJECTIVES.register("disagreement")
class Disagreement(Objective):
    """A hit is a candidate on which the comparison says that A and B differ; ties only count when asked for.

    A number that is not finite on one side only is a failure of its own kind, whatever the comparison.

    Args:
        compare: see ``objectives.compare.comparison``.
        ties: count ties as well.
    """

    name = "disagreement"

    def __init__(self, compare: str | Callable[..., Any] = "argmax", *, ties: bool = False):
        self.compare_name = compare if isinstance(compare, str) else getattr(compare, "__name__", "custom")
        self._compare, self.ties = comparison(compare), ties
        self.has_margin = self.compare_name.partition(":")[0] in ("argmax", "topk", "threshold")

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        a, b = sides(trace)
        compared = self._compare(a, b)
        hits = compared.differ if self.ties else compared.differ & ~compared.tie
        broken_a, broken_b = _broken(a), _broken(b)
        one_sided = broken_a != broken_b
        hits = (hits & ~(broken_a & broken_b)) | one_sided
        keys = compared.keys if compared.keys is not None else torch.zeros(len(hits), dtype=torch.long)
        return Verdict(hits, compared.score, torch.where(one_sided, -1 - broken_a.long(), keys.to(hits.device)))

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        a, b = sides(trace)
        compared = self._compare(a, b)
        for broken, whole, name in ((a, b, "A"), (b, a, "B")):
            symptom = _symptom(broken)
            if symptom and not _symptom(whole):
                text = f"{symptom} in {name} only"
                return Cause(symptom, text, details={"broken side": name}, trace_site=name == "A")
        details: dict[str, Any] = {"compare": self.compare_name}
        severity = None
        if compared.margin_a is not None and compared.margin_b is not None:
            details["margin_a"], details["margin_b"] = float(compared.margin_a[0]), float(compared.margin_b[0])
            severity = min(details["margin_a"], details["margin_b"])
            details["tie"] = bool(compared.tie[0])
        text = f"disagreement ({self.compare_name})"
        if compared.answer_a is not None and compared.answer_b is not None:
            details["answer_a"], details["answer_b"] = int(compared.answer_a[0]), int(compared.answer_b[0])
            text = f"A says {details['answer_a']}, B says {details['answer_b']}"
        return Cause("disagreement", text, severity=severity, details=details)

    def compared(self, trace: Trace) -> Compared:
        """The raw comparison, for the report and the referee."""
        return self._compare(*sides(trace))


def sides(trace: Trace) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs of A and of B under their own names."""
    return (
        {n[2:]: t for n, t in trace.outputs.items() if n.startswith("a.")},
        {n[2:]: t for n, t in trace.outputs.items() if n.startswith("b.")},
    )


def _broken(outputs: dict[str, Tensor]) -> Tensor:
    bad = None
    for t in floating(outputs).values():
        values = flat(t)
        row = ~values.sum(1).isfinite()
        if bool(row.any()):
            row[row.clone()] = ~values[row].isfinite().all(1)
        bad = row if bad is None else bad | row
    if bad is None:
        return torch.zeros(len(next(iter(outputs.values()))), dtype=torch.bool)
    return bad


def _symptom(outputs: dict[str, Tensor]) -> str:
    found = [symptom_of(flat(t)) for t in floating(outputs).values()]
    return next((s for s in ("nan", "+inf", "-inf") if s in found), "")
