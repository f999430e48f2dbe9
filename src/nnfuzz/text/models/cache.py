"""A key/value cache with room: what is read and written before stays where it is while a text grows.

transformers' own cache of a growing text is joined anew with every id, so that writing n ids copies it n times: for
small models that is much of the work. Here each layer's keys and values lie in one block that has room for the ids to
come, and are shown as a part of it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def with_room(cache: Any, more: int) -> Any:
    """The same cache, with room for ``more`` ids where its layers are plain ones; others (windows, quantized,
    recurrent) are left as they are."""
    try:
        from transformers.cache_utils import DynamicCache, DynamicLayer
    except ImportError:
        return cache
    layers = getattr(cache, "layers", None)  # not of every version
    if type(cache) is not DynamicCache or not layers or any(type(layer) is not DynamicLayer for layer in layers):
        return cache
    if not all(isinstance(t, Tensor) and t.dim() == 4 for layer in layers for t in (layer.keys, layer.values)):
        return cache
    for layer in layers:
        room = _Room(layer.keys, layer.values, more)
        layer.keys, layer.values = room.keys, room.values
        layer.update = _updating(layer, room)
    return cache


FIRST = 256
"""Ids for which there is room at once. Texts may end long before the most that they may have."""


class _Room:
    """Keys and values ``(rows, heads, ids, size)`` of one layer, in blocks that are at least as long."""

    def __init__(self, keys: Tensor, values: Tensor, more: int):
        self.length = keys.shape[2]
        self._most = self.length + more
        self._blocks = [self._block(t, self.length + min(more, FIRST)) for t in (keys, values)]

    @property
    def keys(self) -> Tensor:
        return self._blocks[0][:, :, : self.length]

    @property
    def values(self) -> Tensor:
        return self._blocks[1][:, :, : self.length]

    def add(self, *parts: Tensor) -> None:
        grown = self.length + parts[0].shape[2]
        for n, (block, part) in enumerate(zip(self._blocks, parts, strict=True)):
            if grown > block.shape[2]:
                self._blocks[n] = block = self._block(
                    block[:, :, : self.length], max(grown, min(2 * grown, self._most))
                )
            block[:, :, self.length : grown] = part
        self.length = grown

    @staticmethod
    def _block(held: Tensor, room: int) -> Tensor:
        block = held.new_empty(*held.shape[:2], room, held.shape[3])
        block[:, :, : held.shape[2]] = held
        return block


def _updating(layer: Any, room: _Room) -> Any:
    def update(keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        room.add(keys, values)
        layer.keys, layer.values = room.keys, room.values
        return layer.keys, layer.values

    return update
