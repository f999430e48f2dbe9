"""Attention and the rotary embedding of positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator


@operator("Attention")
def attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Scaled dot-product attention, written out so that each of its steps can be watched.

    Args:
        q: (B, heads, L, E), or (B, L, heads·E) with the attributes q_num_heads and kv_num_heads; k and v likewise, with
            a number of heads that divides that of q.
        mask: broadcast to (B, heads, L, S); True where attended, or numbers to be added.
        past_key, past_value: (B, heads, P, E), put before k and v.
        valid: number of keys of each sample that are no padding, (B,) (opset 24).

    Returns:
        The output in the form of q, present key and value (B, heads, S, E), and the scores (B, heads, L, S) as
        qk_matmul_output_mode has them.
    """
    flat = q.dim() == 3
    if flat:
        q, k, v = (
            t.unflatten(2, (call.attr(name), -1)).transpose(1, 2)
            for t, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    present_key, present_value = k, v
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    # The root of the scale, rounded to the type of q, on either side, so that no product overflows before it is scaled.
    root = torch.tensor(math.sqrt(call.attr("scale", 1 / math.sqrt(q.shape[-1]))), dtype=q.dtype).item()
    seen = [scores := (q * root) @ (k * root).transpose(-1, -2)]
    cap = call.attr("softcap", 0.0)
    if cap > 0:
        scores = torch.tanh(scores / cap) * cap
    seen.append(scores)
    bias = _bias(call, q, k.shape[2], mask, past, valid)
    seen.append(scores if bias is None else scores + bias)
    seen.append(_softmax(call, seen[2], bias))
    y = seen[3] @ v
    y = y.transpose(1, 2).flatten(2) if flat else y
    return y, present_key, present_value, seen[call.attr("qk_matmul_output_mode", 0)]


def _bias(call: Call, q: Tensor, keys: int, mask: Tensor | None, past: int, valid: Tensor | None) -> Tensor | None:
    """What is added to the scores, −inf where a query must not look; None if nothing is."""
    bias = None
    if mask is not None:
        bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask
        if mask.shape[-1] < keys:
            bias = torch.nn.functional.pad(bias, [0, keys - mask.shape[-1]], value=-math.inf)
    query, key = torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(keys, device=q.device)
    # Queries are the last of the keys: the first one stands behind those of the past, or before the padding.
    offset = torch.full((), past, device=q.device) if valid is None else (valid - q.shape[2]).reshape(-1, 1, 1, 1)
    place, hidden = query + offset, []
    if call.attr("is_causal", 0):
        hidden.append(key > place)
    if (left := call.attr("left_window_size", -1)) >= 0:
        hidden.append(key < place - left)
    if (right := call.attr("right_window_size", -1)) >= 0:
        hidden.append(key > place + right)
    if valid is not None:
        hidden.append(key >= valid.reshape(-1, 1, 1, 1))
    for where in hidden:
        closed = torch.zeros(where.shape, dtype=q.dtype, device=q.device).masked_fill(where, -math.inf)
        bias = closed if bias is None else bias + closed
    return bias


def _softmax(call: Call, scores: Tensor, bias: Tensor | None) -> Tensor:
    """Probabilities of the keys; none for a query that may look at no key."""
    code = call.attr("softmax_precision", 0)
    precision = call.dtype(code) if code else scores.dtype
    if bias is None:
        return torch.softmax(scores.to(precision), -1).to(scores.dtype)
    blind = bias.amax(-1, keepdim=True) == -math.inf
    weights = torch.softmax(torch.where(blind, 0, scores).to(precision), -1).to(scores.dtype)
    return torch.where(blind, 0, weights)


@operator("RotaryEmbedding")
def rotary_embedding(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    """Turns pairs of features by an angle that grows with the position.

    Args:
        x: (B, heads, L, E), or (B, L, heads·E) with the attribute num_heads.
        cos, sin: (B, L, R/2), or (P, R/2) to be looked up by positions (B, L); R features are turned, all by default.
    """
    flat = x.dim() == 3
    heads = x.unflatten(2, (call.attr("num_heads"), -1)) if flat else x.transpose(1, 2)
    turned = call.attr("rotary_embedding_dim", 0) or heads.shape[-1]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    part, rest = heads[..., :turned], heads[..., turned:]
    interleaved = bool(call.attr("interleaved", 0))
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pair = cos * a - sin * b, sin * a + cos * b
    part = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    y = torch.cat([part, rest], -1)
    return y.flatten(2) if flat else y.transpose(1, 2)
