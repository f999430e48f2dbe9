"""The InputSpace: what a legal candidate is. Every mutant is projected here before it runs.

A *batch* is a dict from input name to a tensor of shape ``(batch, *shape)``; all tensors share the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.kinds import KINDS, finite, rows_all

Batch = dict[str, Tensor]
Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class FreeDim:
    """A dimension whose length may change: ``low <= length`` and, when ``high`` is given, ``length <= high``."""

    name: str
    low: int = 1
    high: int | None = None


@dataclass(frozen=True, eq=False)
class InputSpec:
    """One named input of one candidate.

    Args:
        name: as the model's parameter, or a dotted path into a nested input (``state.h``).
        shape: of one candidate, as the first seed has it.
        dtype: kept exactly; mutants have the seeds' dtype.
        low, high: inclusive bounds, tensors of ``dtype`` broadcastable to ``shape`` (ignored for bool).
        kind: a name in ``KINDS``.
        choices: sorted legal values, shape ``(k,)``, for kinds ``choice`` and ``mask``.
        fixed: never mutated.
        dims: per axis an int (fixed) or a ``FreeDim``.
        eps: radius of the L∞ ball round the seed in the input's own unit, or None.
        source: where the range came from, for the printed table ("given", "seeds", "dtype").
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    low: Tensor
    high: Tensor
    kind: str = "real"
    choices: Tensor | None = None
    fixed: bool = False
    dims: tuple[int | FreeDim, ...] = ()
    eps: float | None = None
    source: str = "given"

    @cached_property
    def scalar_range(self) -> tuple[float, float] | None:
        """(low, high) as Python numbers when both are the same for every element."""
        return (self.low.item(), self.high.item()) if self.low.numel() == self.high.numel() == 1 else None

    @cached_property
    def middle(self) -> Tensor:
        return (self.low.double() / 2 + self.high.double() / 2).to(self.dtype)

    @cached_property
    def width(self) -> Tensor:
        """high − low in float64; the unit in which mutators measure their steps. 1 for bool."""
        return (
            torch.ones((), dtype=torch.float64) if self.dtype == torch.bool else self.high.double() - self.low.double()
        )

    @property
    def free(self) -> tuple[FreeDim, ...]:
        return tuple(d for d in self.dims if isinstance(d, FreeDim))

    @property
    def is_real(self) -> bool:
        """Continuous values in a floating dtype: noise and gradients make sense."""
        return self.dtype.is_floating_point and not KINDS[self.kind].discrete

    @property
    def image_like(self) -> bool:
        """A real input whose last two axes look like height × width (both at least 4), or HWC with 1, 3, 4 channels."""
        return self.is_real and self.kind == "real" and self.image_layout is not None

    @cached_property
    def image_layout(self) -> str | None:
        """ "HW", "CHW" or "HWC" for the trailing axes of one candidate, None when it has no such shape."""
        s = self.shape
        if len(s) >= 3 and s[-1] in (1, 3, 4) and min(s[-3], s[-2]) >= 4:
            return "HWC"
        if len(s) >= 3 and s[-3] in (1, 3, 4) and min(s[-2], s[-1]) >= 4:
            return "CHW"
        return "HW" if len(s) >= 2 and min(s[-2], s[-1]) >= 8 else None


@dataclass(frozen=True, eq=False)
class Anchors:
    """The seeds a batch descends from, row by row, and the eps-bounds round them (empty without eps)."""

    values: Mapping[str, Tensor]
    low: Mapping[str, Tensor] = field(default_factory=dict)
    high: Mapping[str, Tensor] = field(default_factory=dict)

    def take(self, index: Tensor) -> Anchors:
        """Anchors of a batch: row i of the result is row ``index[i]``, gathered only when it is asked for."""
        return Anchors(_Taken(self.values, index), _Taken(self.low, index), _Taken(self.high, index))


class _Taken(Mapping[str, Tensor]):
    """Rows of tensors, gathered on first use: most mutants never look at their anchors."""

    def __init__(self, source: Mapping[str, Tensor], index: Tensor):
        self._source, self._index = source, index
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            t = self._source[name]
            lone = len(t) == 1
            self._made[name] = t.expand(len(self._index), *t.shape[1:]) if lone else t[self._index]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


