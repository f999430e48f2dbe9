"""Control flow: branches and loops as plain Python over runs of the inner graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator


@operator("If")
def branch(call: Call, condition: Tensor) -> Any:
    """The outputs of one of two graphs."""
    return call.attrs["then_branch" if bool(condition) else "else_branch"]()


@operator("Loop")
def loop(call: Call, trips: Tensor | None = None, condition: Tensor | None = None, *state: Any) -> tuple[Any, ...]:
    """Runs the body (turn, condition, state) → (condition, state, parts) for as long as the condition holds, at most
    ``trips`` times; gives the last state, then all parts of each kind stacked.

    Without a condition what the body says of it is ignored, as the specification has it; ONNX Runtime heeds it.
    """
    if condition is None and trips is None:
        raise call.unsupported("a loop that nothing ends")
    body = call.attrs["body"]
    most = None if trips is None else int(trips)
    goes_on = True if condition is None else bool(condition)
    device = next((s.device for s in state if isinstance(s, Tensor)), None)
    count, turn = len(state), 0
    parts: list[list[Tensor]] = [[] for _ in body.outputs[1 + count :]]
    while goes_on and (most is None or turn < most):
        given = torch.tensor(turn, dtype=torch.int64, device=device)
        again, *results = body(given, torch.tensor(goes_on, device=device), *state)
        goes_on = condition is None or bool(again)
        state = tuple(results[:count])
        for kept, part in zip(parts, results[count:], strict=True):
            kept.append(part)
        turn += 1
    stacked = [_stacked(call, kept, spec) for kept, spec in zip(parts, body.outputs[1 + count :], strict=True)]
    return (*state, *stacked)


def _stacked(call: Call, parts: list[Tensor], spec: Any) -> Tensor:
    """All parts along a new first axis; of none an empty tensor, its other sizes as the body's graph declares them."""
    if parts:
        return torch.stack(parts)
    sizes = [n if isinstance(n, int) else 0 for n in spec.shape or ()]
    return torch.zeros(0, *sizes, dtype=call.dtype(spec.code or 1))


@operator("Scan")
def scan(call: Call, *values: Any) -> tuple[Any, ...]:
    """Runs the body (state, slices) → (state, parts) over slices of the inputs; gives the last state and all parts.

    Before opset 9 every value has a batch axis in front, and an input in front of all gives each row's length.
    """
    if call.version >= 9:
        return _scanned(call, list(values))
    lengths, rest = values[0], values[1:]
    count = len(rest) - call.attrs["num_scan_inputs"]
    rows = []
    for row in range(rest[0].shape[0]):
        length = rest[count].shape[1] if lengths is None else int(lengths[row])
        rows.append(_scanned(call, [v[row] if i < count else v[row, :length] for i, v in enumerate(rest)]))
    longest = rest[count].shape[1]
    columns = enumerate(zip(*rows, strict=True))
    return tuple(torch.stack([_filled(t, longest) if i >= count else t for t in column]) for i, column in columns)


def _filled(t: Tensor, length: int) -> Tensor:
    return t if t.shape[0] == length else torch.cat([t, t.new_zeros(length - t.shape[0], *t.shape[1:])])


def _scanned(call: Call, values: list[Tensor]) -> tuple[Any, ...]:
    body, inputs = call.attrs["body"], call.attrs["num_scan_inputs"]
    state, scanned = values[: len(values) - inputs], values[len(values) - inputs :]
    old = call.version < 9
    axes = call.attr("scan_input_axes") or [0] * inputs
    backward = call.attr("directions" if old else "scan_input_directions") or [0] * inputs
    kinds = len(body.outputs) - len(state)
    out_axes = call.attr("scan_output_axes") or [0] * kinds
    prepends = call.attr("scan_output_directions") or [0] * kinds
    count = scanned[0].shape[axes[0]]
    parts: list[list[Tensor]] = [[] for _ in range(kinds)]
    for turn in range(count):
        slices = [
            t.select(axis, count - 1 - turn if reverse else turn)
            for t, axis, reverse in zip(scanned, axes, backward, strict=True)
        ]
        results = body(*state, *slices)
        state = list(results[: len(state)])
        for kept, part in zip(parts, results[len(state) :], strict=True):
            kept.append(part)
    specs = body.outputs[len(state) :]
    stacked = [
        torch.stack(kept[::-1] if prepend else kept, axis) if kept else _stacked(call, [], spec)
        for kept, axis, prepend, spec in zip(parts, out_axes, prepends, specs, strict=True)
    ]
    return (*state, *stacked)
