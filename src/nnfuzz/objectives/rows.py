"""Rows that should not know of each other: together against alone, eval() against train()."""

from __future__ import annotations

import torch
from torch import Tensor

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
        details = {"row": row, "times the tolerance": float(worst[0, row]), "atol": self.atol, "rtol": self.rtol}
        return Cause("rows", f"a row differs between {which}", severity=float(worst[0, row]), details=details)

    def _excess(self, trace: Trace, count: int) -> tuple[Tensor, Tensor]:
        """``(batch, rows)``: the difference in units of the tolerance; and 1 where train() is the worse case."""
        found: dict[str, Tensor] = {}
        named = {n: t for n, t in trace.outputs.items() if t.numel()}
        for other in ("alone", "training"):
            for name, t in named.items():
                twin = named.get(f"{other}.{name.removeprefix('together.')}")
                if not name.startswith("together.") or twin is None:
                    continue
                row = self._gap(_flat_rows(t), _flat_rows(twin)).amax(2)
                both = [rows_that_have(trace.present, trace.outputs, n, count)
                        for n in (name, f"{other}.{name.removeprefix('together.')}")]  # fmt: skip
                row[~(both[0] & both[1]).to(row.device)] = 0  # nothing is compared with nothing
                found[other] = torch.maximum(found[other], row) if other in found else row
        if not found:
            return torch.zeros(count, 1, dtype=torch.float64), torch.zeros(count, dtype=torch.long)
        alone = found["alone"]
        training = found.get("training", torch.zeros_like(alone))
        return torch.maximum(alone, training), (training.amax(1) > alone.amax(1)).long()

    def _gap(self, x: Tensor, y: Tensor) -> Tensor:
        """In units of the tolerance; of numbers that are no measurements (labels, tokens) infinite or none."""
        if not x.is_floating_point():
            return torch.where(x == y, 0.0, torch.inf).double()
        x, y = x.double(), y.double()
        scale = x.abs().nan_to_num(0.0, 0.0, 0.0).amax((1, 2), keepdim=True)
        gap = (x - y).abs() / (self.atol + self.rtol * scale)
        return torch.where(x.isfinite() == y.isfinite(), gap.nan_to_num(0.0), torch.inf)


def _flat_rows(t: Tensor) -> Tensor:
    """(batch, rows, ...) → (batch, rows, d), complex as real pairs."""
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.reshape(*t.shape[:2], -1)
