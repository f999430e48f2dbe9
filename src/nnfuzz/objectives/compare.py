"""Comparisons of two models' outputs. Each gives, per candidate: do they disagree, is it a mere tie, how near is it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.loading.comparisons import check_comparison
from nnfuzz.objectives.base import flat, floating
from nnfuzz.registry import Registry

Named = dict[str, Tensor]
TIE = 1e-6
"""Top-2 margins below this share of the top value, on both sides, make a disagreement a tie."""
ROUNDING = 64 * torch.finfo(torch.float32).eps
"""Between two runtimes, so do margins below this share of the largest score: what sums in another order differ by."""


@dataclass
class Compared:
    """Per candidate, ``(batch,)`` each. ``labels`` (int64 pairs as one key) tell disagreements apart."""

    differ: Tensor
    tie: Tensor
    score: Tensor | None = None
    keys: Tensor | None = None
    margin_a: Tensor | None = None
    margin_b: Tensor | None = None
    answer_a: Tensor | None = None
    answer_b: Tensor | None = None


Comparison = Callable[[Named, Named], Compared]


COMPARISONS: Registry[Callable[[str], Comparison]] = Registry("comparison")
"""Makers by the word before the colon; each is given what follows it, "" for nothing."""
EXAMPLES = (
    "argmax", "topk:5", "threshold:0.5", "allclose:1e-3,1e-2 (absolute, relative)", "cosine:0.99", "ctc:0 (the blank)",
    "detection:0.5,0.5 (score, IoU)",
)  # fmt: skip
MARGINS = ("argmax", "topk", "threshold", "ctc", "detection")
"""Comparisons whose score is minus a distance to a decision: at 0 the decision turns."""


def comparison(spec: str | Callable[..., Any], unit: str = "sample", rounding: float = 0.0) -> Comparison:
    """From a word in ``COMPARISONS`` and what follows its colon, or a function of both models' outputs that returns a
    bool mask or ``(mask, score)``.

    Args:
        unit: with "batch" the outputs have an axis of candidates before their own.
        rounding: margins between classes below this share of the largest score are ties, beside those below ``TIE``:
            0 where both sides sum in the same order, ``ROUNDING`` for two runtimes.
    """
    if callable(spec):
        return _custom(spec)
    name, _, rest = spec.partition(":")
    if name not in COMPARISONS:
        raise UsageError(f"the comparison {spec!r} is not known: choose {', '.join(EXAMPLES)}, or pkg.mod:function")
    check_comparison(spec)
    if name in _OF_CLASSES:
        return _OF_CLASSES[name](rest.strip(), unit, rounding)
    return COMPARISONS[name](rest.strip())


def main_output(outputs: Named) -> Tensor:
    """The output that answers the question: ``logits`` where there is one, else the first floating one."""
    named = floating(outputs)
    if not named:
        raise UsageError("the model has no floating-point output to compare: use --compare pkg.mod:function")
    return next((t for n, t in named.items() if n.rpartition(".")[2] == "logits"), next(iter(named.values())))


def answering(outputs: Named, name: str) -> Named:
    """The outputs that the comparison ``name`` looks at: numbers, or labels where argmax finds nothing but those."""
    numbers = floating(outputs)
    if name.partition(":")[0] != "argmax" or any(t.numel() for t in numbers.values()):
        return numbers
    return {n: t for n, t in outputs.items() if n not in numbers and t.numel()}


def class_axis(shape: Sequence[int]) -> int:
    """Which axis of a model's own output counts classes, if nobody says: the second of (rows, classes), of pictures and
    of volumes, else the last."""
    return 1 if len(shape) in (2, 4, 5) else len(shape) - 1


def class_scores(outputs: Named, axis: int | None, unit: str, name: str) -> tuple[Tensor, int]:
    """The main output and its class axis, counted from the front of the batched tensor. ``axis``: as the user counts,
    in the model's own output."""
    scores = ordered(main_output(outputs), name)
    before = 1 if unit == "batch" else 0
    own = tuple(scores.shape[before:])
    if axis is not None and not -len(own) <= axis < len(own):
        raise UsageError(f"{name}:{axis} asks for axis {axis}, but the output has shape {own}: name another axis")
    at = class_axis(own) if axis is None else axis % len(own)
    if unit == "sample" and at == 0 and axis is not None:
        raise UsageError(f"{name}:{axis} asks for the axis that counts the candidates, of {own}: name another axis")
    if not own or at + before == 0 or own[at] < 2:
        raise UsageError(
            f"{name} needs at least two classes, but the output has shape {own}"
            f"{' (first axis: candidates)' if unit == 'sample' else ''}: "
            "use --compare threshold:0.5 or allclose:1e-3,1e-2"
        )
    return scores, at + before


