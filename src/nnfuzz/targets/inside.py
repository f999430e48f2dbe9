"""Every operation's result looked at while the model runs, for ``--watch internal``.

The cheap half of ``probe.first_bad``: it only tells which candidates had a non-finite number anywhere inside, so that
the expensive half need only look at those. What the seeds show too (a mask of −inf) is by design.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Known = set[tuple[str, tuple[int, ...]]]
"""(operation, shape without the batch axis) of results that are not finite on the seeds."""

_UNFILLED = ("empty", "new_empty", "empty_like", "empty_strided")


class InsideWatch(TorchDispatchMode):
    """Marks candidates.

    Args:
        rows: candidates that run together along the first axis, or None for one alone.
        known: what is by design; with ``learn`` it is filled instead of used.
    """

    def __init__(self, rows: int | None, known: Known, *, learn: bool, device: torch.device):
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows, self.known, self.learn = rows, known, learn
        self.marked = torch.zeros(rows or 1, dtype=torch.bool, device=device)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _UNFILLED:
            for t in out if isinstance(out, tuple | list) else (out,):
                if isinstance(t, Tensor) and t.is_floating_point() and t.numel():
                    self._look(name, t.detach())
        return out

    def _look(self, name: str, t: Tensor) -> None:
        if bool(t.sum().isfinite()):  # one number a result in the usual case; a finite sum has finite parts
            return
        bad = ~t.isfinite()
        if not bool(bad.any()):
            return
        by_row = self.rows is not None and t.dim() > 0 and t.shape[0] == self.rows
        key = (name, tuple(t.shape[1:] if by_row else t.shape))
        if self.learn:
            self.known.add(key)
        elif key not in self.known:
            self.marked |= bad.reshape(t.shape[0], -1).any(1) if by_row else True
