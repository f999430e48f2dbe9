"""Which values of two sides are the same quantity: by their names where both have them, else by how they go together.

A value of A and one of B belong together when they have as many elements a candidate and correlate over the seeds.
Among all ways of pairing them in the order of computation the one with the most correlated pairs is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.divergence.values import Values

LEAST = 0.9
"""Correlation from which two values count as one quantity."""
ENOUGH = 0.3
"""Names are trusted when they match so much of the smaller side."""
LOOKED_AT = 1024
"""Elements of a value that are correlated, evenly taken."""


@dataclass(frozen=True)
class Match:
    """Names on either side, by what they were matched, and how B's axes must be moved to be A's."""

    a: str
    b: str
    by: str
    moved: tuple[int, int] | None = None

    def of_b(self, t: Tensor) -> Tensor:
        return t if self.moved is None else t.movedim(*self.moved)


def match_values(a: Sequence[Values], b: Sequence[Values], same_names: bool) -> list[Match]:
    """Pairs in the order of A.

    Args:
        a, b: the values of both sides for the same seeds, one each.
        same_names: whether both sides name their values alike (two graphs, two module trees).
    """
    first, second = a[0], b[0]
    if same_names:
        pairs = [Match(n, n, "name") for n in first if n in second and _fits(first[n].tensor, second[n].tensor)]
        if pairs and len(pairs) >= ENOUGH * min(len(first), len(second)):
            return pairs
    return _by_correlation(a, b)


def _fits(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape or (x.numel() == y.numel() and x.squeeze().shape == y.squeeze().shape)


def _by_correlation(a: Sequence[Values], b: Sequence[Values]) -> list[Match]:
    rows_a, rows_b = _rows(a), _rows(b)
    names_a, names_b = list(rows_a), list(rows_b)
    score = np.full((len(names_a), len(names_b)), -np.inf)
    moves: dict[tuple[int, int], tuple[int, int] | None] = {}
    for i, x in enumerate(names_a):
        for j, y in enumerate(names_b):
            s, t = a[0][x].tensor, b[0][y].tensor
            if s.numel() != t.numel() or rows_a[x] is None or rows_b[y] is None:
                continue
            value, moved = _correlated(rows_a[x], rows_b[y]), None
            if value < LEAST and (move := _axes(s, t)) is not None:
                value = _correlated(rows_a[x], _row([v[y].tensor.movedim(*move) for v in b]))
                moved = move
            if value >= LEAST:
                score[i, j], moves[i, j] = value, moved
    return [Match(names_a[i], names_b[j], "correlation", moves[i, j]) for i, j in _in_order(score)]


def _rows(values: Sequence[Values]) -> dict[str, NDArray[np.float64] | None]:
    """Of every value that all seeds have in one shape its elements over all seeds, centred and of length 1; None for a
    constant one."""
    found: dict[str, NDArray[np.float64] | None] = {}
    for name, value in values[0].items():
        tensors = [v[name].tensor for v in values if name in v and v[name].tensor.shape == value.tensor.shape]
        found[name] = _row(tensors) if len(tensors) == len(values) and value.tensor.numel() > 1 else None
    return found


def _row(tensors: Sequence[Tensor]) -> NDArray[np.float64] | None:
    some = [t.flatten()[:: max(1, t.numel() // LOOKED_AT)].double() for t in tensors]
    joined = torch.cat(some).nan_to_num(0.0, 0.0, 0.0).numpy()
    centred: NDArray[np.float64] = joined - joined.mean()
    length = float(np.linalg.norm(centred))
    return centred / length if length > 1e-12 * max(1.0, float(np.abs(joined).max())) else None


def _correlated(x: NDArray[np.float64] | None, y: NDArray[np.float64] | None) -> float:
    return float(x @ y) if x is not None and y is not None and len(x) == len(y) else -np.inf


def _axes(x: Tensor, y: Tensor) -> tuple[int, int] | None:
    """The move that brings channels from the end, or to it."""
    if x.dim() != y.dim() or x.dim() < 3 or x.shape == y.shape:
        return None
    return next((m for m in ((-1, 1), (1, -1)) if y.movedim(*m).shape == x.shape), None)


def _in_order(score: NDArray[np.float64]) -> list[tuple[int, int]]:
    """The best chain of pairs that goes forward on both sides: the one of the highest sum."""
    n, m = score.shape
    best = np.zeros((n + 1, m + 1))
    gain = np.where(np.isfinite(score), score, -np.inf)
    for i in range(n - 1, -1, -1):
        take = gain[i] + best[i + 1, 1:]
        skip = best[i + 1, :-1]
        row = np.maximum(take, skip)
        best[i, :-1] = np.maximum.accumulate(row[::-1])[::-1]
    found, i, j = [], 0, 0
    while i < n and j < m:
        if np.isfinite(gain[i, j]) and best[i, j] == gain[i, j] + best[i + 1, j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return found
