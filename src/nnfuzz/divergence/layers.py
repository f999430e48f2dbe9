"""Layer by layer: the difference between two sides on a failing input beside its usual size on the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from nnfuzz.divergence.matching import Match
from nnfuzz.divergence.values import Limits, Value, Values
from nnfuzz.objectives.base import differences

JUMP = 4.0
"""A layer jumps when its difference is this many times its usual one and this many times that of any layer before."""
BEYOND = 1.5
"""And this many times the largest one on any seed."""
NO_ORIGIN = {
    "Softmax", "LogSoftmax", "Sigmoid", "Tanh", "_softmax", "_log_softmax", "sigmoid", "tanh", "LogSigmoid",
    "Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Dropout", "view", "clone",
}  # fmt: skip
"""What squashes hides a difference where it is sure and shows it where it is not, and what only passes on has none of
its own: a difference that jumps there was there before."""
APART = 8.0
"""And this many times more than rounding is another result."""
BROKEN = 0.5
"""A relative difference that leaves little of a layer."""
NOTHING = 1e6
"""A relative difference that says that A's values are all zero: there is no size to compare with."""
NOISE, MOST_NOISE = 64.0, 8e-3
"""Differences below so many units of eps, and at most so much, are rounding."""


@dataclass(frozen=True)
class Layer:
    """A layer's result on both sides; differences are relative to A's largest value.

    Attributes:
        name, kind: the layer as A calls it, and its operator or class. other: as B calls it. value: the name of its
            result in A.
        here: on the failing input. usual, most: on the seeds, the median and the largest.
        limits: what B's quantized tensor can hold, None where it is not quantized.
        reached: least and greatest value of that tensor in A on the failing input.
        clipped, clipped_usually: share of its values beyond the limits, on the failing input and, the median, on the
            seeds.
    """

    name: str
    kind: str
    other: str
    value: str
    here: float
    usual: float
    most: float
    limits: tuple[float, float] | None = None
    reached: tuple[float, float] | None = None
    clipped: float = 0.0
    clipped_usually: float = 0.0
    passive: bool = False
    """Whether neither side can have made a difference here."""

    @property
    def growth(self) -> float:
        return self.here / max(self.usual, 1e-12)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self) -> str:
        """``conv3 (Conv): relative difference 0.31 here, 0.004 on the seeds; 12 % of its values are clipped …``"""
        kind = f" ({self.kind})" if self.kind and self.kind != self.name else ""
        other = f", {self.other} of B" if self.other != self.name else ""
        text = f"{self.name}{kind}{other}: relative difference {self.here:.3g} here, {self.usual:.3g} on the seeds"
        if self.limits is not None and self.reached is not None and self.clipped:
            text += (
                f"; {100 * self.clipped:.3g} % of its values lie beyond the quantized range {_span(self.limits)}, "
                f"they reach {_span(self.reached)}"
            )
        return text


def compare(
    matches: Sequence[Match], here: tuple[Values, Values], seeds: Sequence[tuple[Values, Values]]
) -> list[Layer]:
    """One row a match, in the order of A.

    Args:
        here: the values of A and of B for the failing input. seeds: those for each seed.
    """
    found = []
    for match in matches:
        a, b = here[0].get(match.a), here[1].get(match.b)
        if a is None or b is None:
            continue
        pairs = [(x[match.a].tensor, match.of_b(y[match.b].tensor)) for x, y in seeds if match.a in x and match.b in y]
        scale = statistics.median([_size(x) for x, _ in pairs]) if pairs else 0.0
        usual = [u for x, y in pairs if not math.isnan(u := relative(x, y, scale))]
        limits, judged = _limits(a, b)
        clips = [_limits(x[match.a], b)[1] for x, _ in seeds if match.a in x]
        found.append(
            Layer(
                name=a.layer,
                kind=a.kind,
                other=b.layer,
                value=match.a,
                here=relative(a.tensor, match.of_b(b.tensor), scale),
                usual=statistics.median(usual) if usual else 0.0,
                most=max(usual, default=0.0),
                limits=(limits.low, limits.high) if limits is not None else None,
                reached=_reach(judged) if judged is not None else None,
                clipped=limits.beyond(judged) if limits is not None and judged is not None else 0.0,
                clipped_usually=statistics.median(limits.beyond(c) for c in clips if c is not None)
                if limits is not None and any(c is not None for c in clips)
                else 0.0,
                passive=a.kind in NO_ORIGIN and b.kind in NO_ORIGIN,
            )
        )
    return found


def _limits(a: Value, b: Value) -> tuple[Limits | None, Tensor | None]:
    """B's limits, and the values of A that B has to fit into them."""
    if b.limits is None:
        return None, None
    return b.limits, a.given if b.limits_input else a.tensor


def _reach(t: Tensor) -> tuple[float, float] | None:
    return (float(t.min()), float(t.max())) if t.numel() else None


