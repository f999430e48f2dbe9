"""Whole candidates run together though their batch axes differ: an input [batch, time] beside a state [2, batch, 128].

Whatever a graph says of its axes is only where to look: that joined runs give what single runs give is found out by
running both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.drive import Named, agree, drive_loop

Call = Callable[[Batch], Named]


@dataclass(frozen=True)
class Axes:
    """Along which axis of the model's own tensors candidates are joined.

    Attributes:
        inputs: by name; None for an input that has no such axis: its value is one for all that run together.
        outputs: by name, as far as they have been seen.
    """

    inputs: Mapping[str, int | None]
    outputs: Mapping[str, int]

    def joined(self, batch: Batch) -> Batch | None:
        """One model input of all candidates, ``(batch, ...)`` each; None where what must be equal for all differs."""
        made = {}
        for name, t in batch.items():
            axis = self.inputs[name]
            if axis is None:
                if size(batch) > 1 and not bool((t == t[:1]).all()):
                    return None
                made[name] = t[0]
            else:
                made[name] = t.movedim(0, axis).flatten(axis, axis + 1)
        return made

    def parted(self, outputs: Named, count: int) -> Named:
        """Outputs of a joined run with one row a candidate."""
        return {n: t.unflatten(self.outputs[n], (count, -1)).movedim(self.outputs[n], 0) for n, t in outputs.items()}

    def run(self, call: Call, batch: Batch, most: int) -> Named:
        """All candidates, at most ``most`` in one call, those with different values for all apart."""
        parts = [self._alike(call, batch, index) for index in self._groups(batch, most)]
        if len(parts) == 1:
            return parts[0][1]
        order = torch.cat([index for index, _ in parts]).argsort()
        return {n: torch.cat([p[n] for _, p in parts])[order] for n in parts[0][1]}

    def _alike(self, call: Call, batch: Batch, index: Tensor) -> tuple[Tensor, Named]:
        some = batch if len(index) == size(batch) else rows(batch, index)
        inputs = self.joined(some)
        assert inputs is not None
        return index, self.parted(call(inputs), len(index))

    def _groups(self, batch: Batch, most: int) -> list[Tensor]:
        """Row numbers of candidates that may run together."""
        shared = [batch[n] for n, axis in self.inputs.items() if axis is None]
        everything = torch.arange(size(batch))
        groups = [everything]
        if any(not bool((t == t[:1]).all()) for t in shared):
            keys = torch.cat([t.reshape(len(t), -1).double() for t in shared], 1)
            _, which = keys.unique(dim=0, return_inverse=True)
            groups = [everything[which == k] for k in range(int(which.max()) + 1)]
        return [part for g in groups for part in g.split(max(1, most))]


def find_axes(specs: Sequence[Any], call: Call, candidates: Batch) -> Axes | None:
    """The axes of a model, where joining a few candidates along them gives what running them one by one gives.

    Args:
        specs: the model's inputs, as its file declares them. candidates: two at least.
    """
    inputs = {s.name: _free_axis(s, candidates[s.name]) for s in specs if s.name in candidates}
    if size(candidates) < 2 or all(axis is None for axis in inputs.values()):
        return None
    unknown = Axes(inputs, {})
    try:
        alone = drive_loop(call, candidates)
        together = unknown.joined(candidates)
        if together is None:
            return None
        outputs = _output_axes(call(together), alone, size(candidates))
        found = Axes(inputs, outputs) if outputs is not None else None
        return found if found is not None and holds(found, call, candidates) else None
    except Exception:  # any failure of a faster way only means that it is not taken
        return None


def _free_axis(spec: Any, values: Tensor) -> int | None:
    """The first axis that the file leaves free and in which a candidate has length 1."""
    for axis, declared in enumerate(spec.shape or ()):
        if not isinstance(declared, int) and values.shape[axis + 1] == 1:
            return axis
    return None


def _output_axes(together: Named, alone: Named, count: int) -> dict[str, int] | None:
    """Per output the axis that grew with the number of candidates."""
    found: dict[str, int] = {}
    for name, t in together.items():
        lone = alone[name].shape[1:]
        grown = [a for a in range(t.dim()) if t.dim() == len(lone) and t.shape[a] == count * lone[a]]
        same = [a for a in grown if all(t.shape[b] == lone[b] for b in range(t.dim()) if b != a)]
        if not same:
            return None
        found[name] = same[0]
    return found


def holds(axes: Axes, call: Call, candidates: Batch) -> bool:
    """Whether joined runs give what single ones do for these candidates."""
    try:
        return agree(axes.run(call, candidates, size(candidates)), drive_loop(call, candidates))
    except Exception:
        return False
