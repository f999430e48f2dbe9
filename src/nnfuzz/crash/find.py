"""Finds the input on which a model took the process of a run down, and makes a finding of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnfuzz.callform import CallForm
from nnfuzz.crash.worker import ALONE, END, FACTS, GRADIENTS, INPUT
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.findings.confirm import RERUNS
from nnfuzz.findings.finding import Finding, distance
from nnfuzz.findings.save import save_finding
from nnfuzz.report.words import typed
from nnfuzz.seeds import as_whole
from nnfuzz.space import Batch, rows
from nnfuzz.store import RunStore
from nnfuzz.store_files import from_json, to_json, write_atomically
from nnfuzz.store_seeds import load_seed_groups
from nnfuzz.store_tensors import read_tensors

SYMPTOM = "crash"
WORKER = "import sys; from nnfuzz.crash.worker import main; sys.exit(main(sys.argv[1:]))"


def find_crash(path: str | Path, models: Sequence[str] = ()) -> tuple[Finding | None, str]:
    """Runs the next batch of a run again, one candidate after the other, in a process of its own.

    Where that dies, the candidate is a finding of the run, and the run goes on after that batch.

    Args:
        models: words for the models, where they are no longer those that the run names.

    Returns:
        The finding, None when there is none; and what happened, in a sentence.

    Raises:
        UsageError: the run cannot be run again. Unsupported: it was started in Python, or is no search of this kind.
    """
    path = Path(path)
    with RunStore.open(path) as store:  # nobody else may be writing it meanwhile
        manifest = store.manifest
        counters, stopped = (store.state() or {}).get("counters", {}), store.stopped()
    context = manifest.get("context", {})
    if not models and not context.get("model"):
        second = " --model-b file.py:other" if manifest.get("settings", {}).get("job") == "diff" else ""
        raise Unsupported(
            f"{path} was started in Python, and another process cannot load a model that has no name: write a function "
            f"that makes it into a file and give it, nnfuzz crash {typed(path)} --model file.py:make{second}"
        )
    if manifest.get("settings", {}).get("job") == "text":
        raise Unsupported(
            f"{path} is a run in text, whose batch cannot be made again: run the part of the model that takes the "
            "process down in a process of its own (subprocess, multiprocessing), and raise an exception where that dies"
        )
    if manifest.get("settings", {}).get("job") not in ("nan", "diff", "fuzz", "rows"):
        raise Unsupported(f"{path} is no search that goes batch by batch, so the batch in hand cannot be made again")
    if stopped:
        return None, f"the last session ended by itself ({stopped}), so no input of it took the process down"
    batch = counters.get("batches", 0) + 1 if counters else 0
    name = f"batch {batch}" if batch else "the first look at the seeds"
    with tempfile.TemporaryDirectory() as notes:
        died, said = _run("next", str(path.resolve()), notes, *models, cwd=context.get("cwd"))
        if not died:
            return None, f"{name} ran through, one candidate after the other: no input of it crashes the process"
        facts = json.loads(Path(notes, FACTS).read_text()) if Path(notes, FACTS).exists() else {}
        if not facts:
            return None, f"the process died of {died} before any input could be noted, in {name}{_place(said)}"
        if facts["how"] == GRADIENTS:
            _go_on_behind(path, batch)
            return None, (
                f"the process died of {died} in {name}{_place(said)}, while gradients were followed, of which there is "
                "no input to keep: nnfuzz resume goes on behind that batch"
            )
        inputs = read_tensors(Path(notes, INPUT))
    finding = _finding(path, manifest, facts, inputs, died, name)
    finding.inputs_tried, finding.seconds = counters.get("inputs", 0), counters.get("seconds", 0.0)
    with RunStore.open(path) as store:
        numbers = [int(m[1]) for p in (path / "findings").glob("F*") if (m := re.fullmatch(r"F(\d+)", p.name))]
        finding.id = f"F{max(numbers, default=0) + 1:04d}"
        place = path / "findings" / finding.id
        store.save_finding(finding)
        if facts["how"] == ALONE or facts["unit"] == "sample":
            _confirm(finding, place)
            save_finding(finding, place, cwd=context.get("cwd"))
    _go_on_behind(path, batch)
    return finding, f"the process died of {died} in {name}{_place(said)}"


def _finding(
    path: Path, manifest: dict[str, Any], facts: dict[str, Any], inputs: Batch, died: str, name: str
) -> Finding:
    settings, context = manifest["settings"], manifest["context"]
    second = facts["side"] == "b"
    seed, index = _nearest(path, manifest, inputs)
    notes = []
    if facts["how"] != ALONE:
        notes.append("no candidate of its batch crashed by itself: the input holds all of them")
    if second and settings.get("as_"):
        notes.append(f"it is the copy in {settings['as_']} that crashes; the script runs the original")
    run = {
        "job": settings["job"],
        "model": context.get("model_b") if second and context.get("model_b") else context.get("model"),
        "cwd": context.get("cwd"),
        "trust": bool(context.get("trust")),
        "unit": facts["unit"],
        "train": bool(settings.get("train")),
        "flush_denormal": bool(settings.get("flush_denormal")),
    }
    return Finding(
        id="F0001",
        objective=settings["job"],
        symptom=SYMPTOM,
        cause=f"{died} in {name}",
        inputs=inputs,
        outputs={},
        seed=seed,
        seed_index=index,
        lineage=[],
        distance=distance(inputs, seed),
        inputs_tried=0,
        seconds=0.0,
        status="batch-only",
        phase="backward" if facts["backward"] else "forward",
        details={"signal": died, "run": run},
        notes=notes,
        call=CallForm.from_json(facts["form"]),
    )


def _nearest(path: Path, manifest: dict[str, Any], inputs: Batch) -> tuple[Batch, int]:
    """The seed nearest to the input, in its form; the input itself where no seed has its shape and names."""
    given = load_seed_groups(path, manifest)
    first = next(iter(inputs.values()))
    whole = as_whole(given, len(first)) if given.stacked and first.dim() and len(first) else given
    shapes = {n: t.shape for n, t in inputs.items()}
    found: list[tuple[float, int, Batch]] = []
    for group in (*given.groups, *whole.groups):
        for row, index in enumerate(group.index):
            for seed in (rows(group.batch, slice(row, row + 1)), {n: t[row] for n, t in group.batch.items()}):
                if {n: t.shape for n, t in seed.items()} == shapes:
                    found.append((distance(inputs, seed)["linf"], index, seed))
    if not found:
        return {n: t.clone() for n, t in inputs.items()}, 0
    _, index, seed = min(found, key=lambda f: f[:2])
    return seed, index


def _confirm(finding: Finding, place: Path) -> None:
    """The finding's own script, alone, a few times."""
    died = [died_of(place / "repro.py") for _ in range(RERUNS)]
    finding.status = "confirmed" if all(died) else "flaky" if any(died) else "batch-only"