def top2(outputs: Named, axis: int | None, unit: str = "sample") -> tuple[Tensor, Tensor]:
    """``(label, margin)``, each ``(batch, positions)``; the margin is relative to the larger of the top two."""
    label, margin, _ = _top2(outputs, axis, unit, 0.0)
    return label, margin


def _top2(outputs: Named, axis: int | None, unit: str, rounding: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and whether the margin is so small that the label says nothing."""
    scores, axis = class_scores(outputs, axis, unit, "argmax")
    scores = scores.float()
    values = scores.topk(2, dim=axis).values
    labels = scores.argmax(axis)  # of equal scores the first, as every user's argmax has it; topk may give another
    first, second = values.select(axis, 0), values.select(axis, 1)
    margin = (first - second) / torch.maximum(first.abs(), second.abs()).clamp(min=1e-30)
    close = (margin <= TIE) | _rounded(first - second, scores, axis, rounding)
    return flat(labels), flat(margin), flat(close)


def _answer(outputs: Named, axis: int | None, unit: str, rounding: float) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same of the scores; of a model that gives its labels itself those, whose margin nobody knows."""
    labels = answering(outputs, "argmax")
    if not labels or floating(labels):
        return _top2(outputs, axis, unit, rounding)
    told = torch.cat([flat(t).long() for t in labels.values()], 1)
    return told, None, torch.ones_like(told, dtype=torch.bool)


def _rounded(gap: Tensor, scores: Tensor, axis: int, rounding: float) -> Tensor:
    """Whether another order of summation may close the gap between two of the scores along an axis."""
    if not rounding:
        return torch.zeros_like(gap, dtype=torch.bool)
    largest = scores.masked_fill(~scores.isfinite(), 0).abs().amax(axis)  # a mask of −inf is no size
    return gap <= rounding * largest


def same_shape(x: Tensor, y: Tensor, name: str) -> None:
    """Raises ``UsageError`` when what is compared element by element has no such elements."""
    if x.shape != y.shape:
        raise UsageError(
            f"{name} compares equal shapes, but A gives {tuple(x.shape)} and B {tuple(y.shape)}: use --compare "
            "detection for boxes, else file.py:fn"
        )


def ordered(scores: Tensor, name: str) -> Tensor:
    if scores.is_complex():
        raise UsageError(f"{name} asks which number is largest, but the output is complex: use --compare allclose")
    return scores


def _argmax(rest: str, unit: str = "sample", rounding: float = 0.0) -> Comparison:
    axis = int(float(rest)) if rest else None

    def compare(a: Named, b: Named) -> Compared:
        (label_a, margin_a, close_a), (label_b, margin_b, close_b) = (_answer(s, axis, unit, rounding) for s in (a, b))
        same_shape(label_a, label_b, "argmax")
        other = label_a != label_b
        known = [m for m in (margin_a, margin_b) if m is not None]
        real = other & ~(close_a & close_b) if known else other
        near = torch.stack(known).amin(0).nan_to_num(0.0) if known else None
        if label_a.shape[1] == 1:
            column = torch.zeros(len(other), 1, dtype=torch.long, device=other.device)
        else:
            column = real.float().argmax(1, keepdim=True)

        def at(t: Tensor) -> Tensor:
            return t.gather(1, column)[:, 0]

        return Compared(
            differ=other.any(1),
            tie=~real.any(1),
            score=-near.amin(1) if near is not None else None,
            keys=at(label_a) * 100_003 + at(label_b),
            margin_a=at(margin_a) if margin_a is not None else None,
            margin_b=at(margin_b) if margin_b is not None else None,
            answer_a=at(label_a),
            answer_b=at(label_b),
        )

    return compare


def _topk(rest: str, unit: str = "sample", rounding: float = 0.0) -> Comparison:
    k = int(float(rest or 5))

    def compare(a: Named, b: Named) -> Compared:
        sets, margins, ties = [], [], []
        for side in (a, b):
            scores, axis = class_scores(side, None, unit, "topk")
            scores = scores.float().movedim(axis, -1)
            classes = scores.shape[-1]
            if classes <= k:
                raise UsageError(f"topk:{k} needs more than {k} classes, but the output has {classes}: take fewer")
            values, labels = scores.topk(k + 1, dim=-1)
            sets.append(labels[..., :k].sort(-1).values)
            gap = values[..., k - 1] - values[..., k]
            edge = gap / values[..., k - 1].abs().clamp(min=1e-30)
            margins.append(flat(edge).amin(1))
            ties.append(flat((edge < TIE) | _rounded(gap, scores, -1, rounding)))
        same_shape(sets[0], sets[1], "topk")
        other = flat((sets[0] != sets[1]).any(-1))
        near = ties[0] & ties[1]
        differ, tie = other.any(1), torch.where(other.any(1), ~(other & ~near).any(1), near.all(1))
        return Compared(differ, tie, -torch.minimum(*margins).nan_to_num(0.0), margin_a=margins[0], margin_b=margins[1])

    return compare


_OF_CLASSES = {"argmax": _argmax, "topk": _topk}
"""Comparisons that must know which axis counts classes, and so whether candidates have an axis of their own."""
for _name, _made in _OF_CLASSES.items():
    COMPARISONS.register(_name)(_made)


@COMPARISONS.register("threshold")
def _threshold(rest: str) -> Comparison:
    level = float(rest or 0.5)

    def compare(a: Named, b: Named) -> Compared:
        same_shape(main_output(a), main_output(b), "threshold")
        x, y = flat(main_output(a)).float(), flat(main_output(b)).float()
        near = torch.minimum((x - level).abs(), (y - level).abs())
        differ = ((x > level) != (y > level)).any(1)
        column = ((x > level) != (y > level)).float().argmax(1, keepdim=True)
        ax, by = x.gather(1, column)[:, 0], y.gather(1, column)[:, 0]
        return Compared(
            differ,
            torch.zeros_like(differ),
            -near.amin(1),
            keys=(ax > level).long(),
            margin_a=(ax - level).abs(),
            margin_b=(by - level).abs(),
            answer_a=(ax > level).long(),
            answer_b=(by > level).long(),
        )

    return compare


@COMPARISONS.register("allclose")
def _allclose(rest: str) -> Comparison:
    numbers = [float(v) for v in rest.split(",")] if rest else [1e-5, 1e-3]
    atol, rtol = numbers[0], numbers[1] if len(numbers) > 1 else 0.0

    def compare(a: Named, b: Named) -> Compared:
        worst = None
        for (_, x), (_, y) in zip(floating(a).items(), floating(b).items(), strict=False):
            same_shape(x, y, "allclose")
            p, q = flat(x).double(), flat(y).double()
            excess = ((p - q).abs() / (atol + rtol * q.abs()).clamp(min=1e-300)).nan_to_num(0.0)
            row = excess.amax(1) if excess.shape[1] else excess.new_zeros(len(excess))
            worst = row if worst is None else torch.maximum(worst, row)
        if worst is None:
            raise UsageError("allclose needs floating-point outputs on both sides: use --compare pkg.mod:function")
        return Compared(worst > 1, torch.zeros_like(worst, dtype=torch.bool), worst.clamp(min=1e-30).log().float())

    return compare


@COMPARISONS.register("cosine")
def _cosine(rest: str) -> Comparison:
    least = float(rest or 0.99)

    def compare(a: Named, b: Named) -> Compared:
        same_shape(main_output(a), main_output(b), "cosine")
        x, y = flat(main_output(a)).double(), flat(main_output(b)).double()
        similarity = torch.nn.functional.cosine_similarity(x, y, dim=1)
        similarity = torch.where((x == y).all(1), 1.0, similarity)  # two zero vectors are alike
        return Compared(similarity < least, torch.zeros_like(similarity, dtype=torch.bool), -similarity.float())

    return compare


def _custom(fn: Callable[..., Any]) -> Comparison:
    def compare(a: Named, b: Named) -> Compared:
        from nnfuzz.objectives.property import as_given, read_answer

        title = getattr(fn, "__name__", "compare")
        try:
            answer = fn(as_given(a), as_given(b))
        except Exception as error:
            raise UsageError(f"the comparison {title} raised {type(error).__name__}: {error}") from error
        mask, score = read_answer(answer, len(next(iter(a.values()))), title, "comparison")
        return Compared(mask, torch.zeros_like(mask), score)

    return compare
