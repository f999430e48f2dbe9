"""A saved training finding read back. Its tensors and facts never execute code; its program is the user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnfuzz.errors import StoreError, UsageError
from nnfuzz.findings.save import read_site
from nnfuzz.store_files import from_json
from nnfuzz.store_tensors import read_tensors
from nnfuzz.training.finding import TrainingFinding, unpacked
from nnfuzz.training.load import load_program
from nnfuzz.training.program import Program

_FACTS: dict[str, Any] = {
    "id": str, "phase": str, "symptom": str, "mode": str, "cause": str, "step": int, "seeds": list, "build_seed": int,
    "confirmed": bool, "seconds": int | float, "tried": int, "steps_found": int, "arm": str, "natural": str,
    "noise": str, "notes": list,
}  # fmt: skip


def is_training(place: str | Path) -> bool:
    """Whether a directory holds a finding of `nnfuzz train`."""
    path = Path(place) / "finding.json"
    return path.is_file() and from_json(path).get("kind") == "training"


def threads_of(place: str | Path) -> int | None:
    """Threads that torch had when the finding was made: another number may round otherwise."""
    threads = from_json(Path(place) / "finding.json").get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def load_training_finding(place: str | Path, program: Any = None) -> TrainingFinding:
    """The finding in a directory, with its program.

    program: a `Program`, or the path of a program file; by default the file that it was found in.
    """
    path = Path(place) / "finding.json"
    document = from_json(path)
    for name, kind in _FACTS.items():
        if not isinstance(document.get(name), kind):
            raise StoreError(f"{path} is damaged: its {name!r} is {document.get(name)!r:.60}")
    try:
        batches = unpacked(read_tensors(path.with_name("batches.safetensors")), len(document["seeds"]))
        site = None if document.get("site") is None else read_site(document["site"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path.parent} is damaged: {error}") from error
    if not batches or not all(batches):
        raise StoreError(f"{path.parent} is damaged: it holds no batch for its first step")
    facts = {name: document[name] for name in _FACTS if name not in ("step", "noise")}
    return TrainingFinding(
        **facts,
        site=site,
        batches=batches,
        initial_state=read_tensors(path.with_name("initial_state.safetensors")),
        program=_program(path.parent, document.get("program"), program),
        drawn=document["noise"],
    )


def _program(place: Path, recorded: Any, given: Any) -> Program:
    if isinstance(given, Program):
        return given
    if given is not None:
        if not isinstance(given, str | Path):
            raise UsageError(
                f"model is a {type(given).__name__}, but a training finding needs its program: pass the program's file"
            )
        return load_program(given)
    if recorded is None:
        raise UsageError(f"{place} was made in Python, so it does not know its program: pass the file that defines it")
    if not Path(recorded).is_file():
        raise UsageError(
            f"{recorded}, the program that {place} was found in, is not there: pass the file that defines it now"
        )
    return load_program(recorded)
