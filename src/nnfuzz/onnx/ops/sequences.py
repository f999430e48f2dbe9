"""Sequences, which are lists of tensors, and optional values, which are None or the value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import ints

Sequence = list[Any]


@operator("SequenceConstruct")
def construct(call: Call, *values: Any) -> Sequence:
    """The sequence of the inputs."""
    return list(values)


@operator("SequenceEmpty")
def empty(call: Call) -> Sequence:
    """A sequence without elements."""
    return []


@operator("SequenceLength")
def length(call: Call, values: Sequence) -> Tensor:
    """The number of elements, int64."""
    return torch.tensor(len(values), dtype=torch.int64)


@operator("SequenceAt")
def at(call: Call, values: Sequence, place: Tensor) -> Any:
    """One element; negative places count from the end."""
    return values[_place(call, values, place, len(values))]


@operator("SequenceInsert")
def insert(call: Call, values: Sequence, value: Any, place: Tensor | None = None) -> Sequence:
    """With an element put in, at the end without a place."""
    where = len(values) if place is None else _place(call, values, place, len(values) + 1)
    return [*values[:where], value, *values[where:]]


@operator("SequenceErase")
def erase(call: Call, values: Sequence, place: Tensor | None = None) -> Sequence:
    """Without one element, the last one without a place."""
    where = len(values) - 1 if place is None else _place(call, values, place, len(values))
    return values[:where] + values[where + 1 :]


def _place(call: Call, values: Sequence, place: Tensor, places: int) -> int:
    given = int(place)
    if not -len(values) <= given < places:
        raise UsageError(
            f"the ONNX operator {call.op} (node {call.label!r}) was given place {given} in a sequence of {len(values)}"
        )
    return given + len(values) if given < 0 else given


@operator("ConcatFromSequence")
def concat_from(call: Call, values: Sequence) -> Tensor:
    """All elements along an axis, a new one with ``new_axis``."""
    axis = call.attrs["axis"]
    return torch.stack(values, axis) if call.attr("new_axis", 0) else torch.cat(values, axis)


@operator("SplitToSequence")
def split_to(call: Call, x: Tensor, sizes: Tensor | None = None) -> Sequence:
    """Parts along ``axis``: of size 1 (the axis dropped unless ``keepdims``), of one size, or of the given sizes."""
    axis = call.attr("axis", 0)
    if sizes is None:
        parts = torch.split(x, 1, axis)
        return list(parts) if call.attr("keepdims", 1) else [p.squeeze(axis) for p in parts]
    return list(torch.split(x, int(sizes) if sizes.dim() == 0 else ints(sizes), axis))


@operator("SequenceMap")
def mapped(call: Call, first: Sequence, *others: Any) -> tuple[Sequence, ...]:
    """The body on each element of the first sequence, with the same element of other sequences; tensors go to all."""
    body = call.attrs["body"]
    results = [body(v, *(o[i] if isinstance(o, list) else o for o in others)) for i, v in enumerate(first)]
    return tuple([r[k] for r in results] for k in range(len(call.outputs)))


@operator("Optional")
def optional(call: Call, value: Any = None) -> Any:
    """The value, or none."""
    return value


@operator("OptionalHasElement")
def has_element(call: Call, value: Any = None) -> Tensor:
    """Whether there is a value."""
    return torch.tensor(value is not None)


@operator("OptionalGetElement")
def get_element(call: Call, value: Any) -> Any:
    """The value that must be there.

    Raises:
        UsageError: there is none.
    """
    if value is None:
        raise UsageError(f"the ONNX operator OptionalGetElement (node {call.label!r}) was given an empty optional")
    return value
