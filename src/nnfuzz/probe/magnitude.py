"""log|x| of tensors of a traced run, with a gradient that does not die when x underflows.

`log(softmax(z))` is the classic: the nearer a probability comes to 0, the less of its gradient is left, and at 1e-38
none. But the *logarithm* of the probability is known without it, `log_softmax(z)`, and its gradient is alive
everywhere. So a traced run remembers which operation made a tensor, and the logarithm is computed from that
operation's own operands, through softmax, sigmoid and exp and whatever multiplies, divides, roots, sums, slices or
reshapes their results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.probe.ops import OpFacts, facts

_DEPTH = 16  # operations between an exponential and the operand; programs met so far need at most 8


@dataclass(frozen=True)
class Magnitude:
    """value: log|x|, float32 or float64, x's shape. margin: same shape, <= 0 exactly where x is 0 in its own dtype.

    The margin is how far log|x| is above the level at which x becomes 0, by whichever way comes first.
    """

    value: Tensor
    margin: Tensor


class _LogAbs(torch.autograd.Function):
    """log|x| with a bounded gradient: 1/x overflows for subnormal x, and then everything before it is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = widened(x.abs())
        return torch.where(wide == 0, log_zero(x.dtype), wide.log())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        limit = math.sqrt(torch.finfo(x.dtype).max)
        unit = x.sgn() / x.abs() if x.is_complex() else 1 / widened(x)
        # At exactly 0 neither direction is better, and the edge is reached.
        slope = torch.where(x == 0, 0, grads[0] * unit)
        if not x.is_complex():
            slope = torch.nan_to_num(slope, nan=0.0).clamp(-limit, limit)
        return slope.to(x.dtype)


def log_zero(dtype: torch.dtype) -> float:
    """Logarithm of the largest number that rounds to 0: half the smallest subnormal (torch keeps subnormals)."""
    return math.log(torch.finfo(dtype).smallest_normal) + math.log(torch.finfo(dtype).eps) - math.log(2)


def log_max(dtype: torch.dtype) -> float:
    """Logarithm of the largest finite number."""
    return math.log(torch.finfo(dtype).max)


def log_below_one(dtype: torch.dtype) -> float:
    """log d, where 1 - d still rounds to 1: a quarter of eps."""
    return math.log(torch.finfo(dtype).eps / 4)


def widened(x: Tensor) -> Tensor:
    """At least float32: distances of half-precision operands would themselves overflow."""
    return x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x


def direct(x: Tensor) -> Magnitude:
    """Magnitude from the value alone."""
    value: Tensor = _LogAbs.apply(x)  # type: ignore[no-untyped-call]
    return Magnitude(value, value - log_zero(x.dtype))


@dataclass(frozen=True, slots=True)
class _Made:
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: tuple[int, ...]


