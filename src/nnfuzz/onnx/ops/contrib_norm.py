"""com.microsoft: layer normalisation with what ONNX Runtime's optimizer fuses to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.grid import at_least_single, centred
from nnfuzz.onnx.ops.registry import Call, operator


def _layer_norm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Over the last axis, statistics of halves in float32 → y, mean, 1 / deviation."""
    wide = at_least_single(x.dtype)
    y, mean, inverse = torch.native_layer_norm(
        x.to(wide), [x.shape[-1]], gamma.to(wide), None if beta is None else beta.to(wide), epsilon
    )
    return y.to(x.dtype), mean, inverse


def _rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float, axis: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Over the axes from ``axis`` on → y, 1 / root mean square."""
    wide = x.to(at_least_single(x.dtype))
    axes = list(range(axis % x.ndim, x.ndim))
    inverse = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * inverse * gamma.to(wide.dtype)).to(x.dtype), inverse


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MS)
def simplified_layer_normalization(
    call: Call, x: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x over its root mean square over the axes from ``axis`` on, scaled. ONNX Runtime has it in ONNX's own domain."""
    return _rms_norm(x, scale, call.attr("epsilon", 1e-5), call.attr("axis", -1))


def _summed(x: torch.Tensor, skip: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    total = x + skip
    return total if bias is None else total + bias


@operator("SkipLayerNormalization", domain=MS)
def skip_layer_normalization(
    call: Call,
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """LayerNormalization of ``x + skip + bias`` over the last axis → y, mean, 1 / deviation, that sum."""
    total = _summed(x, skip, bias)
    return *_layer_norm(total, gamma, beta, call.attr("epsilon", 1e-12)), total


@operator("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_normalization(
    call: Call, x: torch.Tensor, skip: torch.Tensor, gamma: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor | None, ...]:
    """The same with the root mean square; it has no mean."""
    total = _summed(x, skip, bias)
    y, inverse = _rms_norm(total, gamma, call.attr("epsilon", 1e-12))
    return y, None, inverse, total


@operator("EmbedLayerNormalization", domain=MS)
def embed_layer_normalization(
    call: Call,
    words: torch.Tensor,
    segments: torch.Tensor | None,
    word_table: torch.Tensor,
    position_table: torch.Tensor,
    segment_table: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings of words, positions and segments added and normalised, as BERT begins.

    Args:
        words, segments: (batch, length) numbers of rows of the tables (.., hidden).
        mask: (batch, length), 1 for words and 0 for padding.
        positions: (batch or 1, length); 0, 1, … if left out.

    Returns:
        (batch, length, hidden); the number of words of each row (batch,) by the mask, 0 without; the plain sum.
    """
    places = torch.arange(words.shape[1], device=words.device)[None] if positions is None else positions.long()
    total = F.embedding(words.long(), word_table) + F.embedding(places, position_table)
    if segment_table is not None and segments is not None:
        total = total + F.embedding(segments.long(), segment_table)
    y, _, _ = _layer_norm(total, gamma, beta, call.attr("epsilon", 1e-12))
    return y, _lengths(words, mask), total


def _lengths(words: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """How many words come before the padding, int32."""
    if mask is None:
        return torch.zeros(words.shape[0], dtype=torch.int32, device=words.device)
    return (mask != 0).to(torch.int32).sum(1, dtype=torch.int32)


@operator("QEmbedLayerNormalization", domain=MS)
def quantized_embed_layer_normalization(
    call: Call,
    words: torch.Tensor,
    segments: torch.Tensor | None,
    word_table: torch.Tensor,
    position_table: torch.Tensor,
    segment_table: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mask: torch.Tensor | None,
    *quantization: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """EmbedLayerNormalization of quantized tables; after the mask come five scales and five zero points, in order."""
    tables = (word_table, position_table, segment_table, gamma, beta)
    scales, zeros = quantization[:5], quantization[5:]

    def plain(table: torch.Tensor | None, scale: torch.Tensor | None, zero: torch.Tensor | None) -> torch.Tensor | None:
        return None if table is None or scale is None else centred(table, zero, scale.dtype) * scale

    held = [plain(*each) for each in zip(tables, scales, zeros, strict=True)]
    run: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = embed_layer_normalization
    y, lengths, _ = run(call, words, segments, *held, mask)
    return y, lengths
