"""``ctc:BLANK``: the texts that two recognisers read from frames, decoded greedily.

Of an output ``(batch, time, classes)`` the best class of every frame is taken, repeats are collapsed, and the blank
(class 0 unless another is named; −1 is the last) is left out (Graves et al., ICML 2006). A disagreement is another
text; frames that change while the text stays are none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.objectives.compare import COMPARISONS, TIE, Compared, Comparison, Named, main_output, ordered

END = -1
"""Stands for what is behind the end of a text."""


@COMPARISONS.register("ctc")
def ctc(rest: str) -> Comparison:
    which = int(rest or 0)

    def compare(a: Named, b: Named) -> Compared:
        scores_a, scores_b = _scores(a, which), _scores(b, which)
        blank = which % scores_a.shape[-1]
        labels_a, second_a, margin_a = _frames(scores_a)
        labels_b, second_b, margin_b = _frames(scores_b)
        if labels_a.shape != labels_b.shape:
            raise UsageError(
                f"ctc compares equal numbers of frames, but A gives {labels_a.shape[1]} and B {labels_b.shape[1]}"
            )
        text_a, text_b = texts(labels_a, blank), texts(labels_b, blank)
        other = text_a != text_b
        first = other.float().argmax(1, keepdim=True)
        answer_a, answer_b = text_a.gather(1, first)[:, 0], text_b.gather(1, first)[:, 0]
        moved = labels_a != labels_b
        sure = torch.maximum(margin_a, margin_b)
        nearest = (
            _nearest(labels_a, second_a, margin_a, blank),
            _nearest(labels_b, second_b, margin_b, blank),
        )
        return Compared(
            differ=other.any(1),
            tie=~(moved & (sure > TIE)).any(1),
            score=-torch.minimum(*nearest).nan_to_num(0.0),
            keys=answer_a * 100_003 + answer_b,
            margin_a=nearest[0],
            margin_b=nearest[1],
            answer_a=answer_a,
            answer_b=answer_b,
        )

    return compare


def _scores(outputs: Named, blank: int) -> Tensor:
    scores = ordered(main_output(outputs), "ctc").float()
    if scores.dim() != 3 or scores.shape[-1] < 2:
        raise UsageError(
            f"ctc reads an output of shape (batch, time, classes), but it has shape {tuple(scores.shape)}: use "
            "--compare argmax, or a function of your own"
        )
    if not -scores.shape[-1] <= blank < scores.shape[-1]:
        raise UsageError(f"ctc:{blank} names no class: the output has {scores.shape[-1]}")
    return scores


def _frames(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Best and second-best class of every frame, and their relative margin: ``(batch, time)`` each."""
    values, labels = scores.topk(2, dim=-1)
    largest = torch.maximum(values[..., 0].abs(), values[..., 1].abs()).clamp(min=1e-30)
    return labels[..., 0], labels[..., 1], (values[..., 0] - values[..., 1]) / largest


def texts(labels: Tensor, blank: int) -> Tensor:
    """The collapsed labels of each row, moved to the front and followed by ``END``: int64 ``(batch, time)``."""
    before = torch.cat([torch.full_like(labels[:, :1], END), labels[:, :-1]], 1)
    spoken = (labels != blank) & (labels != before)
    order = (~spoken).to(torch.uint8).argsort(dim=1, stable=True)
    return torch.where(spoken, labels, END).gather(1, order)


def _nearest(labels: Tensor, second: Tensor, margin: Tensor, blank: int) -> Tensor:
    """The least margin among the frames whose second-best class would change the text: ``(batch,)``."""
    before = torch.cat([torch.full_like(labels[:, :1], END), labels[:, :-1]], 1)
    after = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], blank)], 1)
    matters = (_said(before, labels, after, blank) != _said(before, second, after, blank)).any(-1)
    return torch.where(matters, margin, torch.inf).amin(1).clamp(max=1.0)


def _said(before: Tensor, label: Tensor, after: Tensor, blank: int) -> Tensor:
    """What a frame and the next one add to the text: ``(..., 2)``, in front what is said first."""
    own = torch.where((label != blank) & (label != before), label, END)
    following = torch.where((after != blank) & (after != label), after, END)
    return torch.stack([torch.where(own == END, following, own), torch.where(own == END, END, following)], -1)