def noise(eps: float) -> float:
    """What rounding explains, where the coarser side has this eps."""
    return min(NOISE * eps, MOST_NOISE)


def first_jump(layers: Sequence[Layer], eps: float) -> Layer | None:
    """The first layer whose difference is far above its usual one, and which is larger than any before it or has grown
    more than any before it; None where differences only grow by and by."""
    before, grown = 0.0, 1.0
    for layer in layers:
        above = layer.here > noise(eps) and layer.growth > JUMP and layer.here > BEYOND * layer.most
        if above and not layer.passive and (layer.here > JUMP * before or layer.growth > JUMP * grown):
            return layer
        if math.isfinite(layer.here):
            before = max(before, layer.here)
            grown = max(grown, layer.growth) if layer.here > noise(eps) else grown
    return None


def first_beyond_rounding(layers: Sequence[Layer], eps: float) -> Layer | None:
    """The first layer whose difference is no rounding and many times that of any layer before it, whatever the seeds
    show: of an input that is a seed itself, nothing can be far above what is usual on the seeds."""
    before = 0.0
    for layer in layers:
        if layer.here > noise(eps) and not layer.passive and layer.here > JUMP * before:
            return layer
        before = max(before, layer.here) if math.isfinite(layer.here) else before
    return None


def without_mistaken(layers: Sequence[Layer], eps: float) -> list[Layer]:
    """Without pairs that differ on the seeds while what is computed from them agrees: they were no pairs."""
    agrees = [i for i, x in enumerate(layers) if x.usual <= noise(eps)]
    last = agrees[-1] if agrees else -1
    return [x for i, x in enumerate(layers) if i >= last or x.usual <= APART * noise(eps)]


def first_apart(layers: Sequence[Layer], eps: float) -> Layer | None:
    """The first layer that differs on the seeds already, where all before it agree but for rounding. Of two models that
    should be one this is where they are not."""
    for before, layer in pairwise(layers):
        if before.usual > noise(eps):
            return None
        if layer.usual > APART * noise(eps):
            return layer
    return None


def first_broken(layers: Sequence[Layer]) -> Layer | None:
    """The first layer that differs on the seeds by more than half of its values' size, and far more than any before it:
    a copy that no longer computes this layer, on whatever input. What is computed from it must differ as well, else the
    two values were no pair (a copy may give the name of a ReLU to what it clips later)."""
    before = 0.0
    telling = [x for x in layers if x.usual < NOTHING]
    for i, layer in enumerate(telling):
        if layer.usual >= BROKEN and layer.usual > JUMP * before and not layer.passive:
            after = [x.usual for x in telling[i + 1 :] if not x.passive]
            return layer if min(after, default=layer.usual) >= BROKEN / JUMP else None
        before = max(before, layer.usual)
    return None


def relative(x: Tensor, y: Tensor, scale: float = 0.0) -> float:
    """Largest difference over the largest value of x, or over ``scale`` where that is more: small values are no reason
    for a large difference. Infinite where an element is another infinity, or finite on one side alone; NaN for other
    numbers of elements."""
    if x.numel() != y.numel() or not x.numel():
        return float("nan")
    gap = differences(x.flatten(), y.flatten()).max()
    return float(gap) / max(_size(x), scale, 1e-30)


def _size(t: Tensor) -> float:
    return float(t.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if t.numel() else 0.0


def table(layers: Sequence[Layer], most: int = 24, mark: Layer | None = None) -> list[str]:
    """Lines of text. Of a long network its ends, and what is around ``mark``, are shown."""
    width = min(40, max((len(x.name) for x in layers), default=5))
    shown: list[Layer | None] = list(layers)
    if len(layers) > most:
        at = next((i for i, x in enumerate(layers) if x is mark), None)
        ends = {*range(most // 4), *range(len(layers) - most // 4, len(layers))} if at is not None else {
            *range(most // 2), *range(len(layers) - most // 2, len(layers))}  # fmt: skip
        around = set(range(max(0, at - most // 4), min(len(layers), at + most // 4))) if at is not None else set()
        shown, last = [], -1
        for i in sorted(ends | around):
            shown += [None] if i > last + 1 else []
            shown.append(layers[i])
            last = i
    ranged = any(x.limits is not None for x in layers)
    lines = [f"{'layer':<{width}}  here       on the seeds" + ("  clipped   range, reached" if ranged else "")]
    for x in shown:
        if x is None:
            lines.append("…")
            continue
        line = f"{_cut(x.name, width):<{width}}  {x.here:<9.2e}  {x.usual:<12.2e}"
        if x.limits is not None and x.reached is not None:
            line += f"  {100 * x.clipped:5.2f} %   {_span(x.limits)}, {_span(x.reached)}"
        lines.append((line.rstrip() + ("  <" if x is mark else "")).rstrip())
    return lines


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[-(width - 1) :]


def _span(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3g}…{pair[1]:.3g}"
