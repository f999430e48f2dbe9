"""Seeds → the inputs of an ONNX model.

A graph says more of its inputs than a Python function does: names, element types, ranks and fixed sizes. So seeds whose
arrays have the graph's own rank are rows along the first axis, and arrays with one axis more are whole candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.callform import CallForm, Leaf
from nnfuzz.errors import UsageError
from nnfuzz.onnx.graph import Spec
from nnfuzz.onnx.matching import plain
from nnfuzz.seeds import MOST_SEEDS, SeedGroup, Seeds, from_data_source, grouped, tensors_of, thinned, uneven_lengths
from nnfuzz.space import Batch

if TYPE_CHECKING:
    from nnfuzz.onnx.runtime import OnnxModel


def read_onnx_seeds(seeds: Any, model: OnnxModel) -> Seeds:
    """Seeds in any of the forms of ``nnfuzz.find_nans``, for an ONNX model.

    Arrays of the graph's rank are rows along the first axis, unless the graph fixes that axis to k: then every k rows
    are one candidate. Arrays with one axis more are whole candidates along it. A scalar input (a sample rate) may be
    given once for all. Values are converted to the graph's element types where they fit.

    Raises:
        UsageError: an input is missing, of a wrong rank or size, or holds values that its type cannot.
    """
    notes: list[str] = []
    seeds = tensors_of(from_data_source(seeds, model, notes))
    reader = _Reader(model, notes)
    if isinstance(seeds, list):
        if not seeds:
            raise UsageError("the list of seeds is empty: give at least one candidate")
        candidates = [reader.named(c) for c in seeds[:MOST_SEEDS]]
        form = form_of(model, candidates[0])
        reader.say_absent(candidates[0])
        for candidate in candidates:
            reader.check(candidate, dict.fromkeys(candidate, 0))
        return grouped(candidates, form, notes)
    flat = reader.named(seeds)
    form = form_of(model, flat)
    reader.say_absent(flat)
    return reader.arranged({n: flat[n] for n in form.names}, form)


def form_of(model: OnnxModel, given: Iterable[str]) -> CallForm:
    """Inputs in the graph's order under its own names; an optional one that is not given is None. They may also be
    called by number, and by their name with whatever is no letter, digit or dot as ``_``."""
    held = set(given)
    positional = tuple(Leaf(s.name) if s.name in held else None for s in model.inputs)
    names = [s.name for s in model.inputs if s.name in held]
    aliases = {plain(n): n for n in names if plain(n) not in names}
    aliases |= {str(i): s.name for i, s in enumerate(model.inputs) if s.name in held and str(i) not in names}
    return CallForm(positional, {}, aliases)


class _Reader:
    def __init__(self, model: OnnxModel, notes: list[str]):
        self.model, self.notes = model, notes
        self.specs = {s.name: s for s in model.inputs}
        self._converted: set[str] = set()

    def say_absent(self, given: Batch) -> None:
        absent = [s.name for s in self.model.inputs if s.name not in given]
        if absent:
            self._note(f"not searched: {', '.join(absent)} (optional, and absent in the seeds)")

    # -------------------------------------------------------------- names and types

    def named(self, part: Any) -> Batch:
        """A candidate, or a stack of them, by input name and in the graph's types."""
        pairs = self._pairs(part)
        missing = [s for s in self.model.inputs if s.name not in pairs and not s.optional]
        if missing:
            raise UsageError(
                f"{self.model.name} takes {_listed(self.model.inputs)}, but the seeds give "
                f"{', '.join(map(repr, pairs)) or 'none of them'}: give {', '.join(repr(s.name) for s in missing)} too"
            )
        return {n: self._cast(_tensor(n, t), self.specs[n]) for n, t in pairs.items()}

    def _pairs(self, part: Any) -> dict[str, Any]:
        names = list(self.specs)
        if not isinstance(part, dict | tuple | list):
            return dict(zip(names, [part], strict=False))
        if not isinstance(part, dict):
            if len(part) > len(names):
                self._note(f"the seeds give {len(part)} parts, the model takes {len(names)}: the last are left out")
            return dict(zip(names, part, strict=False))
        found = {n: part[n] for n in names if n in part}
        known = {plain(n): n for n in names} | {str(i): n for i, n in enumerate(names)}
        known |= {f"arr_{i}": n for i, n in enumerate(names)}
        rest = [k for k in part if k not in found]
        for key in [k for k in rest if k in known and known[k] not in found]:
            found[known[key]] = part[key]
            rest.remove(key)
        free = [n for n in names if n not in found]
        needed = [n for n in free if not self.specs[n].optional]
        if needed and rest and (len(names) > 1 or len(rest) > 1):
            raise UsageError(
                f"{self.model.name} takes {_listed(self.model.inputs)}, but the seeds give "
                f"{', '.join(map(repr, part))}: call them as the inputs are called, since which is which is not known"
            )
        if needed and len(rest) == 1:
            self._note(f"the array {rest[0]!r} of the seeds is taken for the input {free[0]!r}")
            found[free[0]] = part[rest[0]]
        elif rest:
            self._note(f"the model takes {', '.join(names)}: {', '.join(map(repr, rest))} in the seeds is left out")
        return {n: found[n] for n in names if n in found}

    def _cast(self, t: Tensor, spec: Spec) -> Tensor:
        dtype = spec.dtype
        if dtype is None or t.dtype == dtype:
            return t
        fits = t.is_complex() == dtype.is_complex
        new = t.to(dtype) if fits else t
        if fits and not (dtype.is_floating_point or dtype.is_complex):
            fits = bool((new.double() == t.double()).all())
        if not fits:
            raise UsageError(
                f"the input {spec.name!r} is {spec}, but the seeds give it {_dtype(t.dtype)} values that this type "
                "cannot hold: convert them"
            )
        if spec.name not in self._converted:
            self._converted.add(spec.name)
            self._note(f"the seeds of {spec.name!r} are {_dtype(t.dtype)} and are converted to {_dtype(dtype)}")
        return new

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # -------------------------------------------------------------- rows or whole candidates

    def arranged(self, flat: Batch, form: CallForm) -> Seeds:
        """What the first axis means, from the ranks that the graph declares."""
        extra = {n: t.dim() - len(s.shape) for n, t in flat.items() if (s := self.specs[n]).shape is not None}
        bad = next((n for n, e in extra.items() if e not in (0, 1)), None)
        if bad is not None:
            raise self._misfit(bad, flat[bad])
        scalars = [n for n in extra if self.specs[n].shape == ()]
        ranked = {n: e for n, e in extra.items() if n not in scalars}
        if any(ranked.values()):
            return self._whole(flat, extra, form)
        if len(scalars) == len(flat) and any(extra.values()):  # nothing else says how many candidates there are
            return self._whole(flat, extra, form)
        others = [n for n in flat if n not in scalars]
        lengths = {flat[n].shape[0] if flat[n].dim() else None for n in others}
        fixed = {k for n in others if (k := self._first(n)) is not None}
        if not others or len(lengths) > 1 or None in lengths or len(fixed - {1}) > 1:
            return self._lone(flat, extra, form)
        (count,) = lengths
        if not count:
            raise UsageError("the seeds are empty (first axis of length 0): give at least one candidate")
        assert isinstance(count, int)
        if not fixed and not scalars:
            self.check(flat, dict.fromkeys(flat, 0))
            index = list(range(count))
            flat, index = thinned(flat, index, self.notes)
            return Seeds(form, [SeedGroup(flat, index)], True, self.notes)
        if any(self._first(n) is None for n in others) and fixed - {1}:
            return self._lone(flat, extra, form)  # one input's first axis is free, another's is not one of candidates
        return self._cut(flat, others, scalars, extra, max(fixed, default=1), form)

    def _first(self, name: str) -> int | None:
        """The size to which the graph fixes an input's first axis."""
        shape = self.specs[name].shape
        return shape[0] if shape and isinstance(shape[0], int) else None

    def _cut(
        self,
        flat: Batch,
        others: Sequence[str],
        scalars: Sequence[str],
        extra: Mapping[str, int],
        k: int,
        form: CallForm,
    ) -> Seeds:
        """Rows of a graph whose first axis is fixed to k, or that has scalar inputs beside them: every k rows are one
        candidate."""
        total = len(flat[others[0]])
        starts = list(range(0, total - k + 1, k))
        if not starts:
            raise self._misfit(others[0], flat[others[0]])
        rest = total % k
        if rest and not any(extra[n] and len(flat[n]) == len(starts) for n in scalars):
            starts.append(total - k)  # no row is left out: the last candidate has some of the one before
            self._note(f"{total} rows do not fill candidates of {k}: the last one shares {k - rest} with that before")
        count = len(starts)
        cut = {n: torch.stack([flat[n][i : i + k] for i in starts]) for n in others}
        for n in scalars:
            if extra[n] and len(flat[n]) not in (count, 1):
                raise UsageError(
                    f"the seeds give {len(flat[n])} values of {n!r} for {count} candidates: give one each, or one"
                )
            cut[n] = flat[n].reshape(-1).expand(count).clone()
        self.check(cut, dict.fromkeys(cut, 1))
        if any(self._first(n) for n in others):
            each = "each row of the seeds is a candidate" if k == 1 else f"every {k} rows of the seeds are a candidate"
            self._note(f"the graph fixes its first axis to {k}, so {each}")
        elif scalars:
            self._note(f"the graph takes one value of {_named(scalars)} for all rows, so each row is a candidate")
        batch, index = thinned({n: cut[n] for n in form.names}, starts, self.notes)
        return Seeds(form, [SeedGroup(batch, index)], False, self.notes)

    def _whole(self, flat: Batch, extra: Mapping[str, int], form: CallForm) -> Seeds:
        """Whole candidates along an axis in front; what lacks it, and a scalar's one value, is the same for all."""
        lengths = {len(t) for n, t in flat.items() if extra.get(n, 1)}
        if len(lengths) > 1:
            once = [n for n, t in flat.items() if self.specs[n].shape == () and t.shape == (1,)]
            flat, extra = flat | {n: flat[n][0] for n in once}, {**extra, **dict.fromkeys(once, 0)}
            lengths = {len(t) for n, t in flat.items() if extra.get(n, 1)}
        if len(lengths) > 1:
            told = ", ".join(f"{n} has {len(t)}" for n, t in flat.items() if extra.get(n, 1))
            raise UsageError(f"the seeds hold different numbers of candidates ({told}): the first axis counts them")
        (count,) = lengths
        if not count:
            raise UsageError("the seeds are empty (first axis of length 0): give at least one candidate")
        batch = {n: t if extra.get(n, 1) else t[None].expand(count, *t.shape).clone() for n, t in flat.items()}
        self.check(batch, dict.fromkeys(batch, 1))
        batch, index = thinned(batch, list(range(count)), self.notes)
        return Seeds(form, [SeedGroup(batch, index)], False, self.notes)

    def _lone(self, flat: Batch, extra: Mapping[str, int], form: CallForm) -> Seeds:
        for n, t in flat.items():
            if extra.get(n) and len(t) != 1:  # a scalar: any other input lacks the axis, or there were candidates
                raise UsageError(
                    f"the seeds give {len(t)} values of {n!r} for one candidate, since the other inputs have no axis "
                    "in common that counts candidates: give one value, or all inputs one more axis in front"
                )
        self._check_one_length(flat)
        if len(flat) > 1:
            self._note("the inputs have no common first axis, so the seeds are taken as one whole candidate")
        batch = {n: t if extra.get(n) else t[None] for n, t in flat.items()}
        self.check(batch, dict.fromkeys(batch, 1))
        uneven = uneven_lengths({n: t for n, t in flat.items() if self.specs[n].shape != ()})
        return Seeds(form, [SeedGroup(batch, [0])], False, self.notes, uneven)

    def _check_one_length(self, flat: Batch) -> None:
        """First axes that the graph calls by one name have one length."""
        seen: dict[str, str] = {}
        for name, t in flat.items():
            shape = self.specs[name].shape
            if not shape or not isinstance(shape[0], str):
                continue
            other = seen.setdefault(shape[0], name)
            if len(flat[other]) != len(t):
                raise UsageError(
                    f"the seeds give {len(flat[other])} rows of {other!r} and {len(t)} of {name!r}, but "
                    f"{self.model.name} takes as many of each ({shape[0]}): give equal numbers of rows"
                )

    def check(self, batch: Batch, leading: Mapping[str, int]) -> None:
        """Every size that the graph fixes. ``leading``: axes of the arrays that count candidates, by input."""
        for name, t in batch.items():
            shape = self.specs[name].shape
            if shape is None:
                continue
            own = tuple(t.shape[leading[name] :])
            if len(own) != len(shape) or any(isinstance(d, int) and d != n for d, n in zip(shape, own, strict=True)):
                raise self._misfit(name, t)

    def _misfit(self, name: str, t: Tensor) -> UsageError:
        return UsageError(
            f"the input {name!r} of {self.model.name} is {self.specs[name]}, but the seeds give it the shape "
            f"{list(t.shape)}: give that shape, or one more axis in front that counts whole candidates"
        )


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float | np.generic):
        return torch.as_tensor(np.asarray(value)) if isinstance(value, np.generic) else torch.tensor(value)
    raise UsageError(f"the seeds give the input {name!r} a {type(value).__name__}, but a tensor is needed")


def _named(names: Sequence[str]) -> str:
    return ", ".join(repr(n) for n in names[:3]) + (" …" if len(names) > 3 else "")


def _listed(specs: Iterable[Spec]) -> str:
    return ", ".join(f"{s.name} ({s})" for s in specs)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