@dataclass(frozen=True, eq=False)
class InputSpace:
    """All inputs of a model, and the user's own projection if there is one.

    ``constraint`` takes a batch (dict of ``(batch, *shape)`` tensors) and returns one of the same form. A mutant
    for which its answer is outside the ranges or the eps-ball is replaced by its anchor.
    """

    specs: Mapping[str, InputSpec]
    constraint: Callable[[Batch], Batch] | None = None

    def __iter__(self) -> Any:
        return iter(self.specs.values())

    def __getitem__(self, name: str) -> InputSpec:
        return self.specs[name]

    @cached_property
    def mutable(self) -> tuple[InputSpec, ...]:
        """Inputs that may change at all: not fixed, and with more than one legal value."""
        return tuple(s for s in self.specs.values() if not s.fixed and not _single_valued(s))

    @cached_property
    def free_dims(self) -> dict[str, FreeDim]:
        return {d.name: d for s in self.specs.values() for d in s.free}

    @property
    def has_eps(self) -> bool:
        return any(s.eps is not None for s in self.specs.values())

    def anchors(self, seeds: Batch) -> Anchors:
        """Exact per-element eps-bounds: no value inside them is farther than eps from the seed, in float64."""
        low, high = {}, {}
        for spec in self.mutable:
            if spec.eps is not None and spec.dtype != torch.bool:
                low[spec.name], high[spec.name] = _ball(seeds[spec.name], spec)
        return Anchors(seeds, low, high)

    def project(self, batch: Batch, anchors: Anchors, *, maybe_nan: bool = True) -> Batch:
        """The nearest legal batch, roughly; may work in place. ``maybe_nan=False`` skips the NaN sweep.

        Inputs that are fixed, or have one legal value, are left as they are: mutators never touch them.
        """
        for spec in self.mutable:
            x = batch[spec.name]
            if maybe_nan:
                x = finite(x, spec)
            batch[spec.name] = self._project_one(x, spec, anchors)
        if self.constraint is not None:
            batch = self._constrain(batch, anchors)
        return batch

    def _project_one(self, x: Tensor, spec: InputSpec, anchors: Anchors) -> Tensor:
        kind = KINDS[spec.kind]
        ball = spec.name in anchors.low and x.shape == anchors.values[spec.name].shape
        if not ball:
            return kind.project(x, spec)
        low, high, seed = anchors.low[spec.name], anchors.high[spec.name], anchors.values[spec.name]
        if spec.kind == "real":
            return torch.clamp(x, low, high, out=x)
        inside = kind.project(torch.clamp(x, low, high), spec)
        ok = (inside >= low) & (inside <= high)
        if kind.last_axis:
            ok = ok.all(-1, keepdim=True)
        return torch.where(ok, inside, seed)

    def _constrain(self, batch: Batch, anchors: Anchors) -> Batch:
        assert self.constraint is not None
        before = {s.name: batch[s.name] for s in self}
        title = getattr(self.constraint, "__name__", "constraint")
        try:
            answer = self.constraint(dict(batch))
        except Exception as error:
            raise UsageError(f"the constraint {title} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, Mapping) or any(
            not isinstance(answer.get(n), Tensor) or answer[n].shape != x.shape for n, x in before.items()
        ):
            raise UsageError(
                f"the constraint {title} must return a dict with a tensor of the same shape for each of "
                f"{', '.join(before)}: return what it was given, changed"
            )
        after = {n: answer[n].to(before[n].dtype) for n in before}
        ok = self.legal_boxes(after, anchors)
        for name, x in after.items():
            seed = anchors.values[name]
            if x.shape == seed.shape and not bool(ok.all()):
                after[name] = torch.where(ok.view(-1, *[1] * (x.dim() - 1)), x, seed)
        return after

    def legal_boxes(self, batch: Batch, anchors: Anchors) -> Tensor:
        """(batch,) bool: ranges, kinds, eps-ball and fixed inputs hold; the user's constraint is not asked."""
        ok = None
        for spec in self:
            x, seed = batch[spec.name], anchors.values[spec.name]
            same_shape = x.shape == seed.shape
            if spec.fixed or _single_valued(spec):
                good = rows_all(x == seed) if same_shape else torch.ones(len(x), dtype=torch.bool, device=x.device)
            else:
                good = KINDS[spec.kind].legal(x, spec)
                if spec.name in anchors.low and same_shape:
                    good = good & rows_all((x >= anchors.low[spec.name]) & (x <= anchors.high[spec.name]))
            ok = good if ok is None else ok & good
        assert ok is not None, "a space has at least one input"
        return ok

    def legal(self, batch: Batch, anchors: Anchors) -> Tensor:
        """(batch,) bool: ``legal_boxes``, and the user's constraint leaves the candidate (nearly) as it is."""
        ok = self.legal_boxes(batch, anchors)
        if self.constraint is not None:
            again = self.constraint({n: t.clone() for n, t in batch.items()})
            for spec in self.mutable:
                x, y = batch[spec.name], again[spec.name]
                if spec.dtype.is_floating_point:
                    slack = 8 * torch.finfo(spec.dtype).eps * spec.width.abs().max().clamp(min=1e-30).item()
                    ok = ok & rows_all((x.double() - y.double()).abs() <= slack)
                else:
                    ok = ok & rows_all(x == y)
        return ok


