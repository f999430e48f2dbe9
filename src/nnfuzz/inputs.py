"""From what the user said of the inputs, and what the seeds show, to the InputSpace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm
from nnfuzz.errors import UsageError
from nnfuzz.kinds import ALIASES, KINDS
from nnfuzz.seeds import Seeds
from nnfuzz.settings import at_least
from nnfuzz.space import Batch, FreeDim, InputSpace, InputSpec

Ranges = Mapping[str, Any] | tuple[float, float] | None


def build_space(
    seeds: Seeds,
    *,
    ranges: Ranges = None,
    kinds: Mapping[str, str] | None = None,
    fixed: Iterable[str | int] = (),
    shapes: Mapping[str, Sequence[Any]] | None = None,
    eps: float | Mapping[str, float] | None = None,
    constraint: Callable[[Batch], Batch] | None = None,
) -> InputSpace:
    """Checks every word of the user against the seeds; see ``nnfuzz.find_nans`` for the arguments."""
    form = seeds.form
    held = frozenset(form.resolve(n, "fixed") for n in ([fixed] if isinstance(fixed, str) else fixed))
    kind_of = {form.resolve(n, "kinds"): k for n, k in (kinds or {}).items()}
    dims_of = {form.resolve(n, "shapes"): d for n, d in (shapes or {}).items()}
    range_of = _by_name(ranges, form, "ranges", held)
    eps_of = _by_name(eps, form, "eps", held)
    specs = {}
    for name in form.names:
        examples = [g.batch[name] for g in seeds.groups]
        _check_values(name, examples, name in held or isinstance(range_of.get(name), list))
        specs[name] = _spec(
            name, examples, range_of.get(name), kind_of.get(name), name in held, dims_of.get(name), eps_of.get(name)
        )
    _check_lengths(specs, seeds)
    space = InputSpace(specs, constraint)
    empty = {n for n, s in specs.items() if not s.free and not any(g.batch[n].numel() for g in seeds.groups)}
    if all(s.name in empty for s in space.mutable):
        reasons = "; ".join(f"{s.name} {_unchanging(s, s.name in empty)}" for s in space)
        help = "give seeds with elements" if empty else "give --range, or fix fewer inputs"
        raise UsageError(f"no input can change ({reasons}): {help}")
    return space


def _unchanging(spec: InputSpec, empty: bool) -> str:
    if spec.fixed:
        return "is fixed"
    return (
        f"has no elements, its shape is {list(spec.shape)}"
        if empty
        else f"is one value, {spec.low.flatten()[0].item()}"
    )


def _by_name(value: Any, form: CallForm, what: str, held: frozenset[str]) -> dict[str, Any]:
    """A mapping by name; a single value speaks for every input that it can apply to."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {form.resolve(n, what): v for n, v in value.items()}
    return {n: value for n in form.names if n not in held}


def _check_values(name: str, examples: list[Tensor], inf_is_fine: bool) -> None:
    for x in examples:
        if not (x.is_floating_point() or x.is_complex()):
            continue
        bad = x.isnan() if inf_is_fine else ~x.isfinite()
        if bool(bad.any()):
            where = [int(i) for i in bad.nonzero()[0]]
            raise UsageError(
                f"the seeds hold {'NaN' if inf_is_fine else 'NaN or Inf'} in the input {name!r} (seed {where[0]}, "
                f"index {where[1:]}): give finite seeds, or fix the input if it is so by design"
            )


def _spec(
    name: str,
    examples: list[Tensor],
    given: Any,
    kind: str | None,
    fixed: bool,
    dims: Sequence[Any] | None,
    eps: float | None,
) -> InputSpec:
    dtype = examples[0].dtype
    if dtype.is_complex and not fixed:
        raise UsageError(f"the input {name!r} is complex, and complex inputs cannot be mutated yet: fix it")
    choices = _choices(name, given, dtype)
    kind = _kind(name, kind, choices is not None, dtype)
    if kind == "mask" and choices is None:
        choices = torch.tensor([0, 1]).to(dtype)
    low, high, source = _range(name, examples, given if choices is None else None, choices, kind, dtype)
    shape = tuple(examples[0].shape[1:])
    if kind in ("onehot", "simplex", "unit", "boxes") and (not shape or (kind == "boxes" and shape[-1] != 4)):
        need = "a last axis of length 4" if kind == "boxes" else "a last axis"
        raise UsageError(f"the input {name!r} of kind {kind} needs {need}, but one candidate has shape {shape}")
    if not fixed:
        _check_inside(name, examples, low, high, choices, kind, source)
    if eps is not None and not (at_least(0, eps) and 0 < eps < float("inf")):
        raise UsageError(f"eps for {name!r} is {eps!r}, but it is the radius of a ball: give a positive number")
    fixed = fixed or (dtype == torch.bool and eps is not None and eps < 1)  # the other value is 1 away
    return InputSpec(
        name=name,
        shape=shape,
        dtype=dtype,
        low=low,
        high=high,
        kind=kind,
        choices=choices,
        fixed=fixed,
        dims=_dims(name, dims, shape),
        eps=None if fixed else eps,
        source=source,
    )


