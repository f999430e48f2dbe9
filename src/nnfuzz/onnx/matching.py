"""Which inputs and outputs of two models belong together: as asked, by name, else in order where they fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm, Leaf, parameters
from nnfuzz.errors import UsageError
from nnfuzz.seeds import Seeds
from nnfuzz.targets.foreign import ForeignModel


def plain(name: str) -> str:
    """A name as an identifier, as tools write it that cannot hold others."""
    return re.sub(r"\W", "_", name)


@dataclass
class InputMatch:
    """How B takes A's inputs: ``names`` from A's to B's, ``form`` B's call, ``dropped`` those that B does not take."""

    form: CallForm
    names: dict[str, str]
    dropped: list[str] = field(default_factory=list)


def match_inputs(seeds: Seeds, model_b: Any, asked: Mapping[str, str]) -> InputMatch:
    """By ``asked`` (A's name → B's), else by name, else in order where rank and type fit.

    Args:
        seeds: of A. model_b: a ``ForeignModel``, or a callable of tensors.

    Raises:
        UsageError: an input of B that nothing of A fits, or a name in ``asked`` that is none.
    """
    mine = {n: t[0] for n, t in seeds.groups[0].batch.items()}
    theirs, optional = _inputs_of(model_b, list(mine))
    pairs: dict[str, str] = {}
    for a, b in asked.items():
        pairs[seeds.form.resolve(a, "match")] = b
    for a in mine:
        if a in pairs:
            continue
        same = next((b for b in theirs if b not in pairs.values() and plain(a) == plain(b)), None)
        if same is not None:
            pairs[a] = same
    for a, t in mine.items():
        if a not in pairs:
            fitting = (b for b, s in theirs.items() if b not in pairs.values() and _may_be(t, s, seeds.stacked))
            found = next(fitting, None)
            if found is not None:
                pairs[a] = found
    missing = [b for b in theirs if b not in pairs.values() and b not in optional]
    if missing:
        raise UsageError(
            f"B takes the inputs {', '.join(theirs)} and A takes {', '.join(mine)}: nothing of A fits "
            f"{', '.join(map(repr, missing))}; say what does with --map A_NAME=B_NAME"
        )
    backward = {b: a for a, b in pairs.items()}
    positional = tuple(Leaf(b) if b in backward else None for b in theirs)
    form = CallForm(positional, {}, {})
    ordered = {backward[b]: b for b in theirs if b in backward}
    return InputMatch(form, ordered, [a for a in mine if a not in pairs])


def _inputs_of(model: Any, mine: list[str]) -> tuple[dict[str, Any], set[str]]:
    """Names of B's inputs in call order, with what the graph says of them; and which of them may be left out."""
    if isinstance(model, ForeignModel):
        return {s.name: s for s in model.inputs}, {s.name for s in model.inputs if s.optional}
    names, _, any_position = parameters(model)
    if not names and any_position:
        names = mine
    return dict.fromkeys(names), set(names[len(mine) :])


def _may_be(t: Tensor, spec: Any, rows: bool) -> bool:
    """Whether a candidate's input can be fed there: type and, where it is known, rank (a row lacks the first axis)."""
    if spec is None:
        return True
    if spec.dtype is not None and (t.dtype.is_floating_point, t.dtype == torch.bool) != (
        spec.dtype.is_floating_point,
        spec.dtype == torch.bool,
    ):
        return False
    rank = t.dim() + (1 if rows else 0)
    return spec.shape is None or len(spec.shape) in (rank, rank + 1, rank - 1)


@dataclass
class OutputMatch:
    """``pairs`` from A's output names to B's, in A's order; what neither side's match takes."""

    pairs: dict[str, str]
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)

    def said(self, inputs: Mapping[str, str]) -> list[str]:
        """Sentences for the header."""
        told = [f"inputs matched (A = B): {_pairs_text(inputs)}; outputs: {_pairs_text(self.pairs)}"]
        for side, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                several = "s" * (len(names) > 1)
                told.append(
                    f"not compared, since nothing on the other side fits: output{several} {', '.join(names)} of {side}"
                )
        return told


def match_outputs(a: Mapping[str, Tensor], b: Mapping[str, Tensor], asked: Mapping[str, str]) -> OutputMatch:
    """Outputs of one candidate on either side: by ``asked``, else by name, else in order among those of equal shape and
    kind of number, else, where one is left on each side, those two.

    Raises:
        UsageError: nothing fits, or a name in ``asked`` is none.
    """
    for x, y in asked.items():
        if x not in a or y not in b:
            raise UsageError(
                f"--map {x}={y} names no input or output of both: A gives {', '.join(a)} and B gives {', '.join(b)}"
            )
    pairs = dict(asked)
    rules: tuple[Callable[[str, str], bool], ...] = (
        lambda x, y: plain(x) == plain(y),
        lambda x, y: a[x].shape == b[y].shape and a[x].is_floating_point() == b[y].is_floating_point(),
        lambda x, y: a[x].numel() == b[y].numel() and a[x].is_floating_point() == b[y].is_floating_point(),
    )
    for rule in rules:
        for x in a:
            if x not in pairs:
                fitting = next((y for y in b if y not in pairs.values() and rule(x, y)), None)
                if fitting is not None:
                    pairs[x] = fitting
    left_a, left_b = [x for x in a if x not in pairs], [y for y in b if y not in pairs.values()]
    if len(left_a) == len(left_b) == 1 and not pairs:
        pairs[left_a.pop()] = left_b.pop()
    if not pairs:
        raise UsageError(
            f"no output of A ({_shapes(a)}) fits one of B ({_shapes(b)}): say which belong together with "
            "--map A_NAME=B_NAME"
        )
    return OutputMatch({x: pairs[x] for x in a if x in pairs}, left_a, left_b)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shapes(named: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{n} {_dtype(t.dtype)}{list(t.shape)}" for n, t in named.items())


def _pairs_text(pairs: Mapping[str, str]) -> str:
    return ", ".join(a if a == b else f"{a} = {b}" for a, b in pairs.items())
