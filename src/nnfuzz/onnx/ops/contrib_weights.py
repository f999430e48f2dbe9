"""com.microsoft: weights of 2, 4 and 8 bits in blocks, as language models have them."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.indexing import from_start
from nnfuzz.onnx.ops.narrow import FLOAT8, moved, wide
from nnfuzz.onnx.ops.registry import Call, operator

_UINT4 = 21  # of onnx.TensorProto.DataType: its tensors are held in uint8 too, but one number a byte


def unpacked(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned numbers of ``bits`` bits from bytes, the lowest bits first: (.., n) → (.., n · 8 / bits)."""
    shifts = torch.arange(0, 8, bits, device=packed.device)
    numbers = (packed.to(torch.int32)[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.flatten(-2)


@operator("MatMulNBits", domain=MS)
def matmul_nbits(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    group: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``a`` (.., K) times weights in blocks along K: b (N, blocks, bytes), scales (N, blocks) → (.., N).

    Zero points are packed as the weights are, or plain numbers of the type of ``a``; 2^(bits − 1) if left out. With
    ``accuracy_level`` 4 ``a`` is quantized too, as ONNX Runtime does on processors that have the instructions (unless
    zero points are plain, or blocks of 2-bit weights shorter than 32).
    """
    bits, depth, columns = call.attr("bits", 4), call.attrs["K"], call.attrs["N"]
    if bits not in (2, 4, 8) or call.attr("weight_prepacked", 0) or group is not None:
        raise call.unsupported("weights of other than 2, 4 or 8 bits, rearranged for a device, or with g_idx")
    if b.numel() == 0:
        y = a.new_zeros(*a.shape[:-1], columns)
        return y if bias is None else y + bias
    short = bits == 2 and call.attrs["block_size"] < 32
    blocks = -(-depth // call.attrs["block_size"])
    scales = scales.reshape(columns, blocks, 1)
    numbers = unpacked(b.reshape(columns, blocks, -1), bits).to(a.dtype)
    if zeros is None:
        numbers = numbers - 2 ** (bits - 1)
    else:
        packed = zeros.dtype == torch.uint8
        points = unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].to(a.dtype) if packed else zeros
        numbers = numbers - points.reshape(columns, blocks, 1)
    weights = (numbers * scales).flatten(1)[:, :depth]
    if call.attr("accuracy_level", 0) == 4 and (zeros is None or zeros.dtype == torch.uint8) and not short:
        a = _in_eight_bits(a, call.attrs["block_size"])
    y = torch.matmul(a, weights.mT)
    return y if bias is None else y + bias


def _in_eight_bits(a: torch.Tensor, block: int) -> torch.Tensor:
    """Rounded to 255 steps between ∓ the largest magnitude in each block of the last axis; gradients as ``snap``."""
    padded: torch.Tensor = F.pad(a, [0, -a.shape[-1] % block]).unflatten(-1, (-1, block))
    size = padded.abs().amax(-1, keepdim=True) / 127
    steps = padded / size.masked_fill(size == 0, 1.0)
    rounded = (steps + (torch.round(steps) - steps).detach()) * size
    return rounded.flatten(-2)[..., : a.shape[-1]]


@operator("GatherBlockQuantized", domain=MS)
def gather_block_quantized(
    call: Call,
    data: torch.Tensor,
    indices: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slices along ``gather_axis`` of data quantized in blocks along ``quantize_axis``, dequantized.

    Data of uint8 hold numbers of ``bits`` bits, packed along the last axis. An index outside the axis gives zeros.
    """
    bits, small_float = call.attr("bits", 4), data.dtype in FLOAT8 or data.dtype.is_floating_point
    default = 0
    if data.dtype == torch.uint8 and call.types[:1] != (_UINT4,):
        default = 2 ** (bits - 1)
        data = unpacked(data, bits)
        zeros = zeros if zeros is None else unpacked(zeros, bits)
    gathered, blocked = call.attr("gather_axis", 0) % data.ndim, call.attr("quantize_axis", 1) % data.ndim
    size, length = data.shape[gathered], data.shape[blocked]
    block = call.attr("block_size", 128) or length
    chosen = from_start(indices, size).reshape(-1)
    legal = (chosen >= 0) & (chosen < size)

    def take(x: torch.Tensor) -> torch.Tensor:
        at = torch.where(legal, chosen, 0) if x.shape[gathered] > 1 or size == 1 else torch.zeros_like(chosen)
        return moved(lambda t: t.index_select(gathered, at), x)

    def each(x: torch.Tensor) -> torch.Tensor:
        x = take(x)
        if gathered == blocked:
            return x
        return x.repeat_interleave(block, blocked).narrow(blocked, 0, length) if x.shape[blocked] > 1 else x

    if gathered == blocked:
        scales = scales.repeat_interleave(block, blocked).narrow(blocked, 0, length)
        zeros = zeros if zeros is None else zeros.repeat_interleave(block, blocked).narrow(blocked, 0, length)
    numbers = wide(take(data)).to(scales.dtype)
    if not small_float:
        numbers = numbers - (default if zeros is None else each(zeros).to(scales.dtype))
    shape = [len(chosen) if axis == gathered else 1 for axis in range(data.ndim)]
    y = torch.where(legal.reshape(shape), numbers * each(scales), 0)
    return y.reshape(*data.shape[:gathered], *indices.shape, *data.shape[gathered + 1 :])
