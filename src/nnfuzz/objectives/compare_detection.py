"""``detection:SCORE,IOU``: the boxes of two detectors.

Forms of outputs that are understood, n boxes an image (padded ones have low scores):

- one output ``(batch, n, 6)``: x1, y1, x2, y2, score, class;
- several outputs, found by their shapes: boxes ``(batch, n, 4)`` with two opposite corners, scores ``(batch, n)`` or
  ``(batch, n, classes)``, and, where there is another ``(batch, n)``, classes.

Boxes with a score above SCORE are kept. Each must have a partner on the other side: of the same class, with an
intersection over union of at least IOU. A disagreement is a kept box without one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.objectives.compare import COMPARISONS, TIE, Compared, Comparison, Named

MOST = 300
"""Boxes an image that are looked at, those of the highest scores: as many as detectors usually give."""


@dataclass
class Boxes:
    """``corners``: ``(batch, n, 4)``; ``scores``, ``classes``: ``(batch, n)``; sorted by score, highest first."""

    corners: Tensor
    scores: Tensor
    classes: Tensor


@COMPARISONS.register("detection")
def detection(rest: str) -> Comparison:
    numbers = [float(v) for v in rest.split(",")] if rest else [0.5, 0.5]
    if len(numbers) > 2 or not 0 < numbers[-1] <= 1:
        raise UsageError(f"detection:{rest} is not SCORE,IOU with an IOU in (0, 1]: write, say, detection:0.5,0.5")
    level, least = numbers[0], numbers[1] if len(numbers) > 1 else 0.5

    def compare(a: Named, b: Named) -> Compared:
        x, y = boxes(a), boxes(b)
        overlap = iou(x.corners, y.corners) * (x.classes[:, :, None] == y.classes[:, None, :])
        kept_x, kept_y = x.scores > level, y.scores > level
        lone_x, lone_y = _without_partner(overlap, kept_x, kept_y, least)
        # what only rounding at the threshold took away is a tie: a partner a hair below it counts
        spared = _without_partner(overlap, kept_x, kept_y, least, (x.scores > level - TIE, y.scores > level - TIE))
        lone = torch.cat([lone_x, lone_y], 1)
        near = [(s.scores - level).abs().amin(1) for s in (x, y)]
        worst = lone.float().argmax(1, keepdim=True)
        classes = torch.cat([x.classes, y.classes], 1).gather(1, worst)[:, 0].long()
        side = (worst[:, 0] >= lone_x.shape[1]).long()
        return Compared(
            differ=lone.any(1),
            tie=~torch.cat(spared, 1).any(1),
            score=-torch.minimum(torch.minimum(*near), _slack(overlap, kept_x, kept_y, least)),
            keys=classes * 2 + side,
            margin_a=near[0],
            margin_b=near[1],
        )

    return compare


def _without_partner(
    overlap: Tensor, kept_x: Tensor, kept_y: Tensor, least: float, partners: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Kept boxes of either side that no box of the other (kept, or in ``partners``) is near: bool ``(batch, n)``."""
    may_x, may_y = partners or (kept_x, kept_y)
    fits = overlap >= least
    return kept_x & ~(fits & may_y[:, None, :]).any(2), kept_y & ~(fits & may_x[:, :, None]).any(1)


def _slack(overlap: Tensor, kept_x: Tensor, kept_y: Tensor, least: float) -> Tensor:
    """How far the worst of the best overlaps is from the threshold; 1 where nothing is kept: ``(batch,)``."""
    best = (overlap * kept_y[:, None, :]).amax(2) if overlap.shape[2] else overlap.new_zeros(overlap.shape[:2])
    return torch.where(kept_x, (best - least).abs(), 1.0).amin(1)


def iou(x: Tensor, y: Tensor) -> Tensor:
    """Intersection over union of every pair: ``(batch, n, 4)``, ``(batch, m, 4)`` → ``(batch, n, m)``."""
    x, y = _ordered(x.float())[:, :, None], _ordered(y.float())[:, None, :]
    sides = (torch.minimum(x[..., 2:], y[..., 2:]) - torch.maximum(x[..., :2], y[..., :2])).clamp(min=0)
    shared = sides.prod(-1)
    areas = [(t[..., 2:] - t[..., :2]).prod(-1) for t in (x, y)]
    return (shared / (areas[0] + areas[1] - shared).clamp(min=1e-12)).nan_to_num(0.0)


def _ordered(corners: Tensor) -> Tensor:
    """Upper left, then lower right, however the model names two opposite corners."""
    return torch.cat(
        [torch.minimum(corners[..., :2], corners[..., 2:]), torch.maximum(corners[..., :2], corners[..., 2:])], -1
    )


def boxes(outputs: Named) -> Boxes:
    """The detections of one side. Raises ``UsageError`` when the outputs have none of the forms above."""
    only = [t for t in outputs.values() if t.dim() == 3 and t.shape[-1] == 6 and t.is_floating_point()]
    if only:
        t = only[0]
        return _highest(t[..., :4], t[..., 4], t[..., 5])
    corners = [t for t in outputs.values() if t.dim() == 3 and t.shape[-1] == 4 and t.is_floating_point()]
    if not corners:
        raise _unknown(outputs)
    place = corners[0]
    rest = [t for t in outputs.values() if t is not place and t.shape[:2] == place.shape[:2]]
    scored = next((t for t in rest if t.dim() == 3 and t.is_floating_point()), None)
    plain = [t for t in rest if t.dim() == 2]
    if scored is not None:
        scores, classes = scored.max(-1)
        return _highest(place, scores, classes)
    floats = sorted((t for t in plain if t.is_floating_point()), key=_looks_like_classes)
    if not floats:
        raise _unknown(outputs)
    others = [t for t in plain if t is not floats[0]]
    return _highest(place, floats[0], others[0] if others else torch.zeros_like(floats[0]))


def _looks_like_classes(t: Tensor) -> bool:
    """Whole numbers beyond 1: some models give their classes as floats."""
    return bool((t == t.round()).all()) and bool((t > 1).any())


def _highest(corners: Tensor, scores: Tensor, classes: Tensor) -> Boxes:
    if not corners.shape[1]:
        raise UsageError("detection compares boxes, but the output has room for none")
    count = min(MOST, scores.shape[1])
    scores, order = scores.float().nan_to_num(-torch.inf).topk(count, dim=1)
    return Boxes(corners.gather(1, order[..., None].expand(-1, -1, 4)), scores, classes.gather(1, order).double())


def _unknown(outputs: Named) -> UsageError:
    told = ", ".join(f"{n} {list(t.shape)}" for n, t in outputs.items())
    return UsageError(
        f"detection needs an output (batch, n, 6), or boxes (batch, n, 4) and scores (batch, n), but the model gives "
        f"{told}: use --compare pkg.mod:function"
    )