def died_of(script: Path) -> str:
    """What ends the process of a finding's script before its time; "" when it comes to its end."""
    return _run("alone", str(script.resolve()), cwd=None)[0]


def _go_on_behind(path: Path, batch: int) -> None:
    """The next batch has other random numbers, so that the run can go on; how the last session ended is known now."""
    with RunStore.open(path) as store:
        state = store.state()
        if batch and state is not None:
            state["counters"]["batches"] = batch
            store.commit([], state)
    stats = path / "stats.json"
    document = from_json(stats) if stats.is_file() else {}
    write_atomically(stats, to_json({**document, "stopped": SYMPTOM}))


def _run(*words: str, cwd: str | None) -> tuple[str, str]:
    """``(what ended the process before its time, a signal or os._exit, "" for nothing; what it wrote to stderr)``."""
    folder = cwd if cwd and Path(cwd).is_dir() else None
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    said = done.stderr.replace(END, "")
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name, said
    if END not in done.stderr:  # nothing that Python could have noticed
        return f"an exit with status {done.returncode}", said
    if done.returncode > 0 and words[0] == "next":
        last = (said.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"the batch cannot be run again: {re.sub(r'^nnfuzz[.]errors[.][A-Za-z]+: ', '', last)}")
    return "", said


def _place(said: str) -> str:
    """Where Python stood, of what the interpreter writes as it dies: ``, at model.py:12 in forward``."""
    for file, line, function in re.findall(r'File "([^"]+)", line (\d+) in (\S+)', said):
        lib = ("site-packages", f"{os.sep}nnfuzz{os.sep}", str(Path(os.__file__).parent), "<frozen")
        if not any(part in file for part in lib):
            return f", at {Path(file).name}:{line} in {function}"
    return ""
