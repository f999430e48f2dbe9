"""Two models on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping

from nnfuzz.errors import UsageError
from nnfuzz.space import Batch
from nnfuzz.targets.base import Target, Trace, Want
from nnfuzz.targets.torch import TorchTarget


class PairTarget(Target):
    """Runs ``a`` and ``b``; outputs are named ``a.*`` and ``b.*``, activations are those of ``a``.

    ``b`` may call its inputs by other names than ``a``: they are matched in call order.
    """

    def __init__(self, a: TorchTarget, b: TorchTarget):
        if len(a.form.names) != len(b.form.names):
            raise UsageError(
                f"A takes the inputs {', '.join(a.form.names)} and B takes {', '.join(b.form.names)}: "
                "the two models need the same inputs"
            )
        self.a, self.b = a, b
        self.name = f"{a.name} / {b.name}"
        self.unit, self.why, self.device = a.unit, a.why, a.device
        self.names = dict(zip(a.form.names, b.form.names, strict=True))

    def run(self, batch: Batch, want: Want) -> Trace:
        first = self.a.run(batch, want)
        second = self.b.run(self.for_b(batch), Want(layers=False))
        outputs = {f"a.{n}": t for n, t in first.outputs.items()}
        outputs |= {f"b.{n}": t.to(self.device) for n, t in second.outputs.items()}
        return Trace(outputs, first.layers, first.watched, first.gradients)

    def for_b(self, batch: Batch) -> Batch:
        """The same candidates under the names and on the device of ``b``."""
        return {other: batch[name].to(self.b.device) for name, other in self.names.items()}

    def model_input(self, candidate: Batch) -> Batch:
        return self.a.model_input(candidate)

    def describe(self) -> str:
        return f"A = {self.a.describe()}; B = {self.b.describe()}"

    def layer_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.a.layer_shapes()
