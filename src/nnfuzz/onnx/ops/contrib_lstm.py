"""com.microsoft: LSTM with quantized weights, whose inputs and state are quantized on the spot."""

from __future__ import annotations

from dataclasses import replace

import torch

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.contrib_quantized import integer_matmul_to_float
from nnfuzz.onnx.ops.quantized import quantize_dynamically
from nnfuzz.onnx.ops.recurrent_cells import LstmCell, activations
from nnfuzz.onnx.ops.registry import Call, operator


class Weights:
    """A quantized matrix (I, 4·H) with its scale and zero point: one number, or one a column."""

    def __init__(self, values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> None:
        self.values, self.scale, self.zero = values, scale, zero

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` (.., I), quantized as a whole, times the matrix: (.., 4·H)."""
        q, scale, zero = quantize_dynamically(x)
        return integer_matmul_to_float(q, self.values, scale, self.scale, zero, self.zero)


@operator("DynamicQuantizeLSTM", domain=MS)
def dynamic_quantize_lstm(
    call: Call,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None,
    lengths: torch.Tensor | None,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
    p: torch.Tensor | None,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor,
    r_scale: torch.Tensor,
    r_zero: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (T, N, I), w (D, I, 4·H), r (D, H, 4·H), b (D, 8·H), h and c (D, N, H) → as LSTM.

    A state is quantized over the whole batch at every step, so a sequence's result depends on the others of its batch.
    """
    if lengths is not None and not bool((lengths == x.shape[0]).all()):
        raise call.unsupported("sequences of different lengths")
    directions, hidden = r.shape[0], r.shape[1]
    functions = activations(replace(call, op="LSTM"), directions)
    nothing = x.new_zeros(directions, x.shape[1], hidden)
    ys, ends = [], []
    for d in range(directions):
        backward = d == 1 or call.attr("direction", "forward") == "reverse"
        unused = x.new_zeros(4 * hidden, hidden)
        cell = LstmCell(call, unused, None if b is None else b[d], None if p is None else p[d], functions[d])
        recurrent = Weights(r[d], r_scale[d], r_zero[d])
        inputs = Weights(w[d], w_scale[d], w_zero[d]).times(x.flip(0) if backward else x) + cell.bias
        state = [(nothing if s is None else s)[d] for s in (h, c)]
        outputs = []
        for step in inputs:
            state = cell.gated(step + recurrent.times(state[0]), state[1])
            outputs.append(state[0])
        y = torch.stack(outputs)
        ys.append(y.flip(0) if backward else y)
        ends.append(state)
    hs, cs = zip(*ends, strict=True)
    return torch.stack(ys, 1), torch.stack(hs), torch.stack(cs)
