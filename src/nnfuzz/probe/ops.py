"""Facts about ATen overloads that every observer needs, computed once per overload."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from nnfuzz.probe.sites import op_name

# Memory without contents, and bookkeeping: nothing that they return is a result.
_ALLOCATES = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize", "resize_as", "resize_as_", "set", "data_ptr", "is_pinned", "record_stream",
    "is_same_size", "sym_size", "sym_stride", "sym_numel", "lift_fresh",
})  # fmt: skip
# Operations that write their target without reading it: what stood there before does not matter.
_FILLS = frozenset({
    "copy", "fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential", "geometric",
    "log_normal", "cauchy", "eye",
})  # fmt: skip
# Operations with which people put an infinity somewhere on purpose: a mask, a starting value for a maximum.
_DESIGNS = frozenset({
    "full", "full_like", "new_full", "fill", "masked_fill", "scalar_tensor", "lift", "lift_fresh",
    "constant_pad_nd", "index_fill", "where", "masked_scatter", "scatter", "index_put", "put",
    "triu", "tril", "zeros", "zeros_like", "new_zeros", "arange", "detach", "clone", "copy", "to",
    "index_copy", "select_scatter", "slice_scatter",
})  # fmt: skip


# Views whose schema does not say so.
_ALIASES = frozenset({"_unsafe_view", "_reshape_alias", "lift"})


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What is fixed for an overload: see the field comments."""

    name: str  # plain name, see sites.op_name
    base: str  # ATen base name without a trailing underscore
    view: bool  # returns an alias and writes nothing
    allocates: bool
    pointwise: bool
    designs: bool  # an infinity among its scalar arguments, or copied by it, is deliberate
    fills: bool
    arguments: tuple[str, ...]
    writes: tuple[int, ...]  # positions of the arguments that it changes
    out: bool  # an `out=` overload: the previous contents of the target do not matter


@cache
def facts(func: Any) -> OpFacts:
    """Facts of `func`, a torch._ops.OpOverload."""
    schema = func._schema
    base = func.overloadpacket.__name__
    base = base.rstrip("_") if not base.startswith("__") else base
    writes = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)
    return OpFacts(
        name=op_name(func),
        base=base,
        view=(aliases and not writes) or base in _ALIASES,
        allocates=base in _ALLOCATES,
        pointwise=torch.Tag.pointwise in func.tags,
        designs=base in _DESIGNS,
        fills=base in _FILLS,
        arguments=tuple(a.name for a in schema.arguments),
        writes=writes,
        out=any(a.is_out for a in schema.arguments),
    )
