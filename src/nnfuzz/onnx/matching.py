"""Which inputs and outputs of two models belong together: as asked, by name, else in order where they fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm, Leaf, parameters
from nnfuzz.errors import UsageError
from nnfuzz.seeds import SeedGroup, Seeds
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


def match_inputs(seeds: Seeds, model_a: Any, model_b: Any, asked: Mapping[str, str]) -> InputMatch:
    """By ``asked`` (A's name → B's), else by name, else in order where rank and type fit.

    Args:
        seeds: of A. model_a, model_b: each a ``ForeignModel``, or a callable of tensors.

    Raises:
        UsageError: an input of B that nothing of A fits, or a match that cannot be, by what the graphs declare.
    """
    mine = {n: t[0] for n, t in seeds.groups[0].batch.items()}
    theirs, optional = inputs_of(model_b, list(mine))
    pairs, how = _paired(mine, theirs, asked, seeds.stacked)
    own = {a: _of_a(a, t, model_a, seeds.stacked) for a, t in mine.items()}
    missing = [b for b in theirs if b not in pairs.values() and b not in optional]
    if missing:
        what = {b: b if s is None else f"{b} {_declared(s)}" for b, s in theirs.items()}
        raise UsageError(
            f"B takes the inputs {', '.join(what.values())} and A takes {', '.join(own.values())}: nothing of A fits "
            f"{', '.join(map(repr, missing))}; say what does with --map A_NAME=B_NAME"
        )
    for a, b in pairs.items():
        trouble = _unfit(mine[a], theirs.get(b), seeds.stacked)
        if trouble:
            raise UsageError(
                f"A's {own[a]} = B's {b} {_declared(theirs[b])}, matched {how[a]}, do not fit: {trouble}; give two "
                "models that take the same inputs, or say which belong together with --map A_NAME=B_NAME"
            )
    backward = {b: a for a, b in pairs.items()}
    positional = tuple(Leaf(b) if b in backward else None for b in theirs)
    form = CallForm(positional, {}, {})
    ordered = {backward[b]: b for b in theirs if b in backward}
    return InputMatch(form, ordered, [a for a in mine if a not in pairs])


def _paired(
    mine: Mapping[str, Tensor], theirs: Mapping[str, Any], asked: Mapping[str, str], rows: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """A's names → B's, and by A's names how each came about."""
    pairs: dict[str, str] = dict(asked)
    how = dict.fromkeys(pairs, "by --map")
    for a in mine:
        if a in pairs:
            continue
        same = next((b for b in theirs if b not in pairs.values() and plain(a) == plain(b)), None)
        if same is not None:
            pairs[a], how[a] = same, "by name"
    for a, t in mine.items():
        if a not in pairs:
            fitting = (b for b, s in theirs.items() if b not in pairs.values() and _may_be(t, s, rows))
            found = next(fitting, None)
            if found is not None:
                pairs[a], how[a] = found, "in order"
    return pairs, how


def as_declared(seeds: Seeds, b: ForeignModel, asked: Mapping[str, str]) -> Seeds | None:
    """Stacked seeds of an A in PyTorch as the candidates that B's declared axes make of them; None where these do not
    say. A function of tensors does not tell an axis that counts candidates from one of its own, a graph does."""
    (group,) = seeds.groups
    pairs, _ = _paired({n: t[0] for n, t in group.batch.items()}, inputs_of(b, [])[0], asked, seeds.stacked)
    if set(pairs) != set(group.batch):
        return None
    try:
        read = b.read_seeds({pairs[n]: t for n, t in group.batch.items()})
    except UsageError:
        return None
    found = [
        SeedGroup({n: g.batch[pairs[n]].to(t.dtype) for n, t in group.batch.items()}, [group.index[i] for i in g.index])
        for g in read.groups
    ]
    return Seeds(seeds.form, found, read.stacked, seeds.notes)


