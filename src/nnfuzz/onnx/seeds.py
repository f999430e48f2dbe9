"""Inputs for an ONNX model where there are none at hand: by type, by name, by what the graph does with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

import onnx
from nnfuzz.errors import UsageError
from nnfuzz.loading.made import told, too_large
from nnfuzz.onnx.graph import Spec
from nnfuzz.onnx.matching import plain
from nnfuzz.onnx.refusals import first_line
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.space import Batch, rows, size

SIZES = (32, 16, 64, 128, 224, 256, 48, 512, 576, 1024, 8, 4, 2, 1)
"""Sizes tried for the free dimensions that nobody names, all at once."""
_THROUGH = ("Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Flatten", "Transpose")
_STATE = re.compile(r"(^|_)(state|hidden|past|cache|memory|h|c|hn|cn|h0|c0|h_0|c_0)($|_|\d)")
Legal = tuple[float, float] | list[Any]


@dataclass
class Made:
    """Seeds and what is to be said of them.

    Attributes:
        batch: by input name; the first axis counts rows, or, in front of the model's own axes, whole candidates.
        whole: whether it counts whole candidates.
        ways: by input name, how its values were drawn.
        dims: sizes that were found by trying, by the name of the dimension.
    """

    batch: Batch
    whole: bool
    ways: dict[str, str]
    dims: dict[str, int]
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line an input, then what else a reader should know."""
        width = max(len(n) for n in self.batch)
        told = [
            f"{n:{width}}  {str(t.dtype).removeprefix('torch.')}{list(t.shape)}  {self.ways[n]}"
            for n, t in self.batch.items()
        ]
        if self.whole:
            told.append(f"{size(self.batch)} whole candidates, along an axis in front of the model's own")
        if self.dims:
            found = ", ".join(f"{n} = {d}" for n, d in self.dims.items())
            told.append(f"free dimensions, found by trying: {found} (--dim sets them)")
        return [*told, *self.notes]


def made_seeds(
    model: OnnxModel, n: int, *, ranges: Any = None, dims: Mapping[str, int] | None = None, seed: int = 0
) -> Made:
    """``n`` inputs that the model takes: tried before they are given back.

    Args:
        ranges: one pair or list of choices for all inputs, or by name.
        dims: sizes of free dimensions, by their name or as ``input.axis``.

    Raises:
        UsageError: a name that is none, seeds that are too large, or no sizes with which the model runs.
    """
    specs = [s for s in model.inputs if not s.optional]
    legal = _by_name(ranges, specs)
    _check_held(legal, specs)
    asked = _checked_dims(dict(dims or {}), specs)
    whole = not _rows(specs, asked)
    trouble = large = ""
    for s in SIZES:
        sizes = _sizes(specs, asked, s)
        large = too_large(n, _bytes(specs, sizes, whole), "smaller sizes with --dim")
        if large:
            if _nothing_free(specs, asked):
                break
            continue
        batch, ways = _drawn(model, specs, sizes, n, whole, legal, seed)
        trouble = _refused(model, batch, whole)
        if not trouble:
            free = {} if _nothing_free(specs, asked) else _tried(specs, asked, s)
            return Made(batch, whole, ways, free, _non_finite(model, batch, whole))
        if _nothing_free(specs, asked):
            break
    if large and not trouble:
        raise UsageError(large)
    names = ", ".join(_tried(specs, asked, 0)) or "any dimension"
    raise UsageError(
        f"{model.name} refuses the inputs that were tried ({trouble}): give --range, or sizes for {names} with --dim"
    )


# ---------------------------------------------------------------------------------------------------- sizes


def _names(spec: Spec) -> list[str]:
    """What each axis of an input may be called in ``--dim``; "" for a fixed one."""
    assert spec.shape is not None
    own = [f"{plain(spec.name)}.{i}" for i in range(len(spec.shape))]
    named = [d if isinstance(d, str) and re.match(r"\w", d) else own[i] for i, d in enumerate(spec.shape)]
    return ["" if isinstance(d, int) else name for d, name in zip(spec.shape, named, strict=True)]


