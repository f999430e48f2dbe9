"""Which elements of its operands an output element was computed from, as views of the operands.

Views keep storage positions, so an element found in a region can be followed to the operation that wrote it,
through any number of reshapes and slices, without rules for those.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.probe.breach import BATCH, trains
from nnfuzz.probe.watch import Record, Watch

ROWS = frozenset({
    "_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin",
})  # fmt: skip
REDUCES = frozenset({
    "sum", "mean", "prod", "amax", "amin", "max", "min", "var", "std", "logsumexp",
    "linalg_vector_norm", "norm", "any", "all", "nansum",
})  # fmt: skip
NORMALISES = frozenset({"native_layer_norm", "native_group_norm", "_fused_rms_norm"}) | BATCH


@dataclass(frozen=True)
class Element:
    """One element of a storage: its position in elements from the start, and its value when it was looked at."""

    position: int
    value: float | complex


def first_index(mask: Tensor) -> tuple[int, ...]:
    """Index of the first True of a mask, in row-major order; () for none or a scalar."""
    if mask.dim() == 0:
        return ()
    flat = int(mask.flatten().to(torch.uint8).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), mask.shape))


def element_at(region: Tensor, place: int) -> Element:
    """The element number `place` (row-major) of a strided view."""
    index = torch.unravel_index(torch.tensor(place), region.shape) if region.dim() else ()
    position = int(region.storage_offset()) + sum(int(i) * s for i, s in zip(index, region.stride(), strict=True))
    return Element(position, region.detach().flatten()[place].item())


def locate_in(t: Tensor, element: Element) -> tuple[int, ...] | None:
    """Index in `t` (a view of the same storage) of a storage position; None if the view leaves it out."""
    rest = element.position - t.storage_offset()
    index = [0] * t.dim()
    for d in sorted(range(t.dim()), key=t.stride, reverse=True):
        step = t.stride(d)
        if step > 0 and t.shape[d] > 1:
            index[d] = min(rest // step, t.shape[d] - 1)
            rest -= index[d] * step
    return tuple(index) if rest == 0 and t.numel() else None


def regions(watch: Watch, record: Record, index: tuple[int, ...]) -> Iterator[tuple[str, Any, Tensor]]:
    """(argument name, tensor or number, the part of it that output element `index` depends on).

    Numbers come with an empty tensor. Unknown operations yield whole operands.
    """
    about = record.facts
    for i, (name, value) in enumerate(_named(record)):
        if isinstance(value, Tensor):
            if i in about.writes and (about.fills or about.out):
                continue
            yield name, value, _region(record, i, value, index)
        elif isinstance(value, float | int) and not isinstance(value, bool) and name not in ("dim", "correction"):
            yield name, value, torch.empty(0)
        elif isinstance(value, list | tuple):
            for t in value:
                if isinstance(t, Tensor):
                    yield name, t, t


def _named(record: Record) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(record.args):
        yield record.facts.arguments[i], record.before.get(i, value)
    yield from record.kwargs.items()


def _region(record: Record, position: int, t: Tensor, index: tuple[int, ...]) -> Tensor:
    out = record.outputs[record.bad_output if record.bad_output < len(record.outputs) else 0]
    base = record.facts.base
    if t.is_complex() or t.layout is not torch.strided:
        return t.flatten() if t.layout is torch.strided else t.to_dense()
    try:
        if record.facts.pointwise or base in ("copy", "clone", "_to_copy", "masked_fill", "fill"):
            return torch.broadcast_to(t, out.shape)[index]
        if base in ROWS and t.shape == out.shape:
            if t.dim() == 0:
                return t
            dim = int(_argument(record, "dim")) % t.dim()
            return _line(t, index, dim)
        if base in REDUCES and position == 0:
            return _reduced(record, t, out, index)
        if base in ("mm", "bmm", "addmm") and t.dim() == out.dim():
            return _matrix_part(record, position, t, index)
        if base in ("native_layer_norm", "_fused_rms_norm"):
            inner = len(_argument(record, "normalized_shape"))
            return t[index[: t.dim() - inner]] if position == 0 else t[index[len(index) - inner :]]
        if base in BATCH:
            channel = index[1] if len(index) > 1 else 0
            if t.dim() == 1 and position > 0:
                return t[channel]
            return t[:, channel] if position == 0 and trains(record) else t[index] if position == 0 else t
        if base == "native_group_norm":
            return _grouped(record, position, t, index)
    except (RuntimeError, IndexError, TypeError):
        # Broadcasting rules of a few operations differ; the whole operand is always a true answer.
        return t
    return t


def _argument(record: Record, name: str) -> Any:
    if name in record.kwargs:
        return record.kwargs[name]
    place = record.facts.arguments.index(name) if name in record.facts.arguments else len(record.args)
    return record.args[place] if place < len(record.args) else None


def _reduced(record: Record, t: Tensor, out: Tensor, index: tuple[int, ...]) -> Tensor:
    dims = _argument(record, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(t.dim()))
    reduced = {d % t.dim() for d in dims}
    keep = out.dim() == t.dim()
    rest = iter(index)
    picks: list[Any] = []
    for d in range(t.dim()):
        if d in reduced:
            picks.append(slice(None))
            if keep:
                next(rest)
        else:
            picks.append(next(rest))
    return t[tuple(picks)]


def _grouped(record: Record, position: int, t: Tensor, index: tuple[int, ...]) -> Tensor:
    width = record.args[0].shape[1] // int(_argument(record, "group"))
    start = index[1] // width * width
    return t[index[0], start : start + width] if position == 0 else t[index[1]]


def _line(t: Tensor, index: tuple[int, ...], dim: int) -> Tensor:
    """The row of `t` through `index` along `dim`."""
    picks: list[int | slice] = list(index)
    picks[dim] = slice(None)
    return t[tuple(picks)]


def _matrix_part(record: Record, position: int, t: Tensor, index: tuple[int, ...]) -> Tensor:
    left = 1 if record.facts.base == "addmm" else 0
    *batch, row, column = index
    if position == left:
        return t[(*batch, row)]
    if position == left + 1:
        return _line(t, (*batch, 0, column), t.dim() - 2)
    return torch.broadcast_to(t, record.outputs[0].shape)[index]
