"""Whether a run that is resumed has anything left to do: where it has not, it is told as it lies on disk."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nnfuzz.errors import NnfuzzError, UsageError
from nnfuzz.report.words import near, option_time, plural, typed
from nnfuzz.stats import Stats
from nnfuzz.store import RunStore
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_place import MANIFEST

AFTER = "after the last batch, before what follows it"
"""The end that stats.json has while the last batch is saved and the closer look at what was found is not."""


class Limited(Protocol):
    """Of a run's settings, what ends it."""

    max_inputs: int | None
    max_seconds: float | None
    stop_on_first: bool


@dataclass(frozen=True)
class Over:
    """``stopped``: as in ``Stats``. ``said``: the sentence for the user."""

    stopped: str
    said: str


def over(settings: Limited, store: RunStore, path: str | Path, unit: str = "input") -> Over | None:
    """Why nothing is left to do in a run that has looked at its seeds; None where something is.

    Limits count from the run's beginning. The state to resume from lacks the run's tail, which the last session may
    have used them up with, so stats.json is asked as well.
    """
    if store.stopped() == AFTER:
        return None
    counters = (store.state() or {}).get("counters", {})
    inputs, seconds = store.spent()
    inputs, seconds = max(inputs, counters.get("inputs", 0)), max(seconds, counters.get("seconds", 0.0))
    end = "counted from the run's beginning"
    limits = (
        (inputs, settings.max_inputs, "max-inputs", f"{unit}s"),
        (seconds, settings.max_seconds, "max-time", "seconds"),
    )
    used = [(n, most, why, of) for n, most, why, of in limits if most is not None and n >= most]
    if used:
        told = " and ".join(f"has used {n:,.0f} {of} and its limit is {most:,.0f}" for n, most, _, of in used)
        larger = longer(settings.max_inputs, settings.max_seconds, inputs, seconds)
        return Over(
            used[0][2],
            f"nothing is left to do: the run {told}, {end}; give a larger one, for instance "
            f"nnfuzz resume {typed(path)} {larger}",
        )
    if settings.stop_on_first and any(f.status != "batch-only" for f in store.findings()):
        return Over(
            "first-finding",
            "nothing is left to do: the run was to end at its first finding, which it has; start another without "
            "--stop-on-first (in Python, resume with stop_on_first=False)",
        )
    if next(store.records(), None) is None:
        return Over(
            "every seed fails",
            "nothing is left to do: every seed fails unchanged, so none is left to search from; start another run from "
            "seeds that do not fail",
        )
    return None


def longer(most_inputs: int | None, most_seconds: float | None, inputs: int, seconds: float) -> str:
    """Ten times the limits of a run, or what it has used of them where that is more, as options; time in minutes."""
    limits = []
    if most_inputs is not None:
        limits.append(f"--max-inputs {10 * max(most_inputs, inputs)}")
    if most_seconds is not None or not limits:
        most = 60.0 if most_seconds is None else most_seconds
        minutes = max(1, round(most / 6), round(10 * seconds / 60) if seconds >= 2 * most else 0)
        limits.append(f"--max-time {option_time(60 * minutes)}")
    return " ".join(limits)


def as_it_stands(store: RunStore, restored: Stats, stopped: str) -> Stats:
    """The numbers on disk: those of stats.json, or those ``restored`` from the state where a kill left that behind."""
    written = store.stats()
    stats = restored if written is None or written.inputs < restored.inputs else written
    stats.raw_rate = stats.raw_rate or (written.raw_rate if written is not None else None)
    stats.stopped = stopped
    return stats


def check_tried(stats: Stats, seeds: int, unit: str = "input") -> None:
    """Raises ``UsageError`` where the time was up before anything but the seeds was tried: nothing found says nothing
    then, and must not pass for a model in which nothing is wrong."""
    if stats.inputs or stats.findings or stats.stopped != "max-time":
        return
    looked = plural(seeds, "seed")
    begun = " and a first batch that did not come to its end" if stats.batches else ""
    raise UsageError(
        f"the time was up after {stats.seconds:.1f} s, all of which went into looking at {looked}{begun} "
        f"({stats.model_seconds:.1f} s of it in the model), so that no other {unit} was tried: give a longer "
        "--max-time (max_seconds), fewer seeds, or a faster model"
    )


def left_behind(path: Path | None, resumed: bool, end: bool, unit: str = "input") -> str:
    """What a run in progress leaves behind when it ends at once, for a thread other than the run's own.

    Args:
        path: its directory, which need not be there yet; None in memory. resumed: whether it was there before.
        end: it ends now. That is written into stats.json, and a new run without a batch is removed.
    """
    if path is None:
        return "nothing is kept, since the run has no directory"
    place = near(path)
    if not (path / MANIFEST).is_file():
        return "nothing is written yet"
    with RunStore.open(path, writable=False) as store:
        done = (store.state() or {}).get("counters", {})
    if not done.get("batches") and not resumed:
        if end:
            shutil.rmtree(path, ignore_errors=True)
        return "no batch is saved yet, so nothing is kept"
    found = sum(1 for _ in (path / "findings").glob("[!._]*"))
    if end:
        with suppress(NnfuzzError):
            numbers = from_json(path / "stats.json")
            write_atomically(path / "stats.json", to_json({**numbers, "stopped": "interrupted"}))
    kept = f"{place} holds {plural(done.get('inputs', 0), unit)} and {plural(found, 'finding')}"
    return f"{kept}; go on with nnfuzz resume {typed(path)}, which begins with the batch in hand" if end else kept