def _checked_dims(dims: dict[str, int], specs: list[Spec]) -> dict[str, int]:
    for spec in specs:
        if spec.shape is None:
            raise UsageError(
                f"the graph does not say how many axes {spec.name!r} has, so no seeds can be made for it: declare them "
                f"where they are used, for instance by --input {plain(spec.name)}=float32[1,3,32,32]:0..1"
            )
    known = {name for s in specs for name in _names(s) if name}
    by_place = {f"{n}.{i}": name for s in specs for i, name in enumerate(_names(s)) for n in (s.name, plain(s.name))}
    found = {}
    for name, d in dims.items():
        real = name if name in known else by_place.get(name)
        if not real:
            raise UsageError(
                f"--dim names {name!r}, but the free dimensions are {', '.join(sorted(known)) or 'none'}: use these"
            )
        found[real] = d
    return found


def _rows(specs: list[Spec], asked: Mapping[str, int]) -> bool:
    """Whether the first axis of every input is free and one and the same: it counts the candidates then."""
    firsts = [_names(s)[0] if s.shape else "" for s in specs]
    named = {s.shape[0] for s in specs if s.shape and s.shape[0] is not None}
    return all(firsts) and len(named) <= 1 and not any(f in asked for f in firsts)


def _sizes(specs: list[Spec], asked: Mapping[str, int], s: int) -> dict[str, int]:
    """Every free dimension's size: as asked, 1 for a first axis and in a state, else ``s``."""
    ones = _ones(specs)
    return {n: asked.get(n, 1 if n in ones else s) for spec in specs for n in _names(spec) if n}


def _ones(specs: list[Spec]) -> set[str]:
    """Dimensions that count what runs at once: first axes, and all of a recurrent state's."""
    firsts = {_names(spec)[0] for spec in specs if spec.shape}
    return firsts | {n for spec in specs if _is_state(spec) for n in _names(spec)}


def _is_state(spec: Spec) -> bool:
    return _STATE.search(plain(spec.name).lower()) is not None


def _tried(specs: list[Spec], asked: Mapping[str, int], s: int) -> dict[str, int]:
    ones = _ones(specs)
    return {n: s for spec in specs for n in _names(spec) if n and n not in asked and n not in ones}


def _nothing_free(specs: list[Spec], asked: Mapping[str, int]) -> bool:
    return not _tried(specs, asked, 0)


def _shape(spec: Spec, sizes: Mapping[str, int], whole: bool) -> list[int]:
    """Of one candidate."""
    assert spec.shape is not None
    own = [d if isinstance(d, int) else sizes[name] for d, name in zip(spec.shape, _names(spec), strict=True)]
    return own if whole else own[1:]


def _bytes(specs: list[Spec], sizes: Mapping[str, int], whole: bool) -> int:
    """Of one candidate, all inputs together."""
    return sum(math.prod(_shape(s, sizes, whole)) * s.dtype.itemsize for s in specs if s.dtype is not None)


def _refused(model: OnnxModel, batch: Batch, whole: bool) -> str:
    """What ONNX Runtime says against a few of the seeds, "" for nothing."""
    try:
        for part in _parts(rows(batch, slice(0, 2)), whole):
            model.run(part)
    except Exception as error:
        return first_line(error)
    return ""


def _non_finite(model: OnnxModel, batch: Batch, whole: bool) -> list[str]:
    bad = 0
    for part in _parts(batch, whole):
        outputs = [t for t in model.run(part).values() if t.is_floating_point()]
        if whole:
            bad += any(not bool(t.isfinite().all()) for t in outputs)
        else:
            fitting = [t.reshape(len(t), -1) for t in outputs if t.dim() and len(t) == size(batch)]
            bad = int(torch.stack([~t.isfinite().all(1) for t in fitting]).any(0).sum()) if fitting else 0
    return [f"the model gives NaN or Inf for {bad} of them"] if bad else []


def _parts(batch: Batch, whole: bool) -> Iterator[Batch]:
    if not whole:
        yield batch
        return
    for i in range(size(batch)):
        yield {n: t[i] for n, t in batch.items()}


# --------------------------------------------------------------------------------------------------- values


def _by_name(ranges: Any, specs: list[Spec]) -> dict[str, Legal]:
    if ranges is None:
        return {}
    if not isinstance(ranges, Mapping):
        return {s.name: ranges for s in specs}
    words = {w: s.name for i, s in enumerate(specs) for w in (str(i), plain(s.name), s.name)}
    for name in ranges:
        if name not in words:
            raise UsageError(
                f"--range names the input {name!r}, but the inputs are {', '.join(s.name for s in specs)}: use these"
            )
    return {words[n]: r for n, r in ranges.items()}


