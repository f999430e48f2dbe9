"""Any property: the user's own function of outputs and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict
from nnfuzz.space import Batch, size
from nnfuzz.targets.base import Trace


@OBJECTIVES.register("property")
class Property(Objective):
    """``fn(outputs, inputs)`` returns a bool mask (True = the property is violated), or ``(mask, score)``.

    Outputs and inputs are a tensor when there is one, a tuple or dict otherwise. With independent samples they carry
    the batch axis and the mask has one element a row; otherwise the function is asked one candidate at a time.

    Raises:
        UsageError: the function raises, or its answer has the wrong shape.
    """

    name = "property"

    def __init__(self, fn: Callable[..., Any], *, per_candidate: bool = False):
        self.fn, self.per_candidate = fn, per_candidate
        self.title = getattr(fn, "__name__", type(fn).__name__)

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        if not self.per_candidate:
            return Verdict(*self._ask(trace.outputs, batch, size(batch)))
        hits, scores = [], []
        for i in range(size(batch)):
            mask, score = self._ask(trace.lone(i), {n: t[i] for n, t in batch.items()}, 1)
            hits.append(mask)
            scores.append(score)
        score = torch.cat([s for s in scores if s is not None]) if all(s is not None for s in scores) else None
        return Verdict(torch.cat(hits), score)

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        verdict = self.judge(trace, batch)
        details = {"objective": self.title}
        severity = float(verdict.score[0]) if verdict.score is not None else None
        return Cause("property", f"{self.title} is violated", severity=severity, details=details)

    def _ask(self, outputs: Batch, inputs: Batch, count: int) -> tuple[Tensor, Tensor | None]:
        try:
            answer = self.fn(as_given(outputs), as_given(inputs))
        except Exception as error:
            shapes = {n: tuple(t.shape) for n, t in outputs.items()}
            raise UsageError(
                f"the objective {self.title} raised {type(error).__name__}: {error} (outputs of shapes {shapes})"
            ) from error
        return read_answer(answer, count, self.title)


def as_given(named: Batch) -> Any:
    """One tensor alone, positional ones as a tuple, others as a dict."""
    if len(named) == 1:
        return next(iter(named.values()))
    if all(n == str(i) for i, n in enumerate(named)):
        return tuple(named.values())
    return dict(named)


def read_answer(answer: Any, count: int, title: str, what: str = "objective") -> tuple[Tensor, Tensor | None]:
    """``(mask, score)`` as tensors of shape ``(count,)``; clear words when they are not."""
    mask, score = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    title = f"the {what} {title}"
    mask = _as_tensor(mask, title)
    if mask.numel() != count:
        raise UsageError(
            f"{title} answered with shape {tuple(mask.shape)} for {count} candidates: return one bool for each"
        )
    if score is not None:
        score = _as_tensor(score, title).detach().reshape(-1).float()
        if score.numel() != count:
            raise UsageError(f"{title} gave {score.numel()} scores for {count} candidates")
        score = score.nan_to_num(-1e30)
    return mask.reshape(-1).bool(), score


def _as_tensor(value: Any, title: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"{title} answered with a {type(value).__name__}: "
            "return a bool mask with one element for each candidate, or (mask, score)"
        ) from None
