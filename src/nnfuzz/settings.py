"""Everything a user may ask of a run, in one place; JSON-able, so that a run directory can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

import torch

from nnfuzz.errors import UsageError

MOST_SEED = 1 << 62
"""Generators take 63 bits, and a few small numbers are added."""
LIVE = ("constraint", "objective", "compare")
"""Settings that may be functions; a function is remembered by its name only and must be given again on resume."""


@dataclass
class Settings:
    """See ``nnfuzz.find_nans``, ``diff``, ``fuzz`` and ``check_rows`` for what each means."""

    job: str = "nan"
    ranges: Any = None
    kinds: Mapping[str, str] | None = None
    fixed: Iterable[str | int] = ()
    shapes: Mapping[str, Sequence[Any]] | None = None
    constraint: Callable[..., Any] | str | None = None
    eps: float | Mapping[str, float] | None = None
    unit: str = "auto"
    max_inputs: int | None = None
    max_seconds: float | None = None
    stop_on_first: bool = False
    seed: int = 0
    device: str | None = None
    watch: str = "outputs"
    phase: str = "auto"
    gradients: bool = True
    coverage: str = "auto"
    layers: Sequence[str] | None = None
    radius: float | None = None
    mutators: Sequence[str] | None = None
    schedule: str = "mix"
    batch_size: int | None = None
    train: bool = False
    flush_denormal: bool = False
    max_corpus: int = 100_000
    max_corpus_bytes: int = 2 << 30
    max_shrink: int = 4000
    as_: str | None = None
    match: Mapping[str, str] | None = None
    compare: Any = "argmax"
    ties: bool = False
    covered: str = "a"
    least: bool = False
    sensitivity: bool = False
    objective: Any = None
    tolerance: tuple[float, float] = (1e-5, 1e-4)
    context: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """One name alone is meant as such, and an iterator is read once only."""
        self.fixed = (self.fixed,) if isinstance(self.fixed, str) else tuple(self.fixed)

    def check(self) -> None:
        """Values that no later part looks at. Raises ``UsageError``."""
        for name, legal in _CHOICES.items():
            if getattr(self, name) not in legal:
                raise UsageError(f"{name} is {getattr(self, name)!r}, but it is one of {', '.join(legal)}")
        for name in ("max_inputs", "max_seconds", "batch_size"):
            check_limit(name, getattr(self, name))
        if self.radius is not None and not at_least(0, self.radius):
            raise UsageError(f"radius is {self.radius!r}, but it is a distance: give a number from 0 up")
        if not isinstance(self.seed, int) or not 0 <= self.seed <= MOST_SEED:
            raise UsageError(f"seed is {self.seed!r}, but it is a whole number from 0 to 2^62")
        for name in ("max_corpus", "max_corpus_bytes"):
            if not at_least(64, getattr(self, name)):
                raise UsageError(f"{name} is {getattr(self, name)!r}, but a corpus needs room: give at least 64")
        if not at_least(0, self.max_shrink):
            raise UsageError(f"max_shrink is {self.max_shrink!r}, but it is a number of inputs: give one from 0 up")
        pair = self.tolerance if isinstance(self.tolerance, tuple | list) else ()
        if len(pair) != 2 or not all(at_least(0, part) for part in pair):
            raise UsageError(
                f"tolerance is {self.tolerance!r}, but it is a pair of numbers from 0 up: give (absolute, relative)"
            )

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("ranges", "context")}
        for name in LIVE:
            if callable(data[name]):
                data[name] = {"function": getattr(data[name], "__name__", "function")}
        data["fixed"] = list(self.fixed)
        data["ranges"] = _ranges_to_json(self.ranges)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any], **live: Any) -> Settings:
        """``live``: functions and loaded objects in place of what was remembered."""
        known = {f.name for f in fields(Settings)}
        values = {n: v for n, v in data.items() if n in known} | {n: v for n, v in live.items() if v is not None}
        for name in LIVE:
            if isinstance(values.get(name), dict):
                raise UsageError(
                    f"the run used the {name} {values[name]['function']!r}, which was given in Python: "
                    f"pass {name}= again to resume it"
                )
        values["ranges"] = _ranges_from_json(values.get("ranges"))
        values["tolerance"] = tuple(values.get("tolerance", (1e-5, 1e-4)))
        return Settings(**values)


def at_least(least: float, value: Any) -> bool:
    """Whether it is a number, and no smaller; NaN and text are not."""
    return isinstance(value, Real) and bool(value >= least)  # type: ignore[operator]


def check_limit(name: str, value: Any) -> None:
    """Raises ``UsageError`` unless it is a positive number or None."""
    if value is not None and not (at_least(0, value) and value != 0):
        raise UsageError(f"{name} is {value!r}, but it is a limit: give a positive number, or leave it out")


_CHOICES = {
    "unit": ("auto", "sample", "batch"),
    "watch": ("outputs", "layers", "internal"),
    "phase": ("auto", "forward", "backward", "both"),
    "covered": ("a", "b", "both"),
    "schedule": ("mix", "uniform", "recency", "frontier"),
}


def _ranges_to_json(ranges: Any) -> Any:
    if ranges is None:
        return None
    if isinstance(ranges, Mapping):
        return {"by name": {str(n): _ranges_to_json(v) for n, v in ranges.items()}}
    if isinstance(ranges, list):
        return {"choices": ranges}
    return {"pair": [torch.as_tensor(v).tolist() for v in ranges]}


def _ranges_from_json(data: Any) -> Any:
    if data is None:
        return None
    ((tag, value),) = data.items()
    if tag == "by name":
        return {n: _ranges_from_json(v) for n, v in value.items()}
    if tag == "choices":
        return value
    return tuple(torch.tensor(v, dtype=torch.float64) if isinstance(v, list) else v for v in value)