def _check_held(legal: Mapping[str, Legal], specs: list[Spec]) -> None:
    """Numbers that the input's dtype cannot hold would be saved as infinities, or as other integers."""
    for spec in specs:
        given, dtype = legal.get(spec.name), spec.dtype
        if given is None or dtype is None or dtype == torch.bool or dtype.is_complex:
            continue
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        beyond = [v for v in given if not info.min <= float(v) <= info.max]
        if beyond:
            raise UsageError(
                f"the range of {spec.name!r} holds {float(beyond[0]):g}, but {str(dtype).removeprefix('torch.')} holds "
                f"{info.min:.6g}..{info.max:.6g}: give numbers within it"
            )


def _drawn(
    model: OnnxModel, specs: list[Spec], sizes: Mapping[str, int], n: int, whole: bool, legal: Mapping[str, Legal],
    seed: int,
) -> tuple[Batch, dict[str, str]]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    batch: Batch = {}
    ways: dict[str, str] = {}
    for spec in specs:
        shape = [n, *_shape(spec, sizes, whole)]
        values, ways[spec.name] = _values(model, spec, shape, legal.get(spec.name), generator)
        assert spec.dtype is not None
        batch[spec.name] = values.to(spec.dtype)
    return batch, ways


def _values(model: OnnxModel, spec: Spec, shape: list[int], legal: Legal | None, g: Generator) -> tuple[Tensor, str]:
    """Values in float64 or int64, and how they came about."""
    dtype, name = spec.dtype, plain(spec.name).lower()
    assert dtype is not None
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) < 0.5, "true or false"
    if isinstance(legal, list):
        index = torch.randint(len(legal), shape, generator=g)
        return torch.tensor(legal, dtype=torch.float64)[index], f"{told(legal)}, as given"
    if legal is not None:
        low, high = float(legal[0]), float(legal[1])
        unit = torch.rand(shape, generator=g, dtype=torch.float64)
        if dtype.is_floating_point:
            return low + unit * (high - low), f"{told(legal)}, as given"
        return (low + (unit * (high - low + 1)).floor()).clamp(low, high), f"{told(legal)}, as given"
    if dtype.is_floating_point or dtype.is_complex:
        return _floating(spec, name, shape, g)
    return _integers(model, spec, name, shape, g)


def _floating(spec: Spec, name: str, shape: list[int], g: Generator) -> tuple[Tensor, str]:
    if "mask" in name:
        return torch.ones(shape, dtype=torch.float64), "ones: a mask, by its name"
    if _is_state(spec):
        values = torch.rand(shape, generator=g, dtype=torch.float64) * 2 - 1
        values[0] = 0
        return values, "-1..1, the first all 0: a state, by its name"
    own = spec.shape or ()
    if len(own) == 4 and any(own[i] in (1, 3, 4) for i in (1, 3)):
        return torch.rand(shape, generator=g, dtype=torch.float64), "0..1: an image, by its shape"
    return torch.randn(shape, generator=g, dtype=torch.float64), "normal, mean 0, deviation 1"


def _integers(model: OnnxModel, spec: Spec, name: str, shape: list[int], g: Generator) -> tuple[Tensor, str]:
    table = _table(model, spec.name)
    if table:
        return torch.randint(table, shape, generator=g), f"0..{table - 1}: it looks up a table of {table} rows"
    if "mask" in name:
        return torch.ones(shape, dtype=torch.int64), "ones: a mask, by its name"
    if re.search(r"(^|_)(sr|sample_?rate|sampling_?rate)($|_)", name):
        return torch.full(shape, 16000), "16000: a sampling rate, by its name"
    if "position" in name and len(shape) > 1:
        return torch.arange(shape[-1]).expand(shape).clone(), "0, 1, 2 …: positions, by its name"
    if spec.dtype == torch.uint8 and len(shape) > 2:
        return torch.randint(256, shape, generator=g), "0..255: an image, by its type"
    return torch.randint(10, shape, generator=g), "0..9"


def _table(model: OnnxModel, name: str) -> int:
    """Rows of the constant that an integer input is looked up in; 0 where there is none."""
    sizes = {t.name: list(t.dims) for t in model.proto.graph.initializer}
    names = {name}
    for node in model.proto.graph.node:
        if node.op_type in _THROUGH and node.input and node.input[0] in names:
            names.update(node.output)
        if node.op_type == "Gather" and node.input[1] in names and node.input[0] in sizes:
            axis = next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
            return int(sizes[node.input[0]][axis])
    return 0
