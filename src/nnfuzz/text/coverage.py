"""Coverage of writing: hidden states along the way, or which n-grams the output is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.coverage import vectors
from nnfuzz.errors import UsageError
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import PAD
from nnfuzz.text.models.base import LanguageModel

NAMES = ("auto", "pooled", "last", "both", "ngrams", "none")
GRAMS, BUCKETS = 3, 256
"""Runs of three ids, hashed into so many counts."""
CELLS = 1 << 21
"""Ids that are hashed at a time, so that long outputs do not fill the memory."""
_FACTORS = (1, 1_000_003, 998_244_353)


class States(vectors._Projected):
    """Hidden states: their mean over time ("mean"), the last one, or both."""

    def __init__(self, parts: tuple[str, ...]):
        super().__init__()
        self.parts = parts

    def features(self, trace: Trace) -> Tensor:
        found = [trace.layers[p].float() for p in self.parts if p in trace.layers]
        return torch.cat(found or list(trace.layers.values()), 1)


class Grams(vectors._Projected):
    """Square roots of the counts of hashed n-grams of the output: near where outputs share their wording."""

    scaled = False

    def features(self, trace: Trace) -> Tensor:
        return torch.cat([gram_counts(t).sqrt() for n, t in trace.outputs.items() if n.endswith("tokens")], 1)


def gram_counts(tokens: Tensor) -> Tensor:
    """int64 ``(batch, T)`` → float32 ``(batch, BUCKETS)``; n-grams that hold padding do not count."""
    if tokens.numel() > CELLS and len(tokens) > 1:
        return torch.cat([gram_counts(part) for part in tokens.split(max(1, CELLS // tokens.shape[1]))])
    if tokens.shape[1] < GRAMS:
        tokens = torch.nn.functional.pad(tokens, (0, GRAMS - tokens.shape[1]), value=0)
    shifted = [tokens[:, i : tokens.shape[1] - GRAMS + 1 + i] for i in range(GRAMS)]
    hashed = sum(((t + 1) * f for t, f in zip(shifted, _FACTORS, strict=True)), torch.zeros_like(shifted[0]))
    hashed = (hashed ^ (hashed >> 7)) % BUCKETS
    whole = torch.stack([t != PAD for t in shifted]).all(0)
    counts = torch.zeros(len(tokens), BUCKETS)
    return counts.scatter_add_(1, hashed, whole.float())


def text_coverage(name: str, model: LanguageModel) -> vectors._Projected | None:
    """The coverage by its name; "auto": both hidden states where there are any, else n-grams."""
    if name not in NAMES:
        raise UsageError(f"coverage is {name!r}, but for text it is one of {', '.join(NAMES)}")
    if name == "none":
        return None
    if name == "ngrams" or (name == "auto" and not model.shows_states):
        if model.classifies:
            raise UsageError("a classifier writes nothing, so it has no n-grams: use another --coverage")
        return Grams()
    if not model.shows_states:
        raise UsageError(
            f"{model.name} shows no hidden states, so --coverage {name} has nothing to look at: use ngrams"
        )
    return States({"pooled": ("mean",), "last": ("last",)}.get(name, ("mean", "last")))
