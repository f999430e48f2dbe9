"""The seeds as calibration data, in the form in which onnxruntime's quantization reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxruntime.quantization import CalibrationDataReader

from nnfuzz.space import Batch


class SeedReader(CalibrationDataReader):  # type: ignore[misc]
    """Gives model inputs as arrays, one call each.

    Args:
        parts: model inputs by name, as the graph takes them.
    """

    def __init__(self, parts: list[Batch]):
        self._feeds = [{n: t.detach().cpu().contiguous().numpy() for n, t in part.items()} for part in parts]
        self._next: Iterator[Any] = iter(self._feeds)

    def get_next(self) -> Any:
        return next(self._next, None)

    def rewind(self) -> None:
        """From the beginning: ranges are asked for more than once where several copies are made."""
        self._next = iter(self._feeds)
