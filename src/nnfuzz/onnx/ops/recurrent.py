"""RNN, GRU and LSTM: torch's fused form where the node is the ordinary one, a loop over time steps elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from nnfuzz.onnx.ops.recurrent_cells import CELLS, DEFAULT_ACTIVATIONS, Cell, activations
from nnfuzz.onnx.ops.registry import Call, operator

# ONNX's order of the gates → torch's: zrh → rzn, iofc → ifgo.
GATES = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}

FUSED: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "RNN.tanh": torch.rnn_tanh,
    "RNN.relu": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


@operator("RNN", "GRU")
def rnn_gru(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """x (T, N, I), w (D, G·H, I), r (D, G·H, H), b (D, 2·G·H) → Y (T, D, N, H), Y_h (D, N, H); layout 1 swaps T, N."""
    return _recurrent(call, x, w, r, b, lengths, [h], None)


@operator("LSTM")
def lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """As RNN, with the cell's state c (D, N, H), peepholes p (D, 3·H), and a third output Y_c (D, N, H)."""
    return _recurrent(call, x, w, r, b, lengths, [h, c], p)


def _recurrent(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    states: list[Tensor | None],
    p: Tensor | None,
) -> tuple[Tensor, ...]:
    batch_first = bool(call.attr("layout", 0))
    if batch_first:
        x = x.transpose(0, 1)
        states = [s if s is None else s.transpose(0, 1) for s in states]
    directions, hidden = r.shape[0], r.shape[2]
    zero = x.new_zeros(directions, x.shape[1], hidden)
    begin = [zero if s is None else s for s in states]
    mapped = any(t is not None and is_batchedtensor(t) for t in (x, w, r, b, lengths, *states))
    if lengths is not None and not mapped and bool((lengths == x.shape[0]).all()):
        lengths = None
    # torch.func.vmap knows no rule for the fused forms.
    fused = _fused(call, directions) if lengths is None and p is None and not mapped else None
    if fused is None:
        y, last = _loop(call, x, w, r, b, lengths, begin, p)
    else:
        y, last = _at_once(call, fused, x, w, r, b, begin)
    if batch_first:
        return y.permute(2, 0, 1, 3), *[s.transpose(0, 1) for s in last]
    return y, *last


def _fused(call: Call, directions: int) -> Callable[..., tuple[Tensor, ...]] | None:
    """torch's function for the whole sequence, None if the node asks for more than it does."""
    if call.attr("clip") is not None or call.attr("input_forget", 0):
        return None
    default = DEFAULT_ACTIVATIONS[call.op]
    names = [name.lower() for name in call.attr("activations") or default * directions]
    if call.op == "RNN":
        return FUSED.get(f"RNN.{names[0]}") if len(set(names)) == 1 else None
    if names != default * directions or (call.op == "GRU" and not call.attr("linear_before_reset", 0)):
        return None
    return FUSED[call.op]


def _at_once(
    call: Call,
    fused: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    begin: list[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    directions, hidden = r.shape[0], r.shape[2]
    order = GATES[call.op]

    def reorder(t: Tensor) -> Tensor:
        gates = t.split(hidden)
        return t if len(order) == 1 else torch.cat([gates[k] for k in order])

    weights = []
    for d in range(directions):
        weights += [reorder(w[d]), reorder(r[d])]
        if b is not None:
            weights += [reorder(half) for half in b[d].chunk(2)]
    backward = call.attr("direction", "forward") == "reverse"
    state: Any = tuple(begin) if call.op == "LSTM" else begin[0]
    operand = x.flip(0) if backward else x
    y, *last = fused(operand, state, weights, b is not None, 1, 0.0, False, directions == 2, False)
    y = y.flip(0) if backward else y
    return y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2), last


def _loop(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    begin: list[Tensor],
    p: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    direction = call.attr("direction", "forward")
    per_direction = activations(call, r.shape[0])
    ys, lasts = [], []
    for d in range(r.shape[0]):
        cell = CELLS[call.op](call, r[d], None if b is None else b[d], None if p is None else p[d], per_direction[d])
        backward = direction == "reverse" or d == 1
        y, last = _steps(cell, x, w[d], lengths, [s[d] for s in begin], backward)
        ys.append(y)
        lasts.append(last)
    return torch.stack(ys, 1), [torch.stack(s) for s in zip(*lasts, strict=True)]


def _steps(
    cell: Cell, x: Tensor, w: Tensor, lengths: Tensor | None, state: list[Tensor], backward: bool
) -> tuple[Tensor, list[Tensor]]:
    """One direction over all time steps; a sequence that has ended keeps its state and puts out zeros."""
    if backward:
        x = _reversed(x, lengths)
    inputs = x @ w.T + cell.bias  # all time steps at once
    outputs = []
    for t in range(x.shape[0]):
        new = cell.step(inputs[t], state)
        out = new[0]
        if lengths is not None:
            going = (t < lengths)[:, None]
            new = [torch.where(going, a, old) for a, old in zip(new, state, strict=True)]
            out = torch.where(going, out, 0)
        state = new
        outputs.append(out)
    y = torch.stack(outputs) if outputs else x.new_zeros(0, x.shape[1], state[0].shape[1])
    return _reversed(y, lengths) if backward else y, state


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, N, F) backwards in time, each sequence within its own length."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device)[:, None]
    back = torch.where(t < lengths, lengths - 1 - t, t).long()
    return x.gather(0, back[..., None].expand(*back.shape, x.shape[2]))