def check_takes(model: ForeignModel, seeds: Seeds) -> None:
    """Raises ``UsageError`` where a model cannot take seeds that were read for another one, as far as it declares that:
    a finding or a run is gone back to with ``--model``."""
    group = seeds.groups[0].batch
    inputs = {n: t[:1] if seeds.stacked else t[0] for n, t in group.items()}
    specs = {s.name: s for s in model.inputs}
    missing = any(n not in inputs and not s.optional for n, s in specs.items())
    if missing or any(n not in specs or _unfit(t, specs[n], rows=False) for n, t in inputs.items()):
        takes = ", ".join(f"{s.name} {_declared(s)}" for s in model.inputs)
        raise UsageError(
            f"{model.name} takes {takes}, but the seeds of the run are {_shapes(inputs)}: give the model that it was "
            "made with, or another that takes the same"
        )


def check_first_axes(names: Mapping[str, str], b: ForeignModel, batch: Mapping[str, Tensor], by_row: bool) -> None:
    """Raises ``UsageError`` where B's graph fixes its first axes to another number of rows than it would be given.

    Args:
        names: A's inputs → B's. batch: A's candidates. by_row: whether each of them is a row, which B may take alone.
    """
    for mine, name in names.items():
        spec = next(s for s in b.inputs if s.name == name)
        fixed = spec.shape[0] if spec.shape else None
        given = 1 if by_row or batch[mine].dim() < 2 else batch[mine].shape[1]
        if isinstance(fixed, int) and fixed != given:
            raise UsageError(
                f"A's {mine} = B's {name} {_declared(spec)} do not fit: B takes {fixed} rows together, and A's "
                f"candidates have {given}; give {b.name} as the first model, which says what a candidate is"
            )


def inputs_of(model: Any, mine: list[str]) -> tuple[dict[str, Any], set[str]]:
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


def _unfit(t: Tensor, spec: Any, rows: bool) -> str:
    """Why an input of one of A's candidates cannot be fed to B's, "" where it can, as far as B declares that."""
    if spec is None:
        return ""
    if spec.dtype is not None and spec.dtype != t.dtype:
        halves = t.dtype.is_floating_point and spec.dtype.is_floating_point
        hint = " (an fp16 copy may keep float32 inputs: keep_io_types of the converter, or --as fp16)"
        return f"{_dtype(t.dtype)} is given where {_dtype(spec.dtype)} is taken{hint if halves else ''}"
    if spec.shape is None:
        return ""
    first = 1 if rows else 0  # the axis that counts rows may have any size
    own, sizes = list(t.shape), list(spec.shape[first:])
    if len(spec.shape) < first or len(own) != len(sizes):
        return f"{len(own) + first} axes are given where {len(spec.shape)} are taken"
    wrong = next((i for i, (n, d) in enumerate(zip(own, sizes, strict=True)) if isinstance(d, int) and d != n), None)
    return "" if wrong is None else f"axis {wrong + first} is {own[wrong]} here and {sizes[wrong]} there"


def _of_a(name: str, t: Tensor, model_a: Any, rows: bool) -> str:
    """An input of A in words: as its graph declares it, else as the seeds give it."""
    if isinstance(model_a, ForeignModel):
        spec = next((s for s in model_a.inputs if s.name == name), None)
        if spec is not None:
            return f"{name} {_declared(spec)}"
    return f"{name} {_shaped(t.dtype, [*(['n'] if rows else []), *t.shape])}"


def _declared(spec: Any) -> str:
    return _shaped(spec.dtype, spec.shape)


def _shaped(dtype: torch.dtype | None, shape: Sequence[Any] | None) -> str:
    sizes = "" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
    return f"{'any' if dtype is None else _dtype(dtype)}{sizes}"


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
        for side, word, there in (("A", x, a), ("B", y, b)):
            if word not in there:
                raise UsageError(f"--map {x}={y}: {side} has no output {word!r}, it gives {', '.join(there)}")
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
