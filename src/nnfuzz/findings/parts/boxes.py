"""Texts read from frames, and boxes with a partner: plain loops, one finding at a time."""

from __future__ import annotations

import torch


def ctc_text(frames: torch.Tensor, blank: int) -> list[list[int]]:
    """Best class of every frame, repeats collapsed, without the blank."""
    found = []
    for row in frames.argmax(-1).tolist():
        kept = [label for i, label in enumerate(row) if i == 0 or label != row[i - 1]]
        found.append([label for label in kept if label != blank % frames.shape[-1]])
    return found


def lone_boxes(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], score: float, overlap: float) -> int:
    """Boxes of a above the score that have no box of b of the same class beside them."""
    lone = 0
    for mine, theirs in zip(detections(a, score), detections(b, score), strict=True):
        for box in mine:
            lone += not any(o[5] == box[5] and shared_area(box, o) >= overlap for o in theirs)
    print(f"boxes without a partner: {lone}")
    return lone


def detections(outputs: dict[str, torch.Tensor], score: float) -> list[list[list[float]]]:
    """For each image x1, y1, x2, y2, score, class of what is above the score."""
    tensors = list(outputs.values())
    rows = next((t for t in tensors if t.dim() == 3 and t.shape[-1] == 6), None)
    if rows is None:
        place = next(t for t in tensors if t.dim() == 3 and t.shape[-1] == 4)
        rest = [t for t in tensors if t is not place and t.shape[:2] == place.shape[:2]]
        wide = next((t for t in rest if t.dim() == 3), None)
        if wide is not None:
            best = wide.max(-1)
            scores, classes = best.values, best.indices
        else:
            flat = [t for t in rest if t.is_floating_point()]
            scores = next((t for t in flat if bool((t != t.round()).any()) or not bool((t > 1).any())), flat[0])
            classes = next((t for t in rest if t is not scores), torch.zeros_like(scores))
        rows = torch.cat([place.double(), scores.double()[..., None], classes.double()[..., None]], -1)
    return [[box for box in image if box[4] > score] for image in rows.tolist()]


def shared_area(p: list[float], q: list[float]) -> float:
    """Intersection over union."""
    sides = []
    for axis in (0, 1):
        low = max(min(p[axis], p[axis + 2]), min(q[axis], q[axis + 2]))
        sides.append(max(0.0, min(max(p[axis], p[axis + 2]), max(q[axis], q[axis + 2])) - low))
    areas = [abs((r[2] - r[0]) * (r[3] - r[1])) for r in (p, q)]
    shared = sides[0] * sides[1]
    return shared / max(areas[0] + areas[1] - shared, 1e-12)