def _single_valued(spec: InputSpec) -> bool:
    if spec.kind in ("choice", "mask"):
        return spec.choices is not None and len(spec.choices) == 1
    return spec.dtype != torch.bool and not spec.free and bool((spec.low == spec.high).all())


def _ball(seed: Tensor, spec: InputSpec) -> tuple[Tensor, Tensor]:
    """Bounds of the eps-ball within the range, rounded inward: ``|x − seed| ≤ eps`` holds in exact arithmetic,
    and (eps being rounded down to the dtype) also when a reader subtracts in the dtype itself."""
    low, high = spec.low.to(seed.device), spec.high.to(seed.device)
    if not seed.is_floating_point():
        step = int(spec.eps or 0)
        info = torch.iinfo(seed.dtype)
        wide = seed.long()
        down, up = (wide - step).clamp(min=info.min), (wide + step).clamp(max=info.max)
        return torch.maximum(down.to(seed.dtype), low), torch.minimum(up.to(seed.dtype), high)
    eps = torch.tensor(spec.eps, dtype=torch.float64)
    narrow = eps.to(seed.dtype)
    if narrow.double() > eps:
        narrow = torch.nextafter(narrow, torch.zeros((), dtype=seed.dtype))
    eps = narrow.double().to(seed.device)
    exact = seed.double()
    return torch.maximum(_rounded_inward(exact, -eps, seed), low), torch.minimum(
        _rounded_inward(exact, eps, seed), high
    )


def _rounded_inward(exact: Tensor, offset: Tensor, seed: Tensor) -> Tensor:
    """exact + offset in the dtype of ``seed``, on the side of ``seed``.

    The float64 sum is itself rounded; its error is exactly known (TwoSum, Knuth 1969), so the test is one on reals.
    """
    total = exact + offset
    back = total - exact
    error = (exact - (total - back)) + (offset - back)
    end = total.to(seed.dtype)
    wide = end.double()
    beyond = (wide - total) * offset.sign() > 0
    beyond |= (wide == total) & (error * offset.sign() < 0)
    return torch.where(beyond, torch.nextafter(end, seed), end)


def signature(batch: Batch) -> Signature:
    """The shapes of one candidate of the batch: candidates of one signature can be stacked."""
    return tuple((n, tuple(t.shape[1:])) for n, t in sorted(batch.items()))


def rows(batch: Batch, index: Tensor | Sequence[int] | slice) -> Batch:
    """Some candidates of a batch."""
    return {n: t[index] for n, t in batch.items()}


def size(batch: Batch) -> int:
    """How many candidates a batch holds."""
    return len(next(iter(batch.values())))


def cat(batches: Sequence[Batch]) -> Batch:
    """Batches of one signature, joined."""
    return {n: torch.cat([b[n] for b in batches]) for n in batches[0]} if len(batches) > 1 else batches[0]
