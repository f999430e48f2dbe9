"""The seam between a run and whoever watches it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.space import InputSpec
    from nnfuzz.stats import Stats


@dataclass(frozen=True)
class InputRow:
    """One line of the table of inputs that a run prints before it starts.

    Attributes:
        range: as text, ``-1..1`` or ``{0, 1}``; "" where there is nothing to say (bool).
        source: where the range came from: "given", "seeds" or "dtype".
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    kind: str
    range: str
    source: str
    fixed: bool = False
    eps: float | None = None

    @staticmethod
    def of(spec: InputSpec) -> InputRow:
        """The row of an input as the space knows it."""
        shape: tuple[int | str, ...] = tuple(d if isinstance(d, int) else d.name for d in spec.dims) or spec.shape
        return InputRow(
            name=spec.name,
            shape=shape,
            dtype=str(spec.dtype).removeprefix("torch."),
            kind=spec.kind,
            range=_range_text(spec),
            source=spec.source,
            fixed=spec.fixed,
            eps=spec.eps,
        )


@dataclass
class RunInfo:
    """What is known of a run before its first batch.

    Attributes:
        title: the job in two words, ``nnfuzz nan``.
        target: the model, as the user named it.
        unit: "sample" or "batch".
        why: how that was found out, one clause.
        searched: what counts as a hit, in the user's words ("NaN and Inf in the outputs").
        max_inputs, max_seconds: the budget; None is without end.
        hints: what the user might try when nothing is found, each a short clause; added to the usual ones.
        futile: why no other input can fail, where that is known: nothing else is advised then.
        settings: other facts worth recording, JSON-able ("coverage", "watch", "gradients", …).
    """

    title: str
    target: str
    unit: str = ""
    why: str = ""
    inputs: Sequence[InputRow] = ()
    seed: int = 0
    device: str = "cpu"
    out: str | None = None
    notes: Sequence[str] = ()
    searched: str = ""
    max_inputs: int | None = None
    max_seconds: float | None = None
    hints: Sequence[str] = ()
    futile: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def rows(space: Iterable[InputSpec]) -> list[InputRow]:
        """The table of inputs of a space."""
        return [InputRow.of(spec) for spec in space]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Reporter(Protocol):
    """Watches one run. ``update`` comes after every batch and must be cheap; it decides itself when to show."""

    def start(self, info: RunInfo) -> None:
        """Once, before the first batch."""

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        """After every batch."""

    def note(self, text: str) -> None:
        """A sentence for the user, at any time."""

    def finding(self, finding: Finding) -> None:
        """A new finding, confirmed and shrunk."""

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        """Once, when the run is over and saved; ``path`` is its directory, None in memory."""

    def close(self) -> None:
        """Gives the terminal back, also after an error; may be called twice."""


class SilentReporter:
    """Says nothing; also the base of the others, so that each writes only what it shows."""

    info: RunInfo | None = None

    def start(self, info: RunInfo) -> None:
        self.info = info

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finding(self, finding: Finding) -> None:
        pass

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        pass

    def close(self) -> None:
        pass


def _range_text(spec: InputSpec) -> str:
    from nnfuzz.report.words import short

    if spec.choices is not None:
        values = [short(v) for v in spec.choices.tolist()]
        return "{" + ", ".join(values if len(values) <= 6 else [*values[:5], "…"]) + "}"
    if spec.kind in ("bool", "onehot", "simplex", "unit"):
        return ""
    low, high = spec.low.min().item(), spec.high.max().item()
    each = "" if spec.scalar_range is not None else ", each element its own"
    return f"{short(low)}..{short(high)}{each}"
