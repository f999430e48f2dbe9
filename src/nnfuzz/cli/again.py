"""``repro``, ``shrink``, ``explain``, ``resume``: going back to what a run left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nnfuzz.cli.glue import FOUND, quietly, reporting, status
from nnfuzz.cli.options import AgainOptions, RunArgument, StyleOptions, given, max_inputs_option, max_time_option
from nnfuzz.errors import UsageError
from nnfuzz.loading.quantity import count, duration
from nnfuzz.report.harmless import say
from nnfuzz.store_place import finding_at, run_at

MOST_TRIES = 20_000

FindingArgument = Annotated[
    Path, typer.Argument(metavar="FINDING", help="A finding's directory, RUN/findings/F0001.", show_default=False)
]


def repro(finding: FindingArgument, again: AgainOptions) -> int:
    """Run a finding again in the real model: exit status 1 when it still fails, 0 when it does not."""
    place = _finding(finding)
    import nnfuzz

    result = nnfuzz.repro(place, **_models(place, again))
    for line in result.lines:
        say(line)
    verdict = "reproduced" if result.reproduced else "fails differently" if result.symptom else "not reproduced"
    say(verdict)
    return FOUND if result.symptom else 0


def shrink(
    finding: FindingArgument,
    again: AgainOptions,
    max_inputs: Annotated[
        str | None,
        max_inputs_option("Inputs spent on it; training steps of a finding of nnfuzz train.", "20k"),
    ] = None,
) -> int:
    """Bring a finding nearer to its seed, and change fewer of its elements, while it fails in the same way.

    Of a finding of nnfuzz train, leave out training steps.
    """
    place = _finding(finding)
    import nnfuzz
    from nnfuzz.report.telling import nearness
    from nnfuzz.report.words import near
    from nnfuzz.rerun import is_training

    limit = count(max_inputs) if max_inputs else MOST_TRIES
    before, repaired = _tensors(place), (place / "fixed.onnx").is_file()
    with quietly():
        smaller = nnfuzz.shrink(place, **_models(place, again), max_inputs=limit)
    if not is_training(place) and smaller.objective != "text" and smaller.is_its_seed:
        say(f"{smaller.id} is seed {smaller.seed_index} as it was given: there is nothing to shrink")
        return 0
    if _tensors(place) == before:
        what = "training steps" if is_training(place) else "inputs"
        say(
            f"{smaller.id} is already the smallest that was found within {limit:,} {what}: it stays as it was "
            "(-n tries more)"
        )
    elif repaired:
        gone = "fixed.onnx was verified on the input as it was, and is gone: nnfuzz explain writes it again"
        smaller.notes.append(gone)
    say(smaller.headline() if is_training(place) else f"{smaller.id}  {nearness(smaller)}")
    for note in smaller.notes:
        say(f"note: {note}")
    say(f"saved in {near(place)}")
    return 0


def explain(finding: FindingArgument, again: AgainOptions) -> int:
    """Say why a finding fails: the first operation that goes wrong, its operands, and what would help."""
    place = _finding(finding)
    import nnfuzz

    with quietly():
        text = nnfuzz.explain(place, **_models(place, again))
    say(text)
    return 0


def crash(run: RunArgument, again: AgainOptions) -> int:
    """After a run whose model took the process down: find the input that did it, one by one in a process of its own.

    It becomes a finding, and nnfuzz resume goes on behind it. Exit status 1 when one is found, 0 when none is.
    """
    run_at(run)
    from nnfuzz.crash import find_crash
    from nnfuzz.report.words import typed

    words = [w for w in (again.model, again.model_b) if w is not None]
    finding, said = find_crash(run, words)
    say(said)
    if finding is None:
        return 0
    place = run / "findings" / finding.id
    say(f"{finding.id}  {finding.status}, saved in {typed(place)}")
    say(f"rerun with  python {typed(place / 'repro.py')}")
    say(f"go on with  nnfuzz resume {typed(run)}")
    return FOUND


def resume(
    run: RunArgument,
    again: AgainOptions,
    style: StyleOptions,
    max_inputs: Annotated[
        str | None,
        max_inputs_option("New limit, counted from the run's beginning: 5000, 100k, 2M.", "as before"),
    ] = None,
    max_time: Annotated[
        str | None,
        max_time_option("New limit, counted from the run's beginning: 60s, 5m, 1h.", "as before"),
    ] = None,
) -> int:
    """Go on with a run where it stopped, also after it was killed."""
    seconds = duration(max_time) if max_time is not None else None
    if seconds == 0:
        raise UsageError("--max-time: resume needs an end: give a time, counted from the run's beginning")
    run_at(run)
    import nnfuzz

    limits = given(max_inputs=count(max_inputs) if max_inputs else None, max_seconds=seconds)
    with reporting(style.style) as reporter:
        models = again.models(writes=_of_text(run))
        with reporter.searching():
            done = nnfuzz.resume(run, **models, **limits, reporter=reporter)
    return status(done)


def _tensors(place: Path) -> dict[str, bytes]:
    """What a finding consists of, whatever kind it is."""
    return {p.name: p.read_bytes() for p in place.glob("*.safetensors")}


def _models(place: Path, again: AgainOptions) -> dict[str, Any]:
    """The models that are named; a training finding takes the file of its program there."""
    from nnfuzz.rerun import is_training

    if not is_training(place):
        return again.models(writes=_of_text(place))
    if again.model_b is not None:
        raise UsageError(f"--model-b names the second model of a diff, but {place} is a finding of nnfuzz train")
    return given(model=None if again.model is None else Path(again.model))


def _of_text(place: Path) -> bool:
    """Whether a finding's or a run's directory is one of ``nnfuzz text``. What is damaged is said when it is read."""
    from nnfuzz.store_files import from_json

    if (place / "finding.json").is_file():
        told = from_json(place / "finding.json").get("details")
        told = told.get("run") if isinstance(told, dict) else None
    else:
        told = from_json(place / "run.json").get("settings") if (place / "run.json").is_file() else None
    return isinstance(told, dict) and told.get("job") == "text"


def _finding(path: Path) -> Path:
    """A run with one finding stands for it; otherwise the directory must be a finding's own."""
    inside = sorted(p.parent for p in (path / "findings").glob("*/finding.json"))
    if (path / "finding.json").is_file() or not inside:
        return finding_at(path)
    if len(inside) == 1:
        return inside[0]
    names = ", ".join(p.name for p in inside[:6]) + (", …" if len(inside) > 6 else "")
    raise UsageError(f"{path} is a run with {len(inside)} findings ({names}): name one, {inside[0]}")