def _kind(name: str, kind: str | None, has_choices: bool, dtype: torch.dtype) -> str:
    if kind is None:
        if dtype == torch.bool:
            return "bool"
        return "choice" if has_choices else "real" if dtype.is_floating_point or dtype.is_complex else "integer"
    kind = ALIASES.get(kind.lower(), kind.lower())
    if kind not in KINDS:
        raise UsageError(f"the input {name!r} has the kind {kind!r}, but kinds are {', '.join(KINDS)}: choose one")
    if kind in ("simplex", "unit", "real") and not dtype.is_floating_point:
        raise UsageError(
            f"the input {name!r} is {dtype}, but the kind {kind} needs a floating dtype: convert the seeds"
        )
    if kind == "choice" and not has_choices:
        raise UsageError(f"the input {name!r} has the kind choice but no choices: give them as a list in ranges")
    return kind


def _choices(name: str, given: Any, dtype: torch.dtype) -> Tensor | None:
    if not isinstance(given, list):
        return None
    if not given:
        raise UsageError(f"the list of choices for {name!r} is empty: give at least one value")
    values = torch.tensor(given, dtype=torch.float64 if dtype.is_floating_point else None)
    held_by(dtype, f"the list of choices for {name!r}", values)
    values = values.to(dtype)
    return values.unique()  # type: ignore[no-any-return]


def held_by(dtype: torch.dtype, what: str, values: Tensor) -> None:
    """Raises ``UsageError`` where a finite number is one that a floating dtype cannot hold; an infinite end of a range
    asks for the dtype's own, and integers are cut off at theirs."""
    if not dtype.is_floating_point or not values.is_floating_point():
        return
    most = torch.finfo(dtype).max
    beyond = values[values.isfinite() & (values.abs() > most)]
    if beyond.numel():
        raise UsageError(
            f"{what} holds {float(beyond.flatten()[0]):g}, but {str(dtype).removeprefix('torch.')} holds "
            f"-{most:.6g}..{most:.6g}: give numbers within it"
        )


def _range(
    name: str, examples: list[Tensor], given: Any, choices: Tensor | None, kind: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, str]:
    if dtype == torch.bool:
        return torch.tensor(False), torch.tensor(True), "dtype"
    if choices is not None:
        return choices.min(), choices.max(), "choices"
    if given is not None:
        return (*_given_range(name, given, dtype), "given")
    if kind in ("onehot", "simplex"):
        return torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype), "kind"
    if kind == "unit":
        return -torch.ones((), dtype=dtype), torch.ones((), dtype=dtype), "kind"
    full = [x for x in examples if x.numel()]
    if not full or dtype.is_complex:
        return torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype), "seeds"
    return torch.stack([x.min() for x in full]).min().cpu(), torch.stack([x.max() for x in full]).max().cpu(), "seeds"


