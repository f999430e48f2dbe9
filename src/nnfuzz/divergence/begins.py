"""Where a disagreement begins: the first layer whose difference jumps on the failing input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nnfuzz.divergence.layers import (
    Layer,
    compare,
    first_apart,
    first_beyond_rounding,
    first_broken,
    first_jump,
    noise,
    table,
    without_mistaken,
)
from nnfuzz.divergence.matching import Match, match_values
from nnfuzz.divergence.values import Reader, Values, readers_of
from nnfuzz.objectives.base import Objective
from nnfuzz.objectives.compare import MARGINS
from nnfuzz.space import Batch, rows
from nnfuzz.targets import PairTarget, TorchTarget, Trace
from nnfuzz.targets.outputs import named_outputs

WORTH = 3
"""Layers that must be left of an optimised graph for it to be shown."""
TELLING = 16
"""Elements that a value must have for it to say something that nothing of B goes together with it."""
SEEDS = 8
"""Seeds whose differences count as usual."""


@dataclass
class Begins:
    """What was seen of one failing input.

    Attributes:
        layers: matched layers in the order of A. first: the one that jumps, None where none does.
        always: whether that one differs on the seeds already, while all before it agree. broken: whether it is lost on
            the seeds already, in a copy whose every layer differs a little.
        last, alone: where nothing of B goes together with what A computes from some layer on, the last layer that has a
            counterpart, and the first that has none; else "".
        by: how they were matched ("name", "correlation"). shows: whether the sides disagree in what was read too.
        notes: sentences.
        decides: whether what is compared is a decision (a class, a threshold), which has a boundary.
        rounding: of an input that is a seed itself, the relative difference that rounding explains; else 0.
    """

    layers: list[Layer]
    first: Layer | None
    by: str
    shows: bool
    always: bool = False
    last: str = ""
    alone: str = ""
    broken: bool = False
    notes: list[str] = field(default_factory=list)
    decides: bool = True
    rounding: float = 0.0

    def headline(self) -> str:
        """One line for a README."""
        if self.first is not None:
            if self.rounding:
                return f"{self.first.told()}, where rounding explains {self.rounding:.2g} and all before it differ less"
            more = ", while all before it agree" if self.always else ", far more than any layer before it"
            return self.first.told() + (more if self.always or self.broken else "")
        if not self.layers:
            return "unknown: no layer of A belongs to one of B"
        if self.alone:
            return f"{self.alone}: from there on nothing of B goes together with A, up to {self.last} they agree"
        return f"no single layer: {self._no_layer()}"

    def _no_layer(self) -> str:
        """Why none stands out, as far as the numbers show it."""
        largest = max((x.here for x in self.layers), default=0.0)
        near = "so the input lies near a decision boundary"
        if self.rounding and largest <= self.rounding:
            so = near if self.decides else "so the comparison allows less than rounding gives"
            return f"none differs by more than rounding explains ({self.rounding:.2g}), {so}"
        if self.rounding:
            return "the difference grows from layer to layer, by more than rounding explains"
        so = near if self.decides else "so what is usual there is more here than the comparison allows"
        return f"no difference is much larger than on the seeds, {so}"

    def lines(self) -> list[str]:
        """For ``nnfuzz explain``."""
        if not self.layers:
            return ["layer by layer: no layer of A could be matched to one of B", *self.notes]
        how = "by name" if self.by == "name" else "by correlation over the seeds"
        lines = ["relative difference layer by layer (matched " + how + "):"]
        lines += [f"  {line}" for line in table(self.layers, mark=self.first)]
        if self.first is not None or self.alone:
            lines.append(f"it begins at {self.headline()}")
        else:
            lines.append(self.headline())
        return [*lines, *self.notes]


class Parting:
    """Compares the insides of a pair; what is learnt from the seeds is learnt once.

    Args:
        pair: prepared. seeds: groups of candidates ``(candidates, ...)`` as the pair takes them.
        objective: judges whether the disagreement is there in what was read, None to leave that open.
        derived: whether B is a copy in another precision, whose every layer differs a little.
        deployed: see ``values.reader_of``.
    """

    def __init__(
        self,
        pair: PairTarget,
        seeds: Sequence[Batch],
        objective: Objective | None = None,
        *,
        derived: bool = False,
        deployed: bool = False,
    ):
        self.pair, self.objective, self.derived, self.deployed = pair, objective, derived, deployed
        self.readers: tuple[Reader, Reader] = readers_of(pair.a, pair.b, deployed=deployed)
        self._other: Parting | None = None
        self._seeds = seeds
        self._learnt: list[tuple[Values, Values]] | None = None
        self._matches: list[Match] = []

    def begins(self, candidate: Batch) -> Begins:
        """``candidate``: one failing input with a leading axis of 1, on the pair's device."""
        seeds, matches = self._usual(), self._matches
        here = self._read(candidate)
        shows = self._shows(candidate)
        if not shows and not self.deployed:
            other = self._as_deployed()
            if len(other._matches_known()) >= WORTH:
                found = other.begins(candidate)
                found.notes.append(
                    "without ONNX Runtime's optimisation the sides agree: these are the values that outlive it"
                )
                return found
        layers, eps = compare(matches, here, seeds), self._eps(here)
        by = matches[0].by if matches else ""
        if by == "correlation":
            layers = without_mistaken(layers, eps)
        first, always = first_jump(layers, eps), False
        if first is None and not self.derived:
            first = first_apart(layers, eps)
            always = first is not None
        rounding = 0.0
        if first is None and not self.derived and self._is_seed(candidate):
            first, rounding = first_beyond_rounding(layers, eps), noise(eps)
        broken = False
        if first is None and self.derived:
            first = first_broken(layers)
            broken = first is not None
        nothing_apart = first is None and (by == "correlation" or not self.derived)
        last, alone = self._alone(layers, eps) if nothing_apart else ("", "")
        notes = [] if shows or self.deployed else [
            "without ONNX Runtime's optimisation the sides agree, and these values are without it"
        ]  # fmt: skip
        return Begins(layers, first, by, shows, always, last, alone, broken, notes, self._decides(), rounding)

    def _is_seed(self, candidate: Batch) -> bool:
        """Whether the input is one of the seeds, which then are no measure of what is usual."""
        for group in self._seeds:
            if any(group[n].shape[1:] != t.shape[1:] for n, t in candidate.items()):
                continue
            same = [(group[n] == t).reshape(len(group[n]), -1).all(1) for n, t in candidate.items()]
            if same and bool(torch.stack(same).all(0).any()):
                return True
        return False

    def _decides(self) -> bool:
        compare = getattr(self.objective, "compare", "argmax")
        return isinstance(compare, str) and compare.partition(":")[0] in MARGINS

    def _alone(self, layers: list[Layer], eps: float) -> tuple[str, str]:
        """The last matched layer and the first of those behind it, where all the rest of A is without counterpart."""
        if not layers or layers[-1].usual > noise(eps):
            return "", ""
        values, matched = self._usual()[0][0], {m.a for m in self._matches}
        names = list(values)
        rest = names[names.index(layers[-1].value) + 1 :] if layers[-1].value in names else []
        apart = [n for n in rest if n not in matched]
        if self._matches[0].by == "name":  # what has the same name and no counterpart has another shape
            return (layers[-1].name, values[apart[0]].layer) if apart else ("", "")
        telling = [n for n in apart if values[n].tensor.numel() >= TELLING]
        return (layers[-1].name, values[telling[0]].layer) if len(telling) >= WORTH else ("", "")

    def _matches_known(self) -> list[Match]:
        self._usual()
        return self._matches

    def _as_deployed(self) -> Parting:
        if self._other is None:
            self._other = Parting(self.pair, self._seeds, self.objective, derived=self.derived, deployed=True)
        return self._other

    def _usual(self) -> list[tuple[Values, Values]]:
        if self._learnt is None:
            some = [rows(g, slice(i, i + 1)) for g in self._seeds for i in _spread(g)][:SEEDS]
            self._learnt = [self._read(s) for s in some]
            same = self.readers[0].named == self.readers[1].named != "op"
            self._matches = match_values([a for a, _ in self._learnt], [b for _, b in self._learnt], same)
        return self._learnt

    def _read(self, candidate: Batch) -> tuple[Values, Values]:
        pair = self.pair
        return (
            self.readers[0].read(pair.a.model_input(candidate)),
            self.readers[1].read(pair.b.model_input(pair.for_b(candidate))),
        )

    def _eps(self, here: tuple[Values, Values]) -> float:
        """Of the coarser side: its own rounding is no jump."""
        found = [torch.finfo(v.tensor.dtype).eps for side in here for v in side.values()]
        return max((e for e in found if e < 1e-1), default=1e-7)

    def _shows(self, candidate: Batch) -> bool:
        """Whether the graphs disagree without optimisation as well."""
        if self.objective is None:
            return True
        outputs = [_plain_outputs(side, reader) for side, reader in zip((self.pair.a, self.pair.b), self.readers,
                                                                       strict=True)]  # fmt: skip
        if not any(outputs):
            return True
        try:
            mine = (outputs[0] or _own(self.pair.a))(self.pair.a.model_input(candidate))
            theirs = (outputs[1] or _own(self.pair.b))(self.pair.b.model_input(self.pair.for_b(candidate)))
            if self.pair.unit == "batch":
                mine, theirs = ({n: t[None] for n, t in side.items()} for side in (mine, theirs))
            trace = Trace(self.pair.joined(mine, self.pair.from_b(theirs)))
            return bool(self.objective.judge(trace, candidate).hits[0])
        except Exception:  # outputs of another form: nothing can be said
            return True


Run = Callable[[Batch], dict[str, Tensor]]


def _plain_outputs(side: TorchTarget, reader: Reader) -> Run | None:
    """A graph without optimisation, where the side's own runs with some."""
    plain: Any = getattr(reader, "plain", None)
    if plain is None or plain.options == reader.model.options:  # type: ignore[attr-defined]
        return None

    def run(inputs: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = plain.run(inputs)
        return found

    return run


def _own(side: TorchTarget) -> Run:
    def run(inputs: Batch) -> dict[str, Tensor]:
        return named_outputs(side.call(inputs))

    return run


def _spread(batch: Batch) -> list[int]:
    """Rows of a group, evenly spaced."""
    count = len(next(iter(batch.values())))
    some = min(SEEDS, count)
    return sorted({round(i * (count - 1) / max(1, some - 1)) for i in range(some)})
