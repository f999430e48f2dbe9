"""An unsafe operation as data, and one call of it as the catalogue's functions see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.probe.magnitude import Magnitude, Provenance, direct, widened
from nnfuzz.probe.ops import OpFacts
from nnfuzz.probe.sites import Phase


class Call:
    """One call of an operation: operands by their names in the ATen schema, live in the autograd graph.

    out: the result (its first tensor; `outs` all of them), only for hazards whose operand is "out".
    """

    __slots__ = ("_args", "_facts", "_magnitudes", "_provenance", "outs")

    def __init__(
        self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], provenance: Provenance,
        outs: tuple[Tensor, ...] = (),
    ) -> None:  # fmt: skip
        self._facts, self._provenance, self.outs = facts, provenance, outs
        self._args = dict(zip(facts.arguments, args, strict=False)) | kwargs
        self._magnitudes: dict[str, Magnitude] = {}

    def raw(self, name: str, default: Any = None) -> Any:
        """The argument as it was given; `default` when it was left out."""
        if name == "out" and self.outs:
            return self.outs[0]
        value = self._args.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether the argument is a non-empty floating or complex tensor."""
        t = self.raw(name)
        return isinstance(t, Tensor) and t.numel() > 0 and (t.is_floating_point() or t.is_complex())

    def dtype(self, name: str) -> torch.dtype:
        """Real floating dtype of a tensor argument."""
        t: Tensor = self.raw(name)
        return t.dtype.to_real() if t.is_complex() else t.dtype

    def real(self, name: str) -> Tensor:
        """The operand, at least float32; absolute value of a complex one; a Python number as a 0-dim tensor.

        A copy: the graph of a distance must survive what the program does to the operand in place afterwards.
        """
        value = self.raw(name)
        if not isinstance(value, Tensor):
            return torch.tensor(float(value))
        x = value.clone()
        return widened(x.abs() if x.is_complex() else x)

    def magnitude(self, name: str) -> Magnitude:
        """log|operand| and its margin above zero (see `magnitude`)."""
        if name not in self._magnitudes:
            value = self.raw(name)
            self._magnitudes[name] = (
                self._provenance.magnitude(value) if isinstance(value, Tensor) else direct(torch.tensor(float(value)))
            )
        return self._magnitudes[name]

    def maker(self, name: str) -> tuple[str, tuple[Any, ...]] | None:
        """(ATen base name, arguments) of the operation that made an operand, where it was noted."""
        return self.maker_of(self.raw(name))

    def maker_of(self, value: Any) -> tuple[str, tuple[Any, ...]] | None:
        """The same for any tensor of the run."""
        made = self._provenance.made(value) if isinstance(value, Tensor) else None
        if made is None:
            return None
        base = made.func.overloadpacket.__name__
        return base, made.args


@dataclass(frozen=True)
class Hazard:
    """One way in which an operation fails.

    id:       "log.zero".
    ops:      ATen base names it holds for ("_softmax"; in-place forms are included).
    operand:  argument name whose value decides, "out" for the result.
    edge:     what happens at the edge, in words: "operand reaches 0".
    phase:    the pass in which the failure shows.
    symptom:  what comes out: "nan", "+inf", "-inf", or "exception" when torch itself refuses.
    distance: Call → tensor, differentiable; smaller is nearer, <= 0 is reached. Elementwise in the operand's shape,
              or one value per row or for the whole operand where failure is a matter of rows.
    advice:   one sentence.
    applies:  Call → whether this call can fail in this way at all.
    """

    id: str
    ops: tuple[str, ...]
    operand: str
    edge: str
    phase: Phase
    symptom: str
    distance: Callable[[Call], Tensor]
    advice: str
    applies: Callable[[Call], bool] = lambda _: True


Catalogue = dict[str, tuple[Hazard, ...]]
