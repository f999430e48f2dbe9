"""Half precision: islands of float32, and results cut off at the largest number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add, is_half, off_zero
from nnfuzz.probe.first_bad import BadOp

_HALVES = (torch.float16, torch.bfloat16)
_DEPTH = 12  # operations that an island reaches back


def _wide(t: Any, here: Here, depth: int) -> Any:
    """A half-precision tensor computed again in float32, as far back as the trail and the depth lead."""
    if isinstance(t, list | tuple):
        return type(t)(_wide(part, here, depth) for part in t)
    if not isinstance(t, Tensor) or t.dtype not in _HALVES:
        return t
    made = here.trail.maker(t)
    if made is None or depth <= 0 or made.name in ("half", "bfloat16", "to", "type", "type_as"):
        return t.float()
    try:
        out = _in_float32(made, here, depth)
    except (RuntimeError, TypeError):  # it does not work on mixed precision: the island ends here
        return t.float()
    return out if isinstance(out, Tensor) and out.shape == t.shape else t.float()


def _in_float32(made: TorchCall, here: Here, depth: int) -> Any:
    args = tuple(_wide(a, here, depth - 1) for a in made.args)
    kwargs = {k: _wide(v, here, depth - 1) for k, v in made.kwargs.items()}
    kwargs = {k: torch.float32 if v in _HALVES else v for k, v in kwargs.items()}
    return TorchCall(made.name, made.func, args, kwargs, made.place, swapped=made.swapped).on(args)


def _island(call: TorchCall, here: Here) -> Any:
    """The operation and what led to it in float32, the result cast back."""
    return _cast_back(_in_float32(call, here, _DEPTH), call)


def _guarded_island(call: TorchCall, here: Here) -> Any:
    """A quotient as an island, its denominator kept off zero where float32 can hold that."""
    args = tuple(_wide(a, here, _DEPTH) for a in call.args)
    if call.name != "div" or len(args) < 2 or not isinstance(args[1], Tensor) or args[1].dtype is not torch.float32:
        return None
    made = TorchCall(call.name, call.func, args, call.kwargs, call.place, swapped=call.swapped)
    return _cast_back(made.on((args[0], off_zero(args[1], here.eps), *args[2:])), call)


def _cast_back(out: Any, call: TorchCall) -> Any:
    dtype = next(
        (a.dtype for a in (*call.args, *call.kwargs.values()) if isinstance(a, Tensor) and a.dtype in _HALVES), None
    )
    if dtype is None:
        return None
    return tree_map(lambda t: t.to(dtype) if isinstance(t, Tensor) and t.dtype is torch.float32 else t, out)


def _onward(call: TorchCall, here: Here) -> Any:
    """The operation in float32, and the result left there."""
    out = _in_float32(call, here, 1)
    return out if isinstance(out, Tensor) and out.dtype is torch.float32 else None


def _saturated(call: TorchCall, _: Here) -> Any:
    out = call.func(*call.args, **call.kwargs)
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return None
    top = torch.finfo(out.dtype).max
    return out.clamp(-top, top)


def _overflow(bad: BadOp) -> bool:
    return bad.site.phase == "forward" and bad.symptom in ("+inf", "-inf")


_ANY = (
    "div", "reciprocal", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "exp", "softmax", "log_softmax",
    "std", "var", "vector_norm", "norm", "cosine_similarity", "layer_norm", "rms_norm", "group_norm",
    "batch_norm", "atan2",
)  # fmt: skip
_BIG = (
    "mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "dot", "mv", "convolution", "sum", "mul", "add", "sub", "pow",
    "square", "cumsum", "prod", "cumprod", "exp", "div", "addcmul", "vector_norm", "norm", "mean", "to", "var", "std",
)  # fmt: skip
add(Remedy(
    "half.island", _ANY, "precision",
    "compute this in float32 together with what leads to it, and cast the result back: the constants and squares here "
    "are too small for half precision",
    _island, applies=is_half,
    code="compute the line in float32: call it on x.float(), then cast the result with .to(x.dtype)",
))  # fmt: skip
add(Remedy(
    "half.island_guard", ("div",), "precision",
    "compute the quotient and what leads to it in float32, with its denominator kept at {eps} or more there",
    _guarded_island, applies=is_half, eps=lambda _: (1e-12,),
    code="in float32: {0} / {1}.clamp(min={eps}), then .to(x.dtype)",
))  # fmt: skip
add(Remedy(
    "half.onward", _BIG, "precision",
    "keep this layer and what follows in float32: its result is beyond the largest number of the dtype",
    _onward, code="call {op} on float32 operands (x.float()) and leave the result in float32",
    applies=lambda bad: is_half(bad) and _overflow(bad),
))  # fmt: skip
add(Remedy(
    "saturate", _BIG, "saturate", "clamp the result to the finite numbers of the dtype (or use bfloat16)",
    _saturated, code="y.clamp(-torch.finfo(y.dtype).max, torch.finfo(y.dtype).max), y being the result here",
    applies=_overflow,
))  # fmt: skip
