"""com.microsoft: RotaryEmbedding, and GroupQueryAttention, which has it inside."""

from __future__ import annotations

import math

import torch

from nnfuzz.onnx.ops.contrib_attention import split_heads
from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.registry import Call, operator


def rotate(
    x: torch.Tensor, places: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Pairs of features turned by angles that grow with the position.

    Args:
        x: (B, N, S, h).
        places: (B or 1, S) positions, rows of the tables.
        cos, sin: (positions, R / 2); the first R features are turned, in pairs of neighbours if ``interleaved``, else
            of the two halves.
    """
    turned = 2 * cos.shape[-1]
    part, rest = x[..., :turned], x[..., turned:]
    c, s = cos[places][:, None], sin[places][:, None]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    pair = a * c - b * s, a * s + b * c
    both = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([both, rest], -1)


@operator("RotaryEmbedding", domain=MS)
def rotary_embedding(
    call: Call, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """x (B, S, N·h) or (B, N, S, h); positions (B, S), or (1,) that of the first."""
    if call.attr("is_packed_batching", 0):
        raise call.unsupported("packed batches")
    flat = x.ndim == 3
    if flat:
        x = split_heads(x, call.attr("num_heads", 0) or x.shape[-1] // (2 * cos.shape[-1]))
    places = positions.long()
    if places.ndim < 2:
        places = places.reshape(1, 1) + torch.arange(x.shape[2], device=x.device)
    y = rotate(x, places, cos, sin, bool(call.attr("interleaved", 0)))
    return y.transpose(1, 2).flatten(2) if flat else y


_UNBUILT = ("sliding_window_cache", "qk_output", "kv_cache_bit_width")


@operator("GroupQueryAttention", domain=MS)
def group_query_attention(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    lengths: torch.Tensor,
    total: torch.Tensor,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    *others: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Causal attention in which several heads of queries share a head of keys, with a cache.

    Args:
        query: (B, S, N·h), or queries, keys and values side by side with ``key`` and ``value`` left out.
        key, value: (B, S, K·h).
        past_key, past_value: (B, K, C, h), a cache of which each row has its own number of valid places.
        lengths: (B,) valid places after this step, less one.
        total: the largest of them, plus one.
        cos, sin: tables for ``do_rotary``.
        extra: added to the scores, (B or 1, N or 1, S, T).
        sink: (N,) a score for looking nowhere, which takes its share of the softmax.

    Returns:
        (B, S, N·h), and the caches with the new keys and values in their places, (B, K, max(C, total), h).
    """
    if any(call.attr(name, 0) for name in _UNBUILT) or any(o is not None for o in others):
        raise call.unsupported("a windowed or quantized cache, normalised queries, or an output of the scores")
    heads, groups = call.attrs["num_heads"], call.attrs["kv_num_heads"]
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * groups)
        query, key, value = query.split([heads * size, groups * size, groups * size], -1)
    q, k, v = split_heads(query, heads), split_heads(key, groups), split_heads(value, groups)
    steps, whole = q.shape[2], int(total)
    valid = lengths.long() + 1
    before = torch.zeros_like(valid) if steps == whole else valid - steps
    places = before[:, None] + torch.arange(steps, device=q.device)
    if call.attr("do_rotary", 0):
        if cos is None or sin is None:
            raise call.unsupported("do_rotary without the tables of cosines and sines")
        at = places if positions is None else positions.long()
        q, k = (rotate(t, at, cos, sin, bool(call.attr("rotary_interleaved", 0))) for t in (q, k))
    keys, values = _cached(past_key, k, places, whole), _cached(past_value, v, places, whole)
    present = keys, values
    keys, values = (t[:, :, :whole].repeat_interleave(heads // groups, 1) for t in present)
    scale: float = call.attr("scale") or 1 / math.sqrt(q.shape[-1])
    scores = torch.matmul(q, keys.transpose(-1, -2)) * scale
    cap: float = call.attr("softcap", 0.0)
    scores = cap * torch.tanh(scores / cap) if cap > 0 else scores
    scores = scores if extra is None else scores + extra
    scores = scores.masked_fill(_hidden(call, places, whole)[:, None], -torch.inf)
    return torch.matmul(_shares(call, scores, sink), values).transpose(1, 2).flatten(2), *present


def _cached(past: torch.Tensor | None, new: torch.Tensor, places: torch.Tensor, total: int) -> torch.Tensor:
    """The cache with the new rows at ``places`` (B, S)."""
    have = 0 if past is None else past.shape[2]
    room = new.new_zeros(*new.shape[:2], max(total, have) - have, new.shape[3])
    cache = room if past is None else torch.cat([past, room], 2)
    return cache.scatter(2, places[:, None, :, None].expand(new.shape), new)


def _hidden(call: Call, places: torch.Tensor, keys: int) -> torch.Tensor:
    """(B, S, T): keys that lie ahead, or further back than the window."""
    at = torch.arange(keys, device=places.device)
    hidden = at > places[..., None] if call.attr("causal", 1) else torch.zeros_like(at, dtype=torch.bool)
    window = call.attr("local_window_size", -1)
    return hidden | (at <= places[..., None] - window) if window > 0 else hidden.expand(*places.shape, keys)


def _shares(call: Call, scores: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """Softmax, with a share for the sink: its own score a head, or 0 with ``smooth_softmax``."""
    if sink is None and call.attr("smooth_softmax", -1) != 1:
        return torch.softmax(scores, -1)
    nowhere = scores.new_zeros(scores.shape[1]) if sink is None else sink
    column = nowhere.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
