"""Calls of torch functions as the program made them, above autograd, and which call made which tensor.

`probe` watches ATen operations below autograd: nothing done there can change a gradient. A repair must, so it acts one
floor higher, where the user's own calls are.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nnfuzz.probe.sites import Place, Site, plain_name

_NAMES = {
    "true_divide": "div", "divide": "div", "truediv": "div", "itruediv": "div", "idiv": "div", "rdiv": "rdiv",
    "multiply": "mul", "rmul": "mul", "imul": "mul", "radd": "add", "iadd": "add", "subtract": "sub", "isub": "sub",
    "rsub": "rsub", "ipow": "pow", "float_power": "pow", "negative": "neg", "absolute": "abs", "clip": "clamp",
    "special_expit": "sigmoid", "special_log1p": "log1p", "special_expm1": "expm1", "special_logit": "logit",
    "linalg_norm": "vector_norm", "frobenius_norm": "vector_norm", "arccos": "acos", "arcsin": "asin",
    "arctanh": "atanh", "arccosh": "acosh", "arctan2": "atan2", "linalg_inv": "inv", "inverse": "inv",
    "linalg_solve": "solve", "linalg_cholesky": "cholesky", "linalg_eigvalsh": "eigh", "linalg_matmul": "matmul",
    "special_log_softmax": "log_softmax", "special_softmax": "softmax",
}  # fmt: skip
_SWAPPED = {"rsub": "sub", "rdiv": "div"}


@cache
def call_name(name: str) -> str:
    """Plain name of a torch function: "__truediv__" → "div", "log_" → "log", "special_erfinv" → "erfinv"."""
    stripped = name.strip("_")
    return _NAMES.get(stripped) or _NAMES.get(plain_name(stripped), plain_name(stripped))


@dataclass(eq=False)
class TorchCall:
    """One call: its plain name, the function itself, operands in the order of the operation (never reflected).

    sites: the failing sites at which it stands.
    watched, moved: how far, at most, the elements of its operands were moved by what answered it, if that is watched.
    """

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Place
    sites: frozenset[Site] = frozenset()
    swapped: bool = False
    watched: bool = False
    moved: float = 0.0

    @staticmethod
    def of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> TorchCall:
        own = (
            func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else getattr(func, "__name__", "?")
        )
        name = call_name(own)
        swapped = name in _SWAPPED and len(args) >= 2
        if swapped:
            name, args = _SWAPPED[name], (args[1], args[0], *args[2:])
        return TorchCall(name, func, args, kwargs, place, swapped=swapped)

    def arg(self, position: int, *names: str, default: Any = None) -> Any:
        """The argument at a position, or under one of its names."""
        if position < len(self.args):
            return self.args[position]
        return next((self.kwargs[n] for n in names if n in self.kwargs), default)

    @property
    def first(self) -> Tensor | None:
        """The first operand, when it is a floating tensor."""
        value = self.arg(0, "input", "self")
        return value if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) else None

    def again(self, first: Any) -> Any:
        """The same call with another first operand."""
        if not self.args:
            name = "input" if "input" in self.kwargs else "self"
            self.note_move(self.kwargs.get(name), first)
            return self.func(**{**self.kwargs, name: first})
        return self.on((first, *self.args[1:]))

    def on(self, args: tuple[Any, ...]) -> Any:
        """The same call on other positional operands."""
        for old, new in zip(self.args, args, strict=False):
            self.note_move(old, new)
        if self.swapped:
            args = (args[1], args[0], *args[2:])
        return self.func(*args, **self.kwargs)

    def note_move(self, old: Any, new: Any) -> None:
        """Takes down how far an operand is from the one that the program gave; infinitely where that cannot be told."""
        if not self.watched or old is new or not isinstance(old, Tensor) or not isinstance(new, Tensor):
            return
        try:
            a, b = old.detach(), new.detach()
            far = torch.where(a == b, 0.0, (a - b).abs()).max().item() if a.numel() else 0.0
        except RuntimeError:  # another shape, or a tensor that a function transform holds
            far = float("inf")
        self.moved = max(self.moved, float("inf") if far != far else far)


KEEP_BYTES = 1 << 30
"""Results that a trail holds on to."""


class Trail:
    """Which call made which tensor of this run. Tensors are kept alive, so that an id stays theirs."""

    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self._made: dict[int, tuple[Tensor, TorchCall]] = {}
        self._room = keep_bytes

    def note(self, out: Any, call: TorchCall) -> None:
        """In-place calls end a trail: what their operand was is gone."""
        if not isinstance(out, Tensor):
            return
        if any(out is a for a in call.args):
            self._made.pop(id(out), None)
        else:
            self._made[id(out)] = (out, call)
            self._room -= out.numel() * out.element_size()
            while self._room < 0 and len(self._made) > 1:  # oldest first: a shorter trail is better than no memory
                old, _ = self._made.pop(next(iter(self._made)))
                self._room += old.numel() * old.element_size()

    def maker(self, t: Any, *names: str) -> TorchCall | None:
        """The call that made `t`, if it has one of these names (any, if none is given)."""
        found = self._made.get(id(t))
        if found is None or (names and found[1].name not in names):
            return None
        return found[1]

    def through(self, t: Any, *names: str) -> TorchCall | None:
        """The same, looking through casts, reshapes and detached or scaled copies that keep each element's value."""
        call = self.maker(t)
        while call is not None and call.name in VIEWS and (not names or call.name not in names):
            call = self.maker(call.first)
        return call if call is not None and (not names or call.name in names) else None


VIEWS = frozenset({
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "expand", "expand_as", "view_as", "reshape_as",
    "transpose", "permute", "t", "contiguous", "clone", "float", "double", "half", "bfloat16", "to", "type_as",
    "getitem", "select", "index_select", "gather", "narrow", "broadcast_to", "movedim", "swapaxes", "take_along_dim",
})  # fmt: skip
"""Calls that move elements about, or cast them, and change no value."""


# ------------------------------------------------------------------------------------ torch functions in Python


def _never(*_: Any) -> bool:
    return False


_CHECKS = (
    "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic",
)  # fmt: skip


@cache
def opened(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A torch function that is written in Python (`F.normalize`), without the question that would lead back to the
    mode; None for one that is not, or that asks in another way. Its own calls are then seen one by one."""
    if not isinstance(func, types.FunctionType) or not func.__globals__.get("__name__", "").startswith("torch"):
        return None
    blind = dict.fromkeys(_CHECKS, _never)
    copy = types.FunctionType(
        func.__code__, {**func.__globals__, **blind}, func.__name__, func.__defaults__, func.__closure__
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
