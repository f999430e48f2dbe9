"""Warnings from one ordinary run, before any search: patterns that are known to fail sooner or later.

    for line in static_warnings(model, x): print(line)

Nothing here says that a failure is reachable; a search does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.advice.calls import TorchCall, Trail
from nnfuzz.advice.graph_words import in_graph_terms
from nnfuzz.advice.patching import Mode
from nnfuzz.advice.roots import is_square
from nnfuzz.probe.first_bad import call, eager
from nnfuzz.probe.modules import (
    ModuleStack,
    Program,
    restored_buffers,
    restored_gradients,
    restored_random_state,
)
from nnfuzz.probe.sites import Locator

Rule = Callable[[TorchCall, Trail], str | None]

_GUARDS = frozenset({"add", "clamp", "clamp_min", "maximum", "sub"})
_SINGULAR = frozenset({"rsqrt", "reciprocal", "log", "log2", "log10", "sqrt"})
_LATE = frozenset({"minimum", "maximum", "clamp", "clamp_min", "clamp_max", "where", "nan_to_num"})
_NONNEGATIVE = frozenset({
    "relu", "relu6", "exp", "softmax", "sigmoid", "abs", "square", "softplus", "vector_norm", "norm", "var", "std",
})  # fmt: skip
_UNBOUNDED = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "einsum", "square"})
_DEPTH = 8  # calls between an exp and the layer that feeds it


def static_warnings(model: Callable[..., Any], candidate: Any) -> list[str]:
    """What looks dangerous in one run of `model` on a candidate: a tensor, a tuple of arguments, a dict of keyword
    arguments, or a pair (arguments, keyword arguments). One sentence each, with its place, in execution order."""
    args, kwargs = _call_of(candidate)
    program = Program.of(model, (*args, *kwargs.values()))
    modules = ModuleStack(program)
    mode = _Scan(Locator(call.__code__, program.graphs, False), modules, ())
    with ExitStack() as stack:
        stack.enter_context(restored_random_state())
        stack.enter_context(restored_buffers(program))
        stack.enter_context(restored_gradients(program))
        stack.enter_context(eager())
        stack.enter_context(modules.entered())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(mode)
        call(model, args, kwargs)
    return list(mode.warnings)


def _call_of(candidate: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(candidate, Mapping):
        return (), candidate
    if not isinstance(candidate, list | tuple):
        return (candidate,), {}
    if len(candidate) == 2 and isinstance(candidate[0], list | tuple) and isinstance(candidate[1], Mapping):
        return tuple(candidate[0]), candidate[1]
    return tuple(candidate), {}


class _Scan(Mode):
    """Asks every rule at every call; one warning a rule and place."""

    def __init__(self, locator: Locator, modules: ModuleStack, repairs: Any) -> None:
        super().__init__(locator, modules, repairs)
        self.warnings: dict[str, None] = {}

    def answer(self, made: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for rule in RULES:
            said = rule(made, self.trail)
            if said is not None:
                told = in_graph_terms(said) if made.place.node else said
                self.warnings.setdefault(f"{self._where(made)}: {told}")
        return made.func(*args, **kwargs)

    def _where(self, made: TorchCall) -> str:
        place, module = made.place, self._modules.current
        if place.node:
            return f"{place.node} (node {module})"
        if place.file is None:
            return module or made.name
        return f"{Path(place.file).name}:{place.line}{f' [{module}]' if module else ''}"


# ------------------------------------------------------------------------------------------------- rules


def _constants(made: TorchCall) -> Iterator[float]:
    values = (*made.args[1:], *(v for k, v in made.kwargs.items() if k in ("min", "max", "other")))
    yield from (float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool))


def lost_constant(made: TorchCall, _: Trail) -> str | None:
    """An eps that is 0 in the dtype, or a bound below 1 that rounds to 1."""
    x = made.first
    if made.name not in _GUARDS or x is None or x.is_complex():
        return None
    for c in _constants(made):
        if c != 0 and float(torch.tensor(c, dtype=x.dtype)) == 0:
            enough = _usable(x.dtype)
            return f"the constant {c:g} is 0 in {_short(x.dtype)}, so it guards nothing: use {enough:g} or more"
        if made.name != "sub" and 0 < abs(c) < 1 and abs(float(torch.tensor(c, dtype=x.dtype))) == 1:
            one = -1 if c < 0 else 1
            return f"the bound {c!r} rounds to {one} in {_short(x.dtype)}: leave 1 by {_eps(x.dtype):g}"
    return None


def log_of_softmax(made: TorchCall, trail: Trail) -> str | None:
    """log(softmax(z)), log(sigmoid(z))."""
    inner = trail.through(made.first) if made.name in ("log", "log2", "log10") else None
    while inner is not None and inner.name in ("relu", "sub"):  # log(relu(p)), log(1 - p)
        inner = trail.through(inner.arg(1, "other") if inner.name == "sub" else inner.first)
    if inner is None or inner.name not in ("softmax", "sigmoid"):
        return None
    stable = "log_softmax" if inner.name == "softmax" else "logsigmoid"
    return f"log of a {inner.name} that can round to 0: {stable} of the logits cannot"


def eps_outside(made: TorchCall, trail: Trail) -> str | None:
    """sqrt(x) + eps."""
    small = next((c for c in _constants(made) if 0 < c < 1e-2), None) if made.name == "add" else None
    if small is None or trail.maker(made.first, "sqrt") is None:
        return None
    return f"sqrt(x) + {small:g} leaves the gradient of the root infinite at 0: put it inside, sqrt(x + {small:g})"


def fractional_power(made: TorchCall, trail: Trail) -> str | None:
    """x ** 0.3 with x not known to be above 0."""
    if made.name != "pow" or made.first is None:
        return None
    power = made.arg(1, "exponent")
    if not isinstance(power, float) or power == int(power):
        return None
    base = trail.through(made.first)
    low = base.arg(1, "min") if base is not None and base.name in ("clamp", "clamp_min") else None
    if isinstance(low, int | float) and low > 0:
        return None
    if base is not None and base.name in _NONNEGATIVE:
        return f"power {power:g} of something that can be 0: its gradient is infinite there" if power < 1 else None
    return f"power {power:g} of something that can be negative gives NaN: clamp the base above 0"


def open_exp(made: TorchCall, trail: Trail) -> str | None:
    """exp of a layer's output that nothing bounds."""
    x = made.first
    if made.name not in ("exp", "exp2", "expm1") or x is None:
        return None
    source = _unbounded(x, trail)
    if source is None:
        return None
    return f"exp of a {source} output that nothing bounds: it overflows above {_log(torch.finfo(x.dtype).max):.1f}"


