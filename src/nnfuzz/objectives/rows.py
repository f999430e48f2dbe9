"""Rows that should not know of each other: together against alone, eval() against train()."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nnfuzz.findings.told_cause import SIDES_OF_ROWS
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict, told_outputs
from nnfuzz.space import Batch, size
from nnfuzz.targets.base import Trace
from nnfuzz.targets.ragged import rows_that_have


@OBJECTIVES.register("rows")
class RowsDiffer(Objective):
    """A hit is a small batch in which some row's result differs beyond ``atol + rtol · largest magnitude of the
    output``, or is finite one way and not the other; integers and booleans differ where they are not equal. The
    metamorphic relation of Segura et al. (TSE 2016): the same row, another company."""

    name = "rows"

    def __init__(self, atol: float = 1e-5, rtol: float = 1e-4):
        self.atol, self.rtol = atol, rtol

    def learn(self, trace: Trace, batch: Batch) -> None:
        if not any(t.numel() for t in trace.outputs.values()):
            mine = {n.removeprefix("together."): t for n, t in trace.outputs.items() if n.startswith("together.")}
            self.remark = f"no output holds a number ({told_outputs(mine)}), so no row can differ"

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        worst, keys = self._excess(trace, size(batch))
        excess = worst.amax(1)
        return Verdict(excess > 1, excess.clamp(min=1e-30, max=1e30).log().float(), keys)

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        worst, keys = self._excess(trace, size(batch))
        which = "train() and eval()" if int(keys[0]) else "its batch and alone"
        row = int(worst[0].argmax())
        times = float(worst[0, row])
        details: dict[str, Any] = {"row": row}
        if math.isfinite(times):  # NaN against a number is no multiple of anything, nor is one label against another
            details["times the tolerance"] = times
        details |= self._shown(trace, "training" if int(keys[0]) else "alone", row)
        details |= {"atol": self.atol, "rtol": self.rtol}
        severity = times if math.isfinite(times) else None
        return Cause("rows", f"a row differs between {which}", severity=severity, details=details)

    def _shown(self, trace: Trace, way: str, row: int) -> dict[str, Any]:
        """The two values of one candidate's row that are farthest apart, by the way in which each came about."""
        pairs = [(x[0, row], y[0, row], g[0, row]) for w, x, y, g in self._compared(trace, 1) if w == way]
        x, y, gap = max(pairs, key=lambda pair: float(pair[2].max()))
        at = int(gap.argmax())
        return dict(zip(SIDES_OF_ROWS[way], (x[at].item(), y[at].item()), strict=True))

    def _excess(self, trace: Trace, count: int) -> tuple[Tensor, Tensor]:
        """``(batch, rows)``: the difference in units of the tolerance; and 1 where train() is the worse case."""
        found: dict[str, Tensor] = {}
        for other, _, _, gap in self._compared(trace, count):
            row = gap.amax(2)
            found[other] = torch.maximum(found[other], row) if other in found else row
        if not found:
            return torch.zeros(count, 1, dtype=torch.float64), torch.zeros(count, dtype=torch.long)
        alone = found["alone"]
        training = found.get("training", torch.zeros_like(alone))
        return torch.maximum(alone, training), (training.amax(1) > alone.amax(1)).long()

    def _compared(self, trace: Trace, count: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """The other way, what an output is together and that way, and their gap, each ``(batch, rows, d)``."""
        named = {n: t for n, t in trace.outputs.items() if t.numel()}
        for other in SIDES_OF_ROWS:
            for name, t in named.items():
                twin = named.get(f"{other}.{name.removeprefix('together.')}")
                if not name.startswith("together.") or twin is None:
                    continue
                x, y = _flat_rows(t), _flat_rows(twin)
                gap = self._gap(x, y)
                both = [rows_that_have(trace.present, trace.outputs, n, count)
                        for n in (name, f"{other}.{name.removeprefix('together.')}")]  # fmt: skip
                gap[~(both[0] & both[1]).to(gap.device)] = 0  # nothing is compared with nothing
                yield other, x, y, gap

    def _gap(self, x: Tensor, y: Tensor) -> Tensor:
        """In units of the tolerance; of numbers that are no measurements (labels, tokens) infinite or none."""
        if not x.is_floating_point():
            return torch.where(x == y, 0.0, torch.inf).double()
        x, y = x.double(), y.double()
        scale = x.abs().nan_to_num(0.0, 0.0, 0.0).amax((1, 2), keepdim=True)
        gap = (x - y).abs() / (self.atol + self.rtol * scale)
        return torch.where(x.isfinite() == y.isfinite(), gap.nan_to_num(0.0, torch.inf), torch.inf)


def _flat_rows(t: Tensor) -> Tensor:
    """(batch, rows, ...) → (batch, rows, d), complex as real pairs."""
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.reshape(*t.shape[:2], -1)
