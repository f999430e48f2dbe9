"""TfIdfVectorizer for numbers. Strings themselves are not built."""

from __future__ import annotations

from itertools import pairwise

import torch

from nnfuzz.onnx.ops.registry import Call, operator


@operator("TfIdfVectorizer")
def tf_idf_vectorizer(call: Call, x: torch.Tensor) -> torch.Tensor:
    """How often each n-gram of a pool occurs: (c,) or (batch, c) integers → (features,) or (batch, features).

    ``max_skip_count`` lets the elements of an n-gram be up to that many places further apart, evenly.
    """
    if call.attr("pool_strings"):
        raise call.unsupported("n-grams of strings")
    features = max(call.attrs["ngram_indexes"]) + 1
    pool = torch.tensor(call.attrs["pool_int64s"], device=x.device)
    feature = torch.tensor(call.attrs["ngram_indexes"], device=x.device)
    sequences = x.reshape(-1, x.shape[-1]).to(torch.int64)
    counts = torch.zeros(len(sequences), features, dtype=call.dtype(1), device=x.device)
    starts = [*call.attrs["ngram_counts"], len(pool)]
    first = 0
    for n, (start, end) in enumerate(pairwise(starts), 1):
        grams = pool[start:end].reshape(-1, n)
        here = feature[first : first + len(grams)]
        first += len(grams)
        if not call.attrs["min_gram_length"] <= n <= call.attrs["max_gram_length"] or not len(grams):
            continue
        for skip in range(call.attrs["max_skip_count"] + 1 if n > 1 else 1):
            reach = (n - 1) * (skip + 1) + 1
            if reach > sequences.shape[1]:
                break
            windows = sequences.unfold(1, reach, 1)[..., :: skip + 1]
            found = (windows[:, :, None] == grams).all(-1).sum(1)
            counts = counts.index_add(1, here, found.to(counts.dtype))
    return _weighted(call, counts).reshape(*x.shape[:-1], features)


def _weighted(call: Call, counts: torch.Tensor) -> torch.Tensor:
    """By ``mode``: counts (TF), weights of what occurs (IDF), or their product (TFIDF)."""
    if call.attrs["mode"] == "TF":
        return counts
    occurs = counts if call.attrs["mode"] == "TFIDF" else (counts > 0).to(counts.dtype)
    listed = call.attr("weights") or [1.0] * len(call.attrs["ngram_indexes"])
    weights = torch.zeros(counts.shape[1], dtype=counts.dtype, device=counts.device)
    places = torch.tensor(call.attrs["ngram_indexes"], device=counts.device)
    return occurs * weights.index_copy(0, places, torch.tensor(listed, dtype=counts.dtype, device=counts.device))