def _given_range(name: str, given: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    try:
        low, high = given
        wide = [torch.as_tensor(v, dtype=torch.float64 if dtype.is_floating_point else None) for v in (low, high)]
    except (TypeError, ValueError):
        raise UsageError(f"the range of {name!r} is {given!r}, but a pair (low, high) is expected") from None
    if any(bool(w.isnan().any()) for w in wide):
        raise UsageError(f"the range of {name!r} holds NaN: give two numbers")
    if bool((wide[0] > wide[1]).any()):
        raise UsageError(f"the range of {name!r} is {low}..{high}, and its low end is above its high end: swap them")
    for w in wide:
        held_by(dtype, f"the range of {name!r}", w)
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    wide = [w.clamp(info.min, info.max) for w in wide]
    if not dtype.is_floating_point:
        wide = [
            w if not w.is_floating_point() else w.double().ceil() if i == 0 else w.double().floor()
            for i, w in enumerate(wide)
        ]
    return wide[0].to(dtype), wide[1].to(dtype)


def _check_inside(
    name: str, examples: list[Tensor], low: Tensor, high: Tensor, choices: Tensor | None, kind: str, source: str
) -> None:
    spec = InputSpec(name, tuple(examples[0].shape[1:]), examples[0].dtype, low, high, kind, choices)
    for x in examples:
        ok = KINDS[kind].legal(x.cpu(), spec)
        if not bool(ok.all()):
            row = int((~ok).nonzero()[0])
            seen = f"{x[row].min().item():.6g}..{x[row].max().item():.6g}" if x[row].numel() else "nothing"
            legal = f"choices {choices.tolist()}" if choices is not None else f"range {_show(low)}..{_show(high)}"
            raise UsageError(
                f"seed {row} is not legal for the input {name!r}: it holds {seen}, but the {legal} (kind {kind}) "
                "is expected: widen the range or correct the seed"
            )


def _show(bound: Tensor) -> str:
    return f"{bound.item():.6g}" if bound.numel() == 1 else f"<{tuple(bound.shape)} tensor>"


_DIM = re.compile(r"(?:(\d+)\s*<=\s*)?([A-Za-z_]\w*)(?:\s*>=\s*(\d+))?(?:\s*<=\s*(\d+))?")


def listed(dims: Sequence[Any] | str) -> list[Any]:
    """The axes one by one, also of a text as people write shapes: ``"(n, 3)"``."""
    if not isinstance(dims, str):
        return list(dims)
    words = [w.strip() for w in dims.strip().strip("()").split(",") if w.strip()]
    return [int(w) if w.isdigit() else w for w in words]


def _dims(name: str, dims: Sequence[Any] | str | None, shape: tuple[int, ...]) -> tuple[int | FreeDim, ...]:
    """``("n", 3)`` or ``"(n, 3)"``, with bounds if wanted: ``"n>=0"``, ``"n<=64"``, ``"2<=n<=64"``."""
    if dims is None:
        return ()
    dims = listed(dims)
    if len(dims) != len(shape):
        raise UsageError(f"shapes gives {len(dims)} dimensions for {name!r}, but one candidate has shape {shape}")
    parsed: list[int | FreeDim] = []
    for want, have in zip(dims, shape, strict=True):
        if isinstance(want, int):
            if want != have:
                raise UsageError(f"shapes says {want} for a dimension of {name!r} that is {have} in the seeds")
            parsed.append(want)
            continue
        match = _DIM.fullmatch(str(want).strip())
        if match is None:
            raise UsageError(f"the dimension {want!r} of {name!r} is not understood: write n, n>=0, n<=64 or 2<=n<=64")
        low = match[1] or match[3]
        parsed.append(FreeDim(match[2], int(low) if low else 1, int(match[4]) if match[4] else None))
    return tuple(parsed)


def _check_lengths(specs: Mapping[str, InputSpec], seeds: Seeds) -> None:
    """Every seed keeps to the dimensions that ``shapes`` states, and inputs that share a name agree in length."""
    for group in seeds.groups:
        lengths: dict[str, tuple[int, str]] = {}
        for name, spec in specs.items():
            for dim, have in zip(spec.dims, group.batch[name].shape[1:], strict=False):
                if isinstance(dim, int):
                    if dim != have:
                        raise UsageError(f"shapes says {dim} for a dimension of {name!r} that is {have} in the seeds")
                    continue
                if have < dim.low or (dim.high is not None and have > dim.high):
                    raise UsageError(
                        f"seed {group.index[0]} has {dim.name} = {have} in {name!r}, outside the bounds that shapes "
                        "states: widen them"
                    )
                length, other = lengths.setdefault(dim.name, (have, name))
                if length != have:
                    raise UsageError(
                        f"shapes calls a dimension of {other!r} and one of {name!r} {dim.name}, but in seed "
                        f"{group.index[0]} they are {length} and {have}: give them two names"
                    )
