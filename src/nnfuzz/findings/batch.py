"""The batch in which a candidate fails, kept where it does not fail alone: which candidates, and how a model ran them.

Candidates are kept as models take them one by one, so that one form serves every way of running many: a script joins
them, and so does a target whose own way was found anew on another seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnfuzz.space import Batch, size
from nnfuzz.targets import PairTarget, Target, TorchTarget, Want

JOINED = ("rows", "fold", "axes")
"""Drives that make one model input of many candidates; "axes": each input along an axis of its own."""
DRIVES = (*JOINED, "vmap", "loop")


@dataclass(frozen=True)
class Way:
    """How one model ran the candidates.

    Attributes:
        unit: of its target, "sample" or "batch".
        drive: one of ``DRIVES``.
        chunk: so many at once; 0: all.
        inputs: of "axes", by the first model's input names: the axis along which they are joined; None: one for all.
        outputs: likewise of outputs; those that are not named are joined along the first.
    """

    unit: str = "sample"
    drive: str = "rows"
    chunk: int = 0
    inputs: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        told = {"unit": self.unit, "drive": self.drive, "chunk": self.chunk}
        return {**told, "inputs": dict(self.inputs), "outputs": dict(self.outputs)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Way:
        """Raises ``TypeError``, ``ValueError`` or ``LookupError`` where it is none."""
        if data["drive"] not in DRIVES or data["unit"] not in ("sample", "batch"):
            raise ValueError(f"nothing is run by {data['drive']!r:.30} in units of {data['unit']!r:.30}")
        chunk, inputs, outputs = data["chunk"], data["inputs"], data["outputs"]
        axes = [*inputs.values(), *outputs.values()]
        if not all(type(a) is int or a is None for a in axes) or type(chunk) is not int or None in outputs.values():
            raise TypeError("its axes and its chunk are not numbers")
        return Way(data["unit"], data["drive"], chunk, dict(inputs), dict(outputs))

    def joined(self, stacked: Batch) -> Batch | None:
        """One model input of the candidates (``InBatch.inputs``); None where they are not joined."""
        if self.drive not in JOINED or (self.chunk and size(stacked) > self.chunk):
            return None
        made = {}
        for name, t in stacked.items():
            axis = self.inputs.get(name, 0)
            made[name] = t[0] if axis is None else t.movedim(0, axis).flatten(axis, axis + 1)
        return made


@dataclass
class InBatch:
    """Attributes:
    inputs: the candidates, ``(count, ...)`` each, what follows being the form of ``Finding.inputs``.
    row: which of them is the finding's.
    ways: how they were run, of a pair by each side.
    """

    inputs: Batch
    row: int
    ways: Sequence[Way]

    @property
    def count(self) -> int:
        return size(self.inputs)

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {"row": self.row, "count": self.count, "ways": [way.to_json() for way in self.ways]}

    @staticmethod
    def from_json(data: Mapping[str, Any], inputs: Batch, lone: Batch) -> InBatch:
        """``lone``: the finding's inputs. Raises ``TypeError``, ``ValueError`` or ``LookupError`` where they differ in
        form from those of the batch."""
        row, count = data["row"], data["count"]
        if {n: t.shape for n, t in inputs.items()} != {n: (count, *t.shape) for n, t in lone.items()}:
            raise ValueError("its candidates have another form than the input")
        if type(row) is not int or not 0 <= row < count:
            raise ValueError(f"it has no row {row!r:.30}")
        ways = [Way.from_json(way) for way in data["ways"]]
        if not 1 <= len(ways) <= 2:
            raise ValueError(f"it was run by {len(ways)} models")
        return InBatch(inputs, row, ways)

    def told(self) -> str:
        """``row 1 (counted from 0) of the 3 candidates in batch.safetensors``."""
        return f"row {self.row} (counted from 0) of the {self.count} candidates in batch.safetensors"


def kept(target: Target, batch: Batch, row: int, want: Want) -> InBatch:
    """A batch as the target takes it, on the CPU."""
    inputs = {n: (t[:, None] if target.unit == "sample" else t).cpu().clone() for n, t in batch.items()}
    return InBatch(inputs, row, ways_of(target, want))


def as_taken(target: Target, batch: InBatch) -> Batch:
    """The candidates in the form and on the device of the target."""
    return {n: (t[:, 0] if target.unit == "sample" else t).to(target.device) for n, t in batch.inputs.items()}


def ways_of(target: Target, want: Want) -> list[Way]:
    """How a target runs many candidates for what is wanted."""
    if not isinstance(target, PairTarget):
        return [_way(target, want)]
    mine = {b: a for a, b in target.names.items()}
    b = _way(target.b, Want())
    renamed = Way(b.unit, b.drive, b.chunk, {mine[n]: axis for n, axis in b.inputs.items() if n in mine}, b.outputs)
    return [_way(target.a, want), renamed]


def _way(side: Target, want: Want) -> Way:
    if not isinstance(side, TorchTarget):  # small batches of rows, one by one
        return Way(side.unit, "loop")
    if want.backward or (want.internal and side.parts == "module"):
        return Way(side.unit, "rows" if side.unit == "sample" else "loop")
    axes = getattr(side, "axes", None)
    if axes is not None and side.drive == "loop":
        return Way(side.unit, "axes", side.chunk, dict(axes.inputs), dict(axes.outputs))
    return Way(side.unit, side.drive, side.chunk if side.drive == "rows" else 0)


def take_ways(target: Target, ways: Sequence[Way]) -> None:
    """From now on the target runs many candidates in these ways, whatever it found on its own seeds."""
    if not isinstance(target, PairTarget):
        _take(target, ways[0], {})
    elif len(ways) == 2:
        _take(target.a, ways[0], {})
        _take(target.b, ways[1], target.names)


def _take(side: Target, way: Way, names: Mapping[str, str]) -> None:
    if not isinstance(side, TorchTarget):
        return
    side.unit, side.chunk = way.unit, way.chunk
    side.drive = "loop" if way.drive == "axes" else way.drive
    if hasattr(side, "axes"):
        from nnfuzz.onnx.axes import Axes

        inputs = {names.get(n, n): axis for n, axis in way.inputs.items()}
        side.axes = Axes(inputs, dict(way.outputs)) if way.drive == "axes" else None
