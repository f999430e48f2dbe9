"""Everything a user may ask of a text run; JSON-able, so that a run directory can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.settings import MOST_SEED
from nnfuzz.text.coverage import NAMES
from nnfuzz.text.models.base import MOST_NEW, Writing
from nnfuzz.text.models.copies import PRECISIONS

JOB = "text"
_WHOLE = (
    "max_new", "sample_seed", "max_prompt", "batch_size", "max_inputs", "max_written", "max_corpus", "max_shrink",
    "seed",
)  # fmt: skip
ALPHABETS = ("unicode", "seeds")


@dataclass
class TextSettings:
    """See ``nnfuzz.fuzz_text`` for what each means."""

    objectives: Any = ()
    kind: str | None = None
    as_: str | None = None
    max_new: int = 64
    temperature: float = 0.0
    sample_seed: int = 0
    max_prompt: int | None = None
    alphabet: str = "unicode"
    allow_special: bool = False
    dictionary: Sequence[str] = ()
    coverage: str = "auto"
    gradients: bool = True
    mutators: Sequence[str] | None = None
    schedule: str = "mix"
    radius: float | None = None
    batch_size: int | None = None
    max_inputs: int | None = None
    max_seconds: float | None = None
    max_written: int | None = None
    """Characters or tokens that the models may run in this sitting, with all that confirming and gradients take."""
    stop_on_first: bool = False
    max_corpus: int = 20_000
    max_shrink: int = 1000
    seed: int = 0
    device: str | None = None
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def writing(self) -> Writing:
        return Writing(self.max_new, self.temperature, self.sample_seed)

    def check(self) -> None:
        """Raises ``UsageError``."""
        self._check_kinds()
        self.writing.check()
        choices = {"kind": (None, "text", "tokens"), "as_": (None, *PRECISIONS), "alphabet": ALPHABETS,
                   "coverage": NAMES, "schedule": ("mix", "uniform", "recency", "frontier")}  # fmt: skip
        for name, legal in choices.items():
            if getattr(self, name) not in legal:
                told = ", ".join(str(c) for c in legal if c is not None)
                raise UsageError(f"{name} is {getattr(self, name)!r}, but it is one of {told}")
        for name in ("max_inputs", "max_seconds", "max_written", "batch_size", "max_prompt"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}, but it is a limit: give a positive number, or leave it out")
        for name in ("seed", "sample_seed"):
            if not 0 <= getattr(self, name) <= MOST_SEED:
                raise UsageError(f"{name} is {getattr(self, name)!r}, but it is a whole number from 0 to 2^62")
        if self.max_prompt is not None and self.max_prompt > MOST_NEW:
            raise UsageError(
                f"max_prompt is {self.max_prompt:,}, but a prompt of more than {MOST_NEW:,} characters or tokens "
                "cannot be searched: give a smaller --max-prompt"
            )
        if self.radius is not None and not self.radius >= 0:
            raise UsageError(f"radius is {self.radius}, but it is a distance: give a number from 0 up")
        if self.max_corpus < 64:
            raise UsageError(f"max_corpus is {self.max_corpus}, but a corpus needs room: give at least 64")

    def _check_kinds(self) -> None:
        """Numbers where numbers belong."""
        for name in _WHOLE:
            value = getattr(self, name)
            optional = _DEFAULTS[name] is None and value is None
            if not optional and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"{name} is {value!r:.40}, but it is a whole number")
        for name in ("temperature", "radius", "max_seconds"):
            value = getattr(self, name)
            optional = _DEFAULTS[name] is None and value is None
            if not optional and (isinstance(value, bool) or not isinstance(value, Real)):
                raise UsageError(f"{name} is {value!r:.40}, but it is a number")
        for name in ("gradients", "allow_special", "stop_on_first"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r:.40}, but it is True or False")
        if self.mutators is not None and not len(self.mutators):
            raise UsageError("mutators is empty, but a search needs at least one: name some, or leave it out for all")
        for name in ("dictionary", "mutators"):
            value = getattr(self, name)
            several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            if value is not None and not (several and all(isinstance(v, str) for v in value)):
                raise UsageError(f"{name} is {value!r:.40}, but it is a list of texts")

    def to_json(self) -> dict[str, Any]:
        """Without the objectives, which are remembered by their words."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("context", "objectives")}
        return {"job": JOB, **named, "dictionary": list(self.dictionary)}

    @staticmethod
    def from_json(data: Mapping[str, Any], **live: Any) -> TextSettings:
        """``live``: what takes the place of what was remembered; None leaves it."""
        known = {f.name for f in fields(TextSettings)}
        values = {n: v for n, v in data.items() if n in known} | {n: v for n, v in live.items() if v is not None}
        return TextSettings(**values)


_DEFAULTS = {f.name: f.default for f in fields(TextSettings)}
