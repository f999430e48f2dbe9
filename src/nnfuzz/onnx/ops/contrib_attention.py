"""com.microsoft: attention in the forms that ONNX Runtime's transformer optimizer writes. B batch, S queries, P keys of
the past, T = P + new keys, N heads, h features a head."""

from __future__ import annotations

import math

import torch

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.contrib_quantized import integer_matmul_to_float
from nnfuzz.onnx.ops.registry import Call, operator


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, S, N·h) → (B, N, S, h)."""
    heads_apart: torch.Tensor = x.unflatten(2, (heads, -1))
    return heads_apart.transpose(1, 2)


def attend(
    call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, N, S, h), k and v (B, N, T, h), bias broadcast to (B, N, S, T) → (B, S, N·h), and the probabilities.

    Written out, not by torch's fused function, so that each step can be watched.
    """
    scale: float = call.attr("scale") or 1 / math.sqrt(q.shape[-1])
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    scores = scores if bias is None else scores + bias
    weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v).transpose(1, 2).flatten(2), weights


def scores_bias(
    call: Call,
    q: torch.Tensor,
    keys: int,
    past: int,
    mask: torch.Tensor | None,
    extra: torch.Tensor | None,
) -> torch.Tensor | None:
    """What is added to the scores: the filter value where a key is masked, −∞ (the dtype's lowest) ahead in time.

    Args:
        call: attributes ``unidirectional`` and ``mask_filter_value``.
        q: queries, (B, N, S, h).
        keys: T.
        past: P.
        mask: see ``_seen``.
        extra: numbers to be added, broadcast to (B, N, S, T).
    """
    bias = extra
    if mask is not None:
        hidden = ~_seen(call, mask, q, keys)
        filtered = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
        filtered = filtered.masked_fill(hidden, call.attr("mask_filter_value", -10000.0))
        bias = filtered if bias is None else bias + filtered
    if call.attr("unidirectional", 0):
        place = torch.arange(q.shape[2], device=q.device)[:, None] + past
        ahead = torch.arange(keys, device=q.device) > place
        closed = torch.zeros(ahead.shape, dtype=q.dtype, device=q.device)
        closed = closed.masked_fill(ahead, torch.finfo(q.dtype).min)
        bias = closed if bias is None else bias + closed
    return bias


def _seen(call: Call, mask: torch.Tensor, q: torch.Tensor, keys: int) -> torch.Tensor:
    """Which keys count, broadcast to (B, N, S, T), by a mask in any of its forms.

    (B,): how many, of sequences padded at the end; (2·B,): ends, then beginnings; (B, T) or (B, S, T): 0 for a key
    that does not count.
    """
    batch, place = q.shape[0], torch.arange(keys, device=q.device)
    if mask.ndim == 1:
        if len(mask) not in (batch, 2 * batch):
            raise call.unsupported(f"a mask of {len(mask)} numbers for a batch of {batch}")
        seen = place < mask[:batch, None]
        seen = seen & (place >= mask[batch:, None]) if len(mask) == 2 * batch else seen
        return seen[:, None, None]
    if mask.ndim == 2:
        return (mask != 0)[:, None, None]
    if mask.ndim == 3:
        return (mask != 0)[:, None]
    raise call.unsupported(f"a mask of {mask.ndim} axes")


@operator("Attention", domain=MS)
def attention(
    call: Call,
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    past: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
    past_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Self-attention of x (B, S, D) projected by weights (D, 3·N·h) → (B, S, N·h), present (2, B, N, T, h)."""
    projected = torch.matmul(x, weights)
    return _self_attention(call, projected if bias is None else projected + bias, mask, past, extra)


@operator("QAttention", domain=MS)
def quantized_attention(
    call: Call,
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    mask: torch.Tensor | None = None,
    x_zero: torch.Tensor | None = None,
    weight_zero: torch.Tensor | None = None,
    past: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with x and weights quantized."""
    projected = integer_matmul_to_float(x, weights, x_scale, weight_scale, x_zero, weight_zero) + bias
    return _self_attention(call, projected, mask, past, None)


def _self_attention(
    call: Call,
    projected: torch.Tensor,
    mask: torch.Tensor | None,
    past: torch.Tensor | None,
    extra: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0):
        raise call.unsupported("a rotary embedding inside, or a past that shares its memory with the present,")
    sizes = call.attr("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3
    q, k, v = (split_heads(part, call.attrs["num_heads"]) for part in projected.split(list(sizes), -1))
    before = 0
    if past is not None:
        before = past.shape[3]
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    y, _ = attend(call, q, k, v, scores_bias(call, q, k.shape[2], before, mask, extra))
    return y, torch.stack([k, v]) if k.shape == v.shape else k


@operator("MultiHeadAttention", domain=MS)
def multi_head_attention(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    past_length: torch.Tensor | None = None,
    beams: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Attention of projected queries, keys and values → (B, S, N·h), present key and value, probabilities.

    Args:
        query: (B, S, N·h), or all three packed, (B, S, N, 3, h).
        key, value: (B, L, N·h), or both packed in ``key`` (B, L, N, 2, h), or of another text (B, N, L, h).
        bias: (3·N·h,), added to all three.
        mask: see ``scores_bias``.
        extra: added to the scores.
        past_key, past_value: (B, N, P, h).
    """
    if past_length is not None or beams is not None:
        raise call.unsupported("a past that shares its memory with the present")
    heads = call.attrs["num_heads"]
    if query.ndim == 5:
        query, key, value = (part.flatten(2) for part in query.unbind(3))
    elif key is not None and key.ndim == 5:
        key, value = (part.flatten(2) for part in key.unbind(3))
    assert key is not None
    assert value is not None
    other_text = key.ndim == 4
    if bias is not None:
        width = query.shape[-1]
        query = query + bias[:width]
        if not other_text:
            key, value = key + bias[width : 2 * width], value + bias[2 * width :]
    q = split_heads(query, heads)
    k, v = (key, value) if other_text else (split_heads(key, heads), split_heads(value, heads))
    before = 0
    if past_key is not None and past_value is not None:
        before = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    y, weights = attend(call, q, k, v, scores_bias(call, q, k.shape[2], before, mask, extra))
    return y, k, v, weights
