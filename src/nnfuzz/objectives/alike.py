"""Outputs whose shape follows the data (so many boxes, so many tokens), brought to one shape to be compared."""

from __future__ import annotations

import torch
from torch import Tensor

Named = dict[str, Tensor]


def axes_apart(a: Named, b: Named) -> list[set[int]]:
    """For each pair of outputs, in order, the axes on which they differ; all of them where they differ in number."""
    return [_apart(x, y) for x, y in zip(a.values(), b.values(), strict=False)]


def alike(a: Named, b: Named, usual: list[set[int]]) -> tuple[Named, Named, bool]:
    """Both sides with zeros where one of a pair is shorter, and whether there was any such pair.

    Args:
        usual: ``axes_apart`` of the seeds; what differs there is as it should be (so many classes) and stays.
    """
    new_a, new_b, any_unlike = dict(a), dict(b), False
    for (n, x), (m, y), known in zip(a.items(), b.items(), usual, strict=False):
        strange = _apart(x, y) - known
        if strange and x.dim() == y.dim():
            most = [max(p, q) for p, q in zip(x.shape, y.shape, strict=True)]
            new_a[n], new_b[m] = (_padded(t, [most[d] if d in strange else t.shape[d] for d in range(t.dim())])
                                  for t in (x, y))  # fmt: skip
            any_unlike = True
    return new_a, new_b, any_unlike


def _apart(x: Tensor, y: Tensor) -> set[int]:
    if x.dim() != y.dim():
        return set(range(max(x.dim(), y.dim())))
    return {d for d in range(1, x.dim()) if x.shape[d] != y.shape[d]}


def _padded(t: Tensor, shape: list[int]) -> Tensor:
    more = [amount for d in reversed(range(t.dim())) for amount in (0, shape[d] - t.shape[d])]
    return torch.nn.functional.pad(t, more)