class Provenance:
    """Which operation made which tensor, found again through the tensor's autograd node.

    A node's sequence number is fixed just before the operation reaches a dispatch mode, so numbering is identity.
    """

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}
        self._begun = False  # whether there has been an exponential: before it views lead to nothing

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], about: OpFacts) -> None:
        """Remember a call that is about to run and has a rule (see `follows`)."""
        if about.base in _SOURCES:
            self._begun = True
        elif not self._begun and (about.view or about.base in _PLUMBING):
            return
        tensors = [a for a in args if isinstance(a, Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            number = torch._C._autograd._get_sequence_nr() - 1
            # First come: an operation without a node of its own (the detach of a saved result) bears the last number.
            self._made.setdefault(number, _Made(func, args, kwargs, tuple([t._version for t in tensors])))

    def made(self, t: Tensor) -> _Made | None:
        """The call that made `t`, if its operands are still what they were."""
        node = t.grad_fn
        made = None if node is None else self._made.get(node._sequence_nr())
        if made is None:
            return None
        now = tuple([a._version for a in made.args if isinstance(a, Tensor)])
        return made if now == made.versions else None

    def magnitude(self, t: Tensor) -> Magnitude:
        """log|t| through an exponential if `t` comes from one, directly otherwise."""
        return self._through(t, _DEPTH) or direct(t.clone())

    def _through(self, t: Tensor, depth: int) -> Magnitude | None:
        made = self.made(t) if depth else None
        if made is None or t.is_complex():
            return None
        about = facts(made.func)
        if about.view or about.base in _PLUMBING:
            inner = self._through(made.args[0], depth - 1)
            if inner is None:
                return None
            rest = made.args[1:]
            return Magnitude(
                made.func(inner.value, *rest, **made.kwargs), made.func(inner.margin, *rest, **made.kwargs)
            )
        rule = _RULES.get(about.base)
        found = rule(self, t, made, depth - 1) if rule is not None else None
        return None if found is None else _consistent(t, found)

    def _either(self, a: Any, depth: int) -> tuple[Magnitude | None, bool]:
        """Magnitude of an operand that may be a number, and whether an exponential stands behind it."""
        if not isinstance(a, Tensor):
            if a == 0 or isinstance(a, complex):
                return None, False
            value = torch.tensor(math.log(abs(a)))
            return Magnitude(value, torch.tensor(math.inf)), False
        found = self._through(a, depth)
        known = found is not None
        return found or direct(widened(a.clone()) if a.is_floating_point() else a.float()), known


def _consistent(t: Tensor, m: Magnitude) -> Magnitude:
    """Shift the margin where rounding made it disagree with the tensor itself; the gradient stays."""
    zero = t.detach() == 0
    shift = torch.where(zero, (-m.margin).clamp(max=0), (1e-3 - m.margin).clamp(min=0)).detach()
    return Magnitude(m.value, m.margin + shift)


def _from_value(value: Tensor, dtype: torch.dtype) -> Magnitude:
    return Magnitude(value, value - log_zero(dtype))


def _operand(made: _Made) -> Tensor:
    x: Tensor = made.args[0]
    return widened(x.clone())


# ------------------------------------------------------------------------------------------------- the rules
# Each: (provenance, result, how it was made, depth left) -> Magnitude of the result, or None when nothing is gained.

Rule = Callable[[Provenance, Tensor, _Made, int], Magnitude | None]


def _softmax(_: Provenance, t: Tensor, made: _Made, __: int) -> Magnitude:
    return _from_value(F.log_softmax(_operand(made), made.args[1]), t.dtype)


def _sigmoid(_: Provenance, t: Tensor, made: _Made, __: int) -> Magnitude:
    return _from_value(F.logsigmoid(_operand(made)), t.dtype)


def _exp(_: Provenance, t: Tensor, made: _Made, __: int) -> Magnitude:
    scale = math.log(2) if facts(made.func).base == "exp2" else 1.0
    return _from_value(_operand(made) * scale, t.dtype)


def _product(p: Provenance, t: Tensor, made: _Made, depth: int) -> Magnitude | None:
    sign = -1 if facts(made.func).base == "div" else 1
    if facts(made.func).base == "div" and made.kwargs.get("rounding_mode") is not None:
        return None
    (a, a_known), (b, b_known) = p._either(made.args[0], depth), p._either(made.args[1], depth)
    if a is None or b is None or not (a_known or b_known):
        return None
    value = a.value + sign * b.value
    zero = torch.minimum(a.margin.expand_as(value), value - log_zero(t.dtype))
    return Magnitude(value, zero if sign < 0 else torch.minimum(zero, b.margin.expand_as(value)))


def _scaled(factor: Callable[[_Made], float]) -> Rule:
    def rule(p: Provenance, t: Tensor, made: _Made, depth: int) -> Magnitude | None:
        if not isinstance(made.args[0], Tensor):
            return None
        inner, k = p._through(made.args[0], depth), factor(made)
        if inner is None or k == 0:
            return None
        value = inner.value * k
        # A negative power of 0 is infinite, not 0: only positive ones hand a zero on.
        margin = value - log_zero(t.dtype)
        return Magnitude(value, torch.minimum(margin, inner.margin) if k > 0 else margin)

    return rule


def _exponent(made: _Made) -> float:
    return float(made.args[1]) if isinstance(made.args[1], float | int) else 0.0


def _sum(p: Provenance, t: Tensor, made: _Made, depth: int) -> Magnitude | None:
    x: Tensor = made.args[0]
    if bool((x.detach() < 0).any()) or (inner := p._through(x, depth)) is None:
        return None
    dims = list(made.args[1]) if len(made.args) > 1 and made.args[1] else list(range(x.dim()))
    keep = bool(made.args[2]) if len(made.args) > 2 else False
    if x.dim() == 0:
        return inner
    # A term that is exactly 0 must not be counted: its logarithm is far below the level where it became 0.
    level = torch.where(x.detach() == 0, inner.value.clamp(max=log_zero(x.dtype)), inner.value)
    value = torch.logsumexp(level, dims, keep)
    if facts(made.func).base == "mean":
        value = value - math.log(x.numel() / max(t.numel(), 1))
    return _from_value(value, t.dtype)


def _complement(p: Provenance, t: Tensor, made: _Made, _: int) -> Magnitude | None:
    """1 - sigmoid(z), 1 - softmax(z): zero where the probability rounds to 1, long before it would underflow."""
    probability, one = made.args[0], made.args[1]
    if facts(made.func).base == "sub":
        probability, one = one, probability
    if isinstance(one, Tensor):
        one = float(one) if one.numel() == 1 and not one.requires_grad else 0.0
    if not isinstance(probability, Tensor) or abs(one - 1) > torch.finfo(t.dtype).eps / 2 or len(made.args) > 2:
        return None
    value = _log_complement(p, probability, _DEPTH)
    return None if value is None else Magnitude(value, value - log_below_one(t.dtype))


def _log_complement(p: Provenance, t: Tensor, depth: int) -> Tensor | None:
    """log(1 - t) where t is a sigmoid or softmax, reshaped or sliced or not."""
    made = p.made(t) if depth else None
    if made is None:
        return None
    about = facts(made.func)
    if about.view or about.base in _PLUMBING:
        inner = _log_complement(p, made.args[0], depth - 1)
        return None if inner is None else made.func(inner, *made.args[1:], **made.kwargs)
    if about.base == "sigmoid":
        return F.logsigmoid(-_operand(made))
    return _log_rest(_operand(made), made.args[1]) if about.base == "_softmax" else None


def _log_rest(z: Tensor, dim: int) -> Tensor:
    """log(1 - softmax(z)) with full precision for the largest entry, whose complement cancels."""
    top = torch.zeros_like(z, dtype=torch.bool).scatter(dim, z.argmax(dim, keepdim=True), True)
    rest = z.masked_fill(top, -math.inf).logsumexp(dim, keepdim=True) - z.logsumexp(dim, keepdim=True)
    others = torch.log1p(-torch.softmax(z, dim).masked_fill(top, 0.0))
    return torch.where(top, rest, others)


_SOURCES = frozenset({"_softmax", "sigmoid", "exp", "exp2"})
_PLUMBING = frozenset({
    "clone", "index_select", "gather", "index", "repeat", "flip", "roll", "take_along_dim",
})  # fmt: skip
_RULES: dict[str, Rule] = {
    "_softmax": _softmax,
    "sigmoid": _sigmoid,
    "exp": _exp,
    "exp2": _exp,
    "mul": _product,
    "div": _product,
    "pow": _scaled(_exponent),
    "sqrt": _scaled(lambda _: 0.5),
    "rsqrt": _scaled(lambda _: -0.5),
    "reciprocal": _scaled(lambda _: -1.0),
    "square": _scaled(lambda _: 2.0),
    "neg": _scaled(lambda _: 1.0),
    "abs": _scaled(lambda _: 1.0),
    "_to_copy": _scaled(lambda _: 1.0),
    "sum": _sum,
    "mean": _sum,
    "rsub": _complement,
    "sub": _complement,
}


def follows(func: Any) -> bool:
    """Whether a call of `func` must be noted for magnitudes or for the catalogue's own patterns."""
    about = facts(func)
    if about.writes or about.base == "detach":
        return False
    return about.view or about.base in _PLUMBING or about.base in _RULES or about.base == "add"
