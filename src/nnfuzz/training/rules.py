"""What INPUTS says of one tensor of a batch: its role and what is legal for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from nnfuzz.errors import UsageError

Role = Literal["data", "label", "noise"]

_KNOWN = frozenset({"low", "high", "kind", "choices", "fixed", "role"})


@dataclass(frozen=True)
class Input:
    """What may be done with one tensor of the batch.

    role:      "data" is searched, "label" stays with its row, "noise" is drawn anew from the stream for every step.
    low, high: inclusive range, None where there is none. choices: all legal values, where they are few.
               Data with neither stays as it is drawn.
    """

    name: str
    role: Role
    low: float | None = None
    high: float | None = None
    choices: tuple[float, ...] = ()

    @property
    def ranged(self) -> bool:
        """Whether it is said what is legal."""
        return self.low is not None or bool(self.choices)

    def constants(self) -> tuple[float, ...]:
        """Legal values that a whole tensor may have: the choices, or zero and the ends of the range."""
        if self.low is None or self.high is None:
            return self.choices
        return tuple(dict.fromkeys(([0.0] if self.low <= 0 <= self.high else []) + [self.low, self.high]))

    def holds(self, value: Tensor) -> bool:
        """Whether all of a tensor is legal."""
        if self.low is not None and self.high is not None:
            return bool(((value >= self.low) & (value <= self.high)).all())
        return bool(torch.isin(value, torch.tensor(self.choices, dtype=value.dtype)).all()) if self.choices else False

    def drawn(self, like: Tensor, corners: bool, g: torch.Generator) -> Tensor:
        """Random legal values in the shape of ``like``: of the choices, or of the range evenly, or of its two ends."""
        noise = torch.rand(like.shape, generator=g, dtype=torch.float64)
        if self.low is None or self.high is None:
            table = torch.tensor(self.choices, dtype=torch.float64)
            value = table[(noise * len(table)).long().clamp(max=len(table) - 1)]
        elif corners:
            value = torch.where(noise < 0.5, self.low, self.high)
        elif like.is_floating_point():
            value = self.low + (self.high - self.low) * noise
        else:
            low, high = math.ceil(self.low), math.floor(self.high)
            value = (low + noise * (high - low + 1)).floor().clamp(low, high)
        return value.to(like.dtype).to(like.device)

    def movable(self, value: Tensor, noise: bool = False) -> bool:
        """Whether gradient steps may change it; noise, which has a range, only on request."""
        searched = self.role == "data" or (noise and self.role == "noise")
        return searched and self.low is not None and value.is_floating_point()


def read_input(told: str, name: str, rules: Any) -> Input:
    """``told``: what the user calls these rules."""
    if isinstance(rules, tuple | list) and len(rules) == 2:
        rules = {"low": rules[0], "high": rules[1]}
    if not isinstance(rules, Mapping):
        raise UsageError(f"{told} is {rules!r}, but must be a dict: write dict(low=0, high=1) or dict(fixed=True)")
    if unknown := sorted(map(str, set(rules) - _KNOWN)):
        raise UsageError(
            f"{told} has {', '.join(unknown)}, but only {', '.join(sorted(_KNOWN))} are known: correct the name"
        )
    low, high = _range(told, rules.get("low"), rules.get("high"))
    choices = _choices(told, rules.get("choices"))
    if choices and low is not None:
        raise UsageError(
            f"{told} has both a range and choices, but either says what is legal: keep low and high, or choices"
        )
    # A label may have a range; it still stays with its row. Discrete inputs have no gradient to follow.
    role: Any = rules.get("role") or ("label" if rules.get("fixed") or low is None else "data")
    if role not in ("data", "label", "noise"):
        raise UsageError(f"{told} has the role {role!r}, but data, label and noise are known: choose one")
    if rules.get("fixed") and role != "label":
        raise UsageError(
            f"{told} has fixed=True and the role {role!r}, but what is fixed stays with its row, as a label does: "
            "leave one of the two out"
        )
    return Input(name, role, low, high, choices)


def _range(told: str, low: Any, high: Any) -> tuple[float | None, float | None]:
    if (low is None) != (high is None):
        raise UsageError(f"{told} has only one of low and high, but a range needs both: give the other")
    if low is None:
        return None, None
    if not (_finite(low) and _finite(high)):
        raise UsageError(
            f"{told} has low {low!r} and high {high!r}, but both must be finite numbers: give the least and the "
            "greatest value that the data may have, or dict(role='data') for data that stays as it is drawn"
        )
    if not low < high:
        raise UsageError(f"{told} has low {low} and high {high}, but low must be below high: exchange them")
    return float(low), float(high)


def _choices(told: str, choices: Any) -> tuple[float, ...]:
    if choices is None:
        return ()
    if not isinstance(choices, list | tuple | range) or not choices or not all(map(_finite, choices)):
        raise UsageError(
            f"{told} has choices {choices!r}, but they are a list of numbers, one at least: write choices=[0, 1]"
        )
    return tuple(map(float, choices))


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
