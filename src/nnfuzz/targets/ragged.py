"""Results whose names and sizes follow the data, as one batch: zeros where one gives less, a mark where nothing.

A batch holds every output that any of its candidates has, so that a NaN in an output that few have is seen. Which
candidates have it is told beside: ``present`` maps the names that some lack to bool ``(batch,)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Named = dict[str, Tensor]
HAS = "has:"
"""Before a name, in what a drive gives: the mark of that name."""


def joined(parts: Sequence[Named], counts: Sequence[int]) -> tuple[Named, Named]:
    """Parts of a batch, one behind the other: ``(tensors, present)``.

    Args:
        parts: by name ``(count, ...)`` each; names and further axes may differ from part to part.
        counts: candidates of each part.
    """
    names = dict.fromkeys(n for part in parts for n in part)
    tensors, present = {}, {}
    for name in names:
        held = [part.get(name) for part in parts]
        some = [t for t in held if t is not None]
        tensors[name] = _concatenated(held, some, counts)
        if len(some) < len(parts):
            present[name] = torch.cat(
                [torch.full((n,), t is not None, device=some[0].device) for t, n in zip(held, counts, strict=True)]
            )
    return tensors, present


def stacked(each: Sequence[Named]) -> Named:
    """Results of single candidates; marks are among them, under ``HAS``."""
    tensors, present = joined([{n: t[None] for n, t in one.items()} for one in each], [1] * len(each))
    return tensors | {HAS + n: mark for n, mark in present.items()}


def rows_that_have(present: Mapping[str, Tensor], named: Mapping[str, Tensor], name: str, count: int) -> Tensor:
    """bool ``(count,)`` on the CPU: which candidates give the output ``name``."""
    if name not in named:
        return torch.zeros(count, dtype=torch.bool)
    return present[name].cpu() if name in present else torch.ones(count, dtype=torch.bool)


def alike_rows(present: Mapping[str, Tensor], count: int) -> list[tuple[Tensor, set[str]]]:
    """Candidates that give the same outputs, as row numbers, each group with the names that it lacks."""
    if not present:
        return [(torch.arange(count), set())]
    marks = torch.stack([m.cpu() for m in present.values()], 1)
    patterns, which = marks.unique(dim=0, return_inverse=True)
    return [
        ((which == i).nonzero()[:, 0], {n for n, has in zip(present, pattern.tolist(), strict=True) if not has})
        for i, pattern in enumerate(patterns)
    ]


def _concatenated(held: Sequence[Tensor | None], some: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    if len(some) == len(held) and len({t.shape[1:] for t in some}) == 1:
        return torch.cat(list(some))
    deepest = max(t.dim() for t in some)
    most = [max(t.shape[d] if t.dim() > d else 1 for t in some) for d in range(1, deepest)]
    padded = []
    for t, count in zip(held, counts, strict=True):
        if t is None:
            padded.append(some[0].new_zeros(count, *most))
            continue
        t = t.reshape(*t.shape, *[1] * (len(most) + 1 - t.dim()))
        pad = [amount for d in reversed(range(1, t.dim())) for amount in (0, most[d - 1] - t.shape[d])]
        padded.append(torch.nn.functional.pad(t, pad))
    return torch.cat(padded)
