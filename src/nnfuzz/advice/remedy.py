"""A remedy as data: for which operations, what it puts in place of the call, how it reads in the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.probe.first_bad import BadOp

Rewrite = Callable[[TorchCall, Here], Any]
Kind = Literal["exact", "guard", "precision", "saturate"]
_ORDER = {"exact": 0, "guard": 1, "precision": 2, "saturate": 3}


@dataclass(frozen=True)
class Remedy:
    """One way to repair an operation.

    id:      "log.softmax".
    ops:     plain names of failing operations it is for (`Site.op`).
    kind:    "exact" computes the same function stably; "guard" keeps an operand off the edge; "precision" computes in
             float32; "saturate" cuts a result off. The order of preference.
    words:   one sentence in the imperative; "{eps}" stands for its number.
    rewrite: call, run → what to put in its place, or None to leave the call alone.
    code:    the call in the user's terms: "{0}", "{1}" are the source texts of its operands, "{eps}" the number.
    eps:     dtype → numbers to try, least intrusive first; none if the remedy has no number.
    around:  whether it must also see calls other than the failing one (a later one that uses its result).
    phases:  in which pass the failure may show.
    applies: whether it fits this failure at all.
    reach:   dtype → how far from the edge, besides a few times its number, a guard changes an operand by intention.
    instead: id of the remedy that is preferred to this one: it is tried where that one does not hold.
    """

    id: str
    ops: tuple[str, ...]
    kind: Kind
    words: str
    rewrite: Rewrite
    code: str = ""
    eps: Callable[[torch.dtype], tuple[float, ...]] | None = None
    around: bool = False
    phases: tuple[str, ...] = ("forward", "backward")
    applies: Callable[[BadOp], bool] = lambda _: True
    reach: Callable[[torch.dtype], float] = lambda _: 0.0
    instead: str = ""

    @property
    def rank(self) -> int:
        return _ORDER[self.kind]


REMEDIES: list[Remedy] = []
"""All remedies, in the order in which the tables of this folder are imported."""


def add(remedy: Remedy) -> Remedy:
    """Registers a remedy; two of one id are refused."""
    if any(r.id == remedy.id for r in REMEDIES):
        raise ValueError(f"two remedies are called {remedy.id!r}")
    REMEDIES.append(remedy)
    return remedy


def remedies_for(bad: BadOp) -> Iterator[Remedy]:
    """Those that fit a failure, best kind first."""
    phase = "backward" if bad.site.phase == "backward" else "forward"
    fitting = [r for r in REMEDIES if bad.site.op in r.ops and phase in r.phases and r.applies(bad)]
    yield from sorted(fitting, key=lambda r: r.rank)


def dtype_of(bad: BadOp) -> torch.dtype:
    """Floating dtype in which the failing operation works."""
    for o in bad.operands:
        found = getattr(torch, o.dtype, None) if o.dtype != "scalar" else None
        if isinstance(found, torch.dtype) and found.is_floating_point:
            return found
    return torch.float32


def computing_dtype(bad: BadOp) -> torch.dtype:
    """``dtype_of``, or, of an operation on integers alone, theirs."""
    held = [o.dtype for o in bad.operands if o.dtype != "scalar"]
    found = getattr(torch, held[0], None) if in_integers(bad) else None
    return found if isinstance(found, torch.dtype) else dtype_of(bad)


def in_integers(bad: BadOp) -> bool:
    """Whether all tensors that the operation read hold integers: no small number keeps those off zero."""
    held = [o.dtype for o in bad.operands if o.dtype != "scalar"]
    return bool(held) and all(d.startswith(("int", "uint")) for d in held)


def small(dtype: torch.dtype) -> tuple[float, ...]:
    """Numbers to keep a denominator or a logarithm off zero: representable in the dtype, least first."""
    if dtype is torch.float16:
        return (6.2e-5, 1e-3)  # just above the smallest normal number: its reciprocal is finite
    return (1e-12, 1e-8, 1e-6) if dtype is not torch.float64 else (1e-24, 1e-12, 1e-8)


def beside_one(dtype: torch.dtype) -> tuple[float, ...]:
    """Distances from 1 that the dtype can tell from 0."""
    eps = torch.finfo(dtype).eps
    return (eps, 8 * eps)


def off_zero(d: Tensor, eps: float) -> Tensor:
    """A denominator kept at least `eps` from zero, with its sign."""
    bound = torch.where(d < 0, -eps, eps).to(d.dtype)
    return torch.where(d.abs() < eps, bound, d)


def is_half(bad: BadOp) -> bool:
    """Whether the operation works in half precision."""
    return dtype_of(bad) in (torch.float16, torch.bfloat16)
