"""The seam for derived copies: the model in a lower precision, whole or with some of its layers left as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nnfuzz.space import Batch, rows, size

Model = Callable[..., Any]
MOST = 256
"""Candidates that set the ranges of activations."""
ROWS = 16
"""Rows that calibrate together: every value of the graph is kept for them."""


@dataclass(frozen=True)
class Block:
    """A layer as a person means it. ``parts``: those of ``Copies.layers`` that it is made of. ``kind``: in words."""

    kind: str
    parts: tuple[str, ...]


class Copies(Protocol):
    """Makes copies of one model in one way.

    Attributes:
        notes: sentences on what could not be done as usual.
        stored: whether ``save`` writes a file from which the copy can be loaded again.
        quick: whether ``sketch`` is cheaper than ``model``.
    """

    notes: list[str]
    stored: bool
    quick: bool

    def layers(self) -> dict[str, str]:
        """Layers that the copy changes, with their kind, in order: each may be left as it was."""

    def blocks(self) -> dict[str, Block]:
        """The same layers, those together that nobody would leave as they were one without the other; by the name of
        the first."""

    def model(self, keep: Sequence[str] = ()) -> Model:
        """The copy, with the layers named in ``keep`` in the precision of the original. Raises ``Unsupported``."""

    def sketch(self, keep: Sequence[str]) -> Model:
        """The same as ``model``, or nearly so, out of the finished copy where that is ``quick``."""

    def save(self, path: Path) -> None:
        """Writes the whole copy."""

    def load(self, path: Path) -> Model:
        """The whole copy as ``save`` wrote it."""


def calibration_parts(groups: list[Batch], unit: str) -> list[Batch]:
    """Model inputs of at most ``MOST`` candidates, evenly taken from ``groups`` (each ``(candidates, ...)``).

    Args:
        unit: "sample", rows run together; "batch", every candidate is a whole input.
    """
    each = max(1, MOST // max(1, len(groups)))
    found: list[Batch] = []
    for group in groups:
        count = min(size(group), each)
        if unit == "sample":
            found += [rows(group, slice(a, min(a + ROWS, count))) for a in range(0, count, ROWS)]
        else:
            found += [{n: t[i] for n, t in group.items()} for i in range(count)]
    return found
