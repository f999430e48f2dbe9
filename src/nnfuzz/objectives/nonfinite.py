"""Non-finite numbers where the seeds give finite ones: in outputs, in watched layers, in gradients."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor
from torch.nn.functional import threshold

from nnfuzz.memory import PIECE_BYTES
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict, flat, floating, told_outputs
from nnfuzz.space import Batch, size
from nnfuzz.targets.base import Trace, Want

MOST = 3
"""Outputs that are named one by one."""


@OBJECTIVES.register("nonfinite")
class NonFinite(Objective):
    """A hit is a NaN, or an Inf that is not there by design.

    By design are infinities in the same place of an output for every seed (a mask of −inf, an unreachable label, the
    +inf of a distance to oneself); ``remark`` says where. An output that holds +inf and nothing finite on any seed is
    no mask of anything, and counts.

    Args:
        watch: "outputs"; "layers" for every leaf module's output as well; "internal" for every operation's result,
            so that an infinity which vanishes again (1/inf, a ``where``, a norm that absorbs it) is a hit too.
        backward: also look at the gradients of the summed outputs with respect to inputs and parameters.
    """

    name = "nonfinite"

    def __init__(self, watch: str = "outputs", *, backward: bool = False):
        self.want = Want(watched=watch == "layers", backward=backward, internal=watch == "internal")
        self._by_design: dict[str, Tensor] = {}
        self._told: list[str] = []
        self._probabilities: set[str] = set()
        self._bits: dict[str, int] = {}

    def learn(self, trace: Trace, batch: Batch) -> None:
        if not any(t.numel() for t in _watched(trace).values()):
            self.remark = (
                f"no output holds a floating-point number ({told_outputs(trace.outputs)}), so none can be NaN or Inf: "
                "--watch internal looks inside the model, nnfuzz fuzz --objective judges outputs of any kind"
            )
        for name, t in _watched(trace).items():
            self._bits[name] = len(self._bits) % 60
            if name in trace.present:
                t = t[trace.present[name]]
            infinite = flat(t).isinf().all(0)
            if bool(infinite.any()) and len(t) > 1 and not _lost(name, flat(t)):
                self._by_design[name] = infinite
                self._told.append(_places(name, flat(t), infinite))
            if _looks_like_probabilities(t):
                self._probabilities.add(name)
        if self._told:
            rest = f"; so are {len(self._told) - MOST} more" if len(self._told) > MOST else ""
            self.remark = (
                f"{'; '.join(self._told[:MOST])}{rest}: an infinity in the same place on every seed is taken for a "
                "mask, and is not counted"
            )

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        hits = keys = score = None
        for name, t in _watched(trace).items():
            values = self._without_design(name, flat(t))
            least, largest = _extent(values, probable=name in self._probabilities)
            bad = ~largest.isfinite()
            bits = bad.long() << self._bit(name)
            hits = bad if hits is None else hits | bad
            keys = bits if keys is None else keys | bits
            near = self._nearness(name, values.dtype, least, largest)
            score = near if score is None else torch.maximum(score, near)
        if hits is None or keys is None:
            hits = torch.zeros(size(batch), dtype=torch.bool)
            keys = hits.long()
        return Verdict(hits, score, keys)

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        found = {}
        for name, t in _watched(trace).items():
            symptom = symptom_of(self._without_design(name, flat(t)))
            if symptom:
                found[name] = symptom
        outputs = {n: s for n, s in found.items() if not n.startswith(("gradient of ", "layer "))}
        gradients = {n: s for n, s in found.items() if n.startswith("gradient of ")}
        shown = outputs or gradients or found
        inside = not outputs and not gradients
        symptom = next((s for s in ("nan", "+inf", "-inf") if s in shown.values()), "nan")
        where = ", ".join(n for n, s in shown.items() if s == symptom)
        return Cause(
            symptom=symptom,
            text=f"{symptom} in {where}",
            phase="backward" if gradients and not outputs else "forward",
            details={"nonfinite": found, "vanishes again": inside},
            trace_site=True,
        )

    @property
    def has_design(self) -> bool:
        """Whether anything is infinite on every seed that is not counted."""
        return bool(self._told)

    def _bit(self, name: str) -> int:
        """Of the key: by the order in which the seeds show their outputs; others fall where they may."""
        return self._bits.get(name, zlib.crc32(name.encode()) % 60)

    def _without_design(self, name: str, values: Tensor) -> Tensor:
        design = self._by_design.get(name)
        if design is None or design.shape[0] != values.shape[1]:
            return values
        return values.masked_fill(design & values.isinf(), 0)

    def _nearness(self, name: str, dtype: torch.dtype, least: Tensor, largest: Tensor) -> Tensor:
        """How far the magnitudes are, in powers of two, toward the dtype's largest number (1.0), or, for
        probabilities, toward its smallest (1.0)."""
        info = torch.finfo(dtype)
        big = largest.float().clamp_(min=1e-30).log2_().mul_(1 / math.log2(info.max))
        if name not in self._probabilities:
            return big
        return torch.maximum(big, least.float().log2_().mul_(1 / math.log2(info.smallest_normal)))


def _extent(values: Tensor, *, probable: bool) -> tuple[Tensor, Tensor]:
    """(rows, d) → (rows,) twice: the least number of each row (of what is ``probable`` the least above 0, 1 where there
    is none) and the largest magnitude, which is not finite where any number of the row is not."""
    if not values.shape[1]:
        return values.new_zeros(len(values)), values.new_zeros(len(values))
    step = max(1, PIECE_BYTES // max(1, values[:1].nbytes)) if values.device.type == "cpu" else max(1, len(values))
    ends = []
    for part in values.split(step):
        least, most = part.amin(1), part.amax(1)
        largest = torch.maximum(most, -least)
        if probable and not bool((least > 0).all()):
            # One vectorised pass; ``where`` on a mask of few zeros takes ten times as long.
            least = threshold(part, 0.0, 1.0).amin(1)
        ends.append((least, largest))
    return ends[0] if len(ends) == 1 else (torch.cat([a for a, _ in ends]), torch.cat([b for _, b in ends]))


def _watched(trace: Trace) -> dict[str, Tensor]:
    named = dict(floating(trace.outputs))
    named |= {f"layer {n}": t for n, t in floating(trace.watched).items()}
    named |= {f"gradient of {n}": t for n, t in floating(trace.gradients).items()}
    return named


def _lost(name: str, values: Tensor) -> bool:
    """Whether nothing finite is left in any row, and it is no mask of −inf alone, as no gradient is one. A layer inside
    may hold whatever a later one is there to handle."""
    if name.startswith("layer ") or bool(values.isfinite().any()):
        return False
    return name.startswith("gradient of ") or bool(torch.isposinf(values).any())


def _places(name: str, values: Tensor, infinite: Tensor) -> str:
    """``y is infinite in 3 of 12 places (−Inf) on all of 8 seeds``. values: (seeds, d), infinite: (d,)."""
    held = values[:, infinite]
    signs = [word for word, test in (("+Inf", torch.isposinf), ("−Inf", torch.isneginf)) if bool(test(held).any())]
    many = f"{int(infinite.sum()):,} of {len(infinite):,} places" if len(infinite) > 1 else "its one place"
    return f"{name} is infinite in {many} ({' and '.join(signs)}) on all of {len(values):,} seeds"


def _looks_like_probabilities(t: Tensor) -> bool:
    if t.is_complex() or t.dim() < 2 or not t.numel():
        return False
    t = t[:64]
    if t[0].numel() > 1 << 20:  # a distribution over millions is none that a score could follow
        return False
    near_one = (t.float().sum(-1) - 1).abs() < 1e-2
    return bool(((t >= 0) & (t <= 1)).all()) and bool(near_one.all())


def symptom_of(values: Tensor) -> str:
    """ "nan" before "+inf" before "-inf"; "" when all are finite."""
    if bool(values.isnan().any()):
        return "nan"
    if bool(torch.isposinf(values).any()):
        return "+inf"
    return "-inf" if bool(torch.isneginf(values).any()) else ""
