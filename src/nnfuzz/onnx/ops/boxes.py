"""NonMaxSuppression: of boxes that overlap, only the best one stays."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator


@operator("NonMaxSuppression")
def non_max_suppression(
    call: Call,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> Tensor:
    """boxes (N, B, 4), scores (N, K, B) → rows of (image, class, box), int64, best first within each class.

    All images and classes go on together, one chosen box of each at a time.
    """
    limit = 0 if most is None or most.numel() == 0 else int(most)
    overlap = 0.0 if iou_threshold is None or iou_threshold.numel() == 0 else float(iou_threshold)
    images, _, count = scores.shape
    limit = min(limit, count)
    if limit <= 0 or scores.numel() == 0:
        return torch.zeros(0, 3, dtype=torch.int64, device=scores.device)
    alive, index = _candidates(scores.detach(), score_threshold)
    if not index.numel():
        return torch.zeros(0, 3, dtype=torch.int64, device=scores.device)
    image = torch.arange(images, device=scores.device)[:, None, None]
    low, high = (t[image, index] for t in _edges(boxes.detach(), bool(call.attr("center_point_box", 0))))
    area = (high - low).prod(-1)
    chosen = []
    for _ in range(limit):
        first = alive.to(torch.uint8).argmax(-1, keepdim=True)  # (N, K, 1); the best that is left
        chosen.append(torch.where(alive.gather(-1, first), index.gather(-1, first), -1))
        this_low, this_high = (t.gather(2, first[..., None].expand(-1, -1, -1, 2)) for t in (low, high))
        common = (torch.minimum(high, this_high) - torch.maximum(low, this_low)).clamp(min=0).prod(-1)
        either = area + area.gather(-1, first) - common
        alive = alive & ~((common > 0) & (common / either > overlap))
        alive = alive.scatter(-1, first, False)
        left = int(alive.sum(-1).max())
        if left == 0:
            break
        if 2 * left < alive.shape[-1]:  # most are decided: go on with the others alone
            rest = alive.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices[..., :left]
            alive, index, area = (t.gather(-1, rest) for t in (alive, index, area))
            low, high = (t.gather(2, rest[..., None].expand(-1, -1, -1, 2)) for t in (low, high))
    table = torch.cat(chosen, -1)
    rows = (table >= 0).nonzero()
    rows[:, 2] = table[table >= 0]
    return rows


def _candidates(scores: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
    """Boxes above the threshold, best first: which places are taken, and by which box; both (N, K, most of a class)."""
    above = torch.ones_like(scores, dtype=torch.bool)
    if threshold is not None and threshold.numel():
        above = scores > float(threshold)
    count = above.sum(-1, keepdim=True)
    index = torch.zeros(*scores.shape[:2], int(count.max()), dtype=torch.int64, device=scores.device)
    alive = torch.arange(index.shape[2], device=scores.device) < count
    index[alive] = above.nonzero()[:, 2]
    order = scores.gather(-1, index).masked_fill(~alive, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    return alive.gather(-1, order), index.gather(-1, order)


def _edges(boxes: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Lower and upper corner, each (N, B, 2)."""
    if centred:
        return boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    return torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
