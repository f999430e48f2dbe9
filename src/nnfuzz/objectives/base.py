"""The seam for objectives: what counts as a failure, how near a candidate is to one, and what to call it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from nnfuzz.registry import Registry
from nnfuzz.space import Batch
from nnfuzz.targets.base import Trace, Want


@dataclass
class Verdict:
    """``hits``: bool ``(batch,)``. ``score``: float ``(batch,)``, higher is nearer to a failure, or None.
    ``keys``: int64 ``(batch,)``: hits of one key are taken for the same cause until looked at."""

    hits: Tensor
    score: Tensor | None = None
    keys: Tensor | None = None


@dataclass
class Cause:
    """What one failing candidate shows.

    Attributes:
        symptom: see ``Finding.symptom``.
        text: findings with equal text are one finding.
        severity: higher is worse, or None.
        details: JSON-able facts for the report.
    """

    symptom: str
    text: str
    phase: str = "forward"
    severity: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    trace_site: bool = False
    """Whether the first bad operation is worth looking for."""


class Objective(ABC):
    """Judges traces. ``judge`` is called on every batch and must stay in batched tensor operations."""

    name: ClassVar[str]
    want: Want = Want()
    remark: str = ""
    """Set by ``learn``: what the user should know of these outputs, in one sentence; above all, that none of them can
    ever be a hit."""

    def learn(self, trace: Trace, batch: Batch) -> None:  # noqa: B027  (most objectives have nothing to learn)
        """Sees the seeds once, before fuzzing."""

    def recall(self, details: Mapping[str, Any]) -> None:  # noqa: B027
        """Takes over from a saved finding's details what was learnt from all seeds of its run."""

    @abstractmethod
    def judge(self, trace: Trace, batch: Batch) -> Verdict: ...

    @abstractmethod
    def cause(self, trace: Trace, batch: Batch) -> Cause:
        """Names the failure of a single failing candidate (leading axes of 1)."""


OBJECTIVES: Registry[Callable[..., Objective]] = Registry("objective")


def floating(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in tensors.items() if t.is_floating_point() or t.is_complex()}


def told_outputs(outputs: dict[str, Tensor]) -> str:
    """``label int64, boxes float32 without elements``: what a model gives, where nothing of it can be judged."""
    told = (f"{n} {str(t.dtype).removeprefix('torch.')}{'' if t.numel() else ' without elements'}"
            for n, t in outputs.items())  # fmt: skip
    return ", ".join(told) or "none"


def differences(x: Tensor, y: Tensor) -> Tensor:
    """|x − y| in float64, elementwise: 0 where both are the same infinity or both NaN, infinite where they are
    different infinities, or where one side alone is not finite; never NaN."""
    a, b = x.double(), y.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().nan_to_num(torch.inf, torch.inf).masked_fill(same, 0.0)


def flat(t: Tensor) -> Tensor:
    """(batch, ...) → (batch, d), complex as real pairs."""
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.reshape(t.shape[0], -1)
