"""Two models on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nnfuzz.errors import UsageError
from nnfuzz.space import Batch
from nnfuzz.targets.base import Target, Trace, Want
from nnfuzz.targets.drive import Named
from nnfuzz.targets.torch import TorchTarget


class PairTarget(Target):
    """Runs ``a`` and ``b``; outputs are named ``a.*`` and ``b.*``, activations are those of ``a``, ``b`` or both.

    ``b`` may call its inputs by other names than ``a``: ``names`` maps them, by default in call order. It may also take
    rows one by one where ``a`` takes them together.

    Attributes:
        outputs: A's output names → B's, of those that are compared, under A's names; None: all as they come.
        covered: "a", "b" or "both": whose activations coverage sees.
    """

    def __init__(self, a: TorchTarget, b: TorchTarget, names: Mapping[str, str] | None = None):
        if names is None and len(a.form.names) != len(b.form.names):
            raise UsageError(
                f"A takes the inputs {', '.join(a.form.names)} and B takes {', '.join(b.form.names)}: "
                "the two models need the same inputs"
            )
        self.a, self.b = a, b
        self.name = f"{a.name} / {b.name}"
        self.unit, self.why, self.device = a.unit, a.why, a.device
        self.names = dict(zip(a.form.names, b.form.names, strict=True)) if names is None else dict(names)
        self.outputs: dict[str, str] | None = None
        self.covered = "a"

    def run(self, batch: Batch, want: Want) -> Trace:
        first, second = self.answers(batch, want)
        outputs = self.joined(first.outputs, {n: t.to(self.device) for n, t in second.outputs.items()})
        layers = first.layers | {f"b.{n}": t.to(self.device) for n, t in second.layers.items()}
        return Trace(outputs, layers, first.watched, first.gradients, self.joined(first.present, second.present))

    def answers(self, batch: Batch, want: Want) -> tuple[Trace, Trace]:
        """What each side gives, under its own names."""
        second = self.b.run(self.for_b(batch), Want(layers=want.layers and self.covered != "a"))
        mine = replace(want, layers=want.layers and self.covered != "b")
        return self.a.run(batch, mine), Trace(self.from_b(second.outputs), second.layers, present=second.present)

    def joined(self, first: Named, second: Named) -> Named:
        """Outputs of the pair from those of the sides."""
        if self.outputs is None:
            return {f"a.{n}": t for n, t in first.items()} | {f"b.{n}": t for n, t in second.items()}
        mine = {f"a.{n}": first[n] for n in self.outputs if n in first}
        return mine | {f"b.{n}": second[other] for n, other in self.outputs.items() if other in second}

    def for_b(self, batch: Batch) -> Batch:
        """The same candidates under the names and on the device of ``b``, as it takes them."""
        renamed = {other: batch[name].to(self.b.device) for name, other in self.names.items()}
        return {n: t[:, None] for n, t in renamed.items()} if self._one_by_one else renamed

    def from_b(self, outputs: Named) -> Named:
        """Outputs of ``b`` with one row a candidate, as ``a`` gives them."""
        if not self._one_by_one:
            return dict(outputs)
        return {n: t[:, 0] if t.dim() > 1 and t.shape[1] == 1 else t for n, t in outputs.items()}

    @property
    def _one_by_one(self) -> bool:
        """Whether rows that ``a`` takes together are whole candidates of ``b``."""
        return self.a.unit == "sample" and self.b.unit == "batch"

    @property
    def traced(self) -> list[TorchTarget]:
        """Sides that gradient turns follow; where it is one, it leads, and the other judges. Rounding has no slope of
        its own, so of a float side and a quantized one the float side leads; a graph of another runtime is dear to
        trace, so of it and a model in torch the latter does."""
        sides = [side for side in (self.a, self.b) if side.sees_inside]
        if self.a.quantized != self.b.quantized:
            return [side for side in sides if not side.quantized]
        return [side for side in sides if side.allowance() is None] or sides

    def model_input(self, candidate: Batch) -> Batch:
        return self.a.model_input(candidate)

    def describe(self) -> str:
        return f"A = {self.a.describe()}; B = {self.b.describe()}"

    def layer_shapes(self) -> Mapping[str, tuple[int, ...]]:
        of_a = dict(self.a.layer_shapes()) if self.covered != "b" else {}
        return of_a | ({f"b.{n}": s for n, s in self.b.layer_shapes().items()} if self.covered != "a" else {})