def _unbounded(t: Any, trail: Trail) -> str | None:
    for _ in range(_DEPTH):
        made = trail.through(t)
        if made is None:
            return None
        if made.name in _UNBOUNDED:
            return made.name
        if made.name in ("add", "mul", "div") and not isinstance(made.arg(1, "other"), Tensor):
            t = made.arg(0)
        elif made.name == "add":
            t = made.arg(0) if trail.through(made.arg(0)) is not None else made.arg(1, "other")
        elif made.name in ("relu", "leaky_relu", "gelu", "silu", "softplus", "neg"):
            t = made.first
        else:
            return None
    return None


def late_guard(made: TorchCall, trail: Trail) -> str | None:
    """minimum(rsqrt(x), c): the value is guarded, the gradient is not."""
    if made.name not in _LATE:
        return None
    for part in made.args:
        inner = trail.maker(part) if isinstance(part, Tensor) else None
        if inner is not None and inner.name in _SINGULAR and not _guarded(inner, trail):
            return f"{made.name} comes after {inner.name}, too late for the gradient at its edge: guard the operand"
    return None


def _guarded(made: TorchCall, trail: Trail) -> bool:
    operand = trail.through(made.first)
    return operand is not None and operand.name in ("clamp", "clamp_min", "add", "where", "maximum", "softplus", "exp")


def cancelling_variance(made: TorchCall, trail: Trail) -> str | None:
    """E[x²] − E[x]²."""
    if made.name != "sub":
        return None
    first, second = trail.through(made.arg(0), "mean"), trail.through(made.arg(1, "other"))
    if first is None or second is None or not is_square(second) or not is_square(trail.maker(first.first)):
        return None
    return "E[x^2] - E[x]^2 cancels for nearly constant x and can be negative: use mean((x - mean(x))^2)"


RULES: tuple[Rule, ...] = (
    lost_constant, log_of_softmax, eps_outside, fractional_power, open_exp, late_guard, cancelling_variance,
)  # fmt: skip
"""Each looks at one call and says what is wrong with it, or nothing."""


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _usable(dtype: torch.dtype) -> float:
    """A round number that the dtype holds with all its digits."""
    return 1e-4 if dtype is torch.float16 else 1e-12


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def _log(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float64).log())
