"""Two models that should answer alike, and do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.objectives.alike import alike, axes_apart
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict, flat, floating, told_outputs
from nnfuzz.objectives.compare import MARGINS, Compared, answering, class_axis, comparison, main_output
from nnfuzz.objectives.nonfinite import symptom_of
from nnfuzz.space import Batch, size
from nnfuzz.targets.base import Trace
from nnfuzz.targets.ragged import alike_rows, rows_that_have

LACKING = -3
"""The key of candidates for which one side alone lacks an output."""


@OBJECTIVES.register("disagreement")
class Disagreement(Objective):
    """A hit is a candidate on which the comparison says that A and B differ; ties only count when asked for.

    A number that is not finite on one side only is a failure of its own kind, whatever the comparison.

    Args:
        compare: see ``objectives.compare.comparison``.
        ties: count ties as well.
        unit: "sample", or "batch": candidates are whole inputs.
        rounding: see ``objectives.compare.comparison``.
    """

    name = "disagreement"

    def __init__(
        self,
        compare: str | Callable[..., Any] = "argmax",
        *,
        ties: bool = False,
        unit: str = "sample",
        rounding: float = 0.0,
    ):
        self.compare_name = compare if isinstance(compare, str) else getattr(compare, "__name__", "custom")
        self.compare, self.ties = compare, ties
        self.unit = unit
        self._compare = comparison(compare, unit, rounding)
        self._by_design: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self._usual: list[set[int]] | None = None
        """Axes on which the outputs of the two sides differ in length on the seeds already."""
        self._order: list[str] = []
        """Names of A's outputs as the seeds show them; in a batch they come as its first candidates have them."""
        self._by_name = False
        """Whether the outputs of the two sides have the same names on the seeds."""
        self.has_margin = self.compare_name.partition(":")[0] in MARGINS

    def learn(self, trace: Trace, batch: Batch) -> None:
        """Infinities that both sides give in the same place for every seed are there by design (a mask of −inf)."""
        a, b = (self._seen(side) for side in sides(trace))
        self._by_name, self._order = a.keys() == b.keys(), list(a)
        told = "; B: ".join(told_outputs(side) for side in sides(trace))
        if not callable(self.compare) and not all(any(t.numel() for t in side.values()) for side in (a, b)):
            raise UsageError(
                f"there is no floating-point number in the outputs to compare (A: {told}): use --compare file.py:fn, "
                "or argmax for labels"
            )
        labels = [not callable(self.compare) and not floating(side) for side in (a, b)]
        if any(labels):
            self.has_margin = not all(labels)
            whose = "both models give" if all(labels) else f"{'A' if labels[0] else 'B'} gives"
            self.remark = f"{whose} labels without scores (A: {told}): the labels are compared as they are"
        elif self.compare_name in ("argmax", "topk"):
            own = tuple(main_output(a).shape)[self.unit == "batch" :]
            if len(own) > 2:
                self.remark = (
                    f"classes are taken to lie on axis {class_axis(own)} of the output, whose shape is {own}: "
                    "--compare argmax:AXIS names another"
                )
        self._compare(*sides(trace))  # outputs that cannot be compared are refused before the search
        self._usual = axes_apart(a, b)
        if not callable(self.compare) and (told := self._other_shapes(a, b)):
            self.remark = "; ".join(filter(None, [self.remark, told]))
        for (name_a, x), (name_b, y) in zip(a.items(), b.items(), strict=False):
            both = self._has(trace, "a", name_a) & self._has(trace, "b", name_b)
            if x.shape == y.shape and bool(both.any()):
                design = (flat(x).isinf() & (flat(x) == flat(y)))[both.to(x.device)].all(0)
                self._by_design[0][name_a] = self._by_design[1][name_b] = design

    def _other_shapes(self, a: dict[str, Tensor], b: dict[str, Tensor]) -> str:
        told = []
        for (n, x), (m, y), apart in zip(a.items(), b.items(), self._usual or [], strict=False):
            if apart:
                told.append(f"{n} {list(x.shape[1:])} of A beside {m} {list(y.shape[1:])} of B")
        return f"on the seeds outputs have other shapes on either side: {', '.join(told[:3])}" if told else ""

    def _seen(self, side: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs that are compared; a function is asked about all, of which numbers are told."""
        return answering(side, "" if callable(self.compare) else self.compare_name)

    def _without_design(self, named: dict[str, Tensor], side: int) -> dict[str, Tensor]:
        settled = {}
        for name, t in floating(named).items():
            values, design = flat(t), self._by_design[side].get(name)
            fits = design is not None and len(design) == values.shape[1] and bool(design.any())
            settled[name] = values.masked_fill(design & values.isinf(), 0) if fits and design is not None else values
        return settled or named

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        a, b = sides(trace)
        if not a or not b:  # where one side gives nothing at all there is nothing to compare
            return Verdict(self._lacking(trace, size(batch)))
        compared, _ = self._compared(trace)
        hits = compared.differ if self.ties else compared.differ & ~compared.tie
        broken_a, broken_b = _broken(self._without_design(a, 0)), _broken(self._without_design(b, 1))
        one_sided = broken_a != broken_b
        hits = (hits & ~(broken_a & broken_b)) | one_sided
        keys = compared.keys if compared.keys is not None else torch.zeros(len(hits), dtype=torch.long)
        return Verdict(hits, compared.score, torch.where(one_sided, -1 - broken_a.long(), keys.to(hits.device)))

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        a, b = sides(trace)
        lacking = bool(self._lacking(trace, 1).any())
        compared, unlike = (None, False) if lacking else self._compared(trace)
        symptoms = [_symptom(self._without_design(named, side)) for side, named in enumerate((a, b))]
        for (symptom, other), name in ((symptoms, "A"), (symptoms[::-1], "B")):
            if symptom and not other:
                text = f"{symptom} in {name} only"
                return Cause(symptom, text, details={"broken side": name}, trace_site=name == "A")
        details: dict[str, Any] = {"compare": self.compare_name}
        if compared is None:
            details["outputs_a"], details["outputs_b"] = (list(self._seen(side)) for side in (a, b))
            return Cause("disagreement", "one side lacks an output of the other", details=details)
        if unlike:
            shapes = [{n: list(t.shape[1:]) for n, t in self._seen(side).items()} for side in (a, b)]
            details["shapes_a"], details["shapes_b"] = shapes
            return Cause("disagreement", "the outputs have other shapes", details=details)
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
        return self._compared(trace)[0]

    def _compared(self, trace: Trace) -> tuple[Compared, bool]:
        """And whether the outputs have other shapes than each other, which on the seeds they had not. Of a lone
        candidate that is a disagreement; in a batch, what is missing counts as zeros. So does an output that one side
        alone lacks, which is a disagreement in any case."""
        a, b = sides(trace)
        if callable(self.compare):
            return self._asked(trace, a, b), False
        if self._usual is None:
            return self._compare(a, b), False
        if self._by_name:
            a, b = _with_names_of(a, b), _with_names_of(b, a)
            names = [n for n in dict.fromkeys([*self._order, *a]) if n in a]
            a, b = {n: a[n] for n in names}, {n: b[n] for n in names}
        x, y, unlike = alike(self._seen(a), self._seen(b), self._usual)
        count = len(next(iter(x.values()))) if x else 0
        if not any(t.numel() for side in (x, y) for t in side.values()):
            nothing = torch.zeros(count, dtype=torch.bool)
            return Compared(nothing, nothing), False
        compared = self._compare(x, y) if unlike else self._compare(a, b)
        if unlike and count == 1:
            compared.differ, compared.tie = torch.ones_like(compared.differ), torch.zeros_like(compared.tie)
        lacking = self._lacking(trace, count).to(compared.differ.device)
        if bool(lacking.any()):
            compared.differ, compared.tie = compared.differ | lacking, compared.tie & ~lacking
            keys = compared.keys if compared.keys is not None else torch.zeros(count, dtype=torch.long)
            compared.keys = torch.where(lacking, LACKING, keys.to(lacking.device))
        return compared, unlike

    def _lacking(self, trace: Trace, count: int) -> Tensor:
        """bool ``(count,)``: whether one side alone lacks an output, where both have the same names on the seeds."""
        found = torch.zeros(count, dtype=torch.bool)
        if self._by_name and not callable(self.compare):
            for name in dict.fromkeys(n for side in sides(trace) for n in self._seen(side)):
                found |= self._has(trace, "a", name) != self._has(trace, "b", name)
        return found

    def _has(self, trace: Trace, side: str, name: str) -> Tensor:
        return rows_that_have(trace.present, trace.outputs, f"{side}.{name}", trace.count)

    def _asked(self, trace: Trace, a: Batch, b: Batch) -> Compared:
        """The user's own function sees of every candidate the outputs that it has."""
        if not trace.present:
            return self._compare(a, b)
        differ, score = torch.zeros(trace.count, dtype=torch.bool), torch.full((trace.count,), -torch.inf)
        scored = True
        for index, without in alike_rows(trace.present, trace.count):
            some = [{n: t[index.to(t.device)] for n, t in side.items() if f"{word}.{n}" not in without}
                    for word, side in (("a", a), ("b", b))]  # fmt: skip
            if not all(some):
                continue
            compared = self._compare(*some)
            differ[index] = compared.differ.cpu()
            scored = scored and compared.score is not None
            if compared.score is not None:
                score[index] = compared.score.detach().cpu()
        return Compared(differ, torch.zeros_like(differ), score if scored else None)


def _with_names_of(side: Batch, other: Batch) -> Batch:
    """With zeros for outputs that only the other side has."""
    return side | {n: torch.zeros_like(t) for n, t in other.items() if n not in side}


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
