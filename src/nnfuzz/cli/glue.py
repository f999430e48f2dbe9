"""From parsed options to a run and its exit status: the one path that all searches take."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnfuzz.cli.app import spoken
from nnfuzz.cli.options import BudgetOptions, DataOptions, LegalOptions, OutOption, SearchOptions, StyleOptions
from nnfuzz.errors import UsageError
from nnfuzz.interrupt import EARLY
from nnfuzz.loading.comparisons import OWN_OBJECTIVES
from nnfuzz.loading.objects import check_object_word
from nnfuzz.loading.places import check_model_word, check_seeds_word
from nnfuzz.report.harmless import say
from nnfuzz.store_place import MANIFEST, no_run_at

if TYPE_CHECKING:
    from nnfuzz.report.apart import ApartReporter
    from nnfuzz.report.base import Reporter

RUNS = Path("nnfuzz-runs")
FOUND, INTERRUPTED = 1, 130


def search(
    job: str,
    models: list[str],
    data: DataOptions,
    legal: LegalOptions,
    how: SearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
    runtimes: list[dict[str, Any]],
    **more: Any,
) -> int:
    """Loads what is named, calls the function of ``nnfuzz.api`` called ``job``, and gives the exit status.

    ``runtimes``: how each model runs if it is an ONNX model.
    ``more``: further arguments of that function; words for ``objective`` and ``compare`` are loaded here.
    """
    declared = data.declared(models[0])
    arguments = {**legal.arguments(), **how.arguments(), **budget.arguments()}
    context = _context(models, data, legal, more)
    if out.out is not None:
        no_run_at(out.out)
    check_words(models, data, legal, more)
    with held_place(out.out, job_word(job), models[0]) as place, reporting(style.style) as reporter:
        from nnfuzz import api

        loaded = _models(models, data.trust, runtimes)
        seeds, ranges = _seeds(data, declared, loaded[0], int(how.seed), reporter)
        if ranges:
            arguments["ranges"] = _with_declared(ranges, arguments.get("ranges"))
        if legal.constraint is not None:
            arguments["constraint"] = _function(legal.constraint, "the constraint")
        second = {"model_b": loaded[1]} if len(loaded) > 1 else {}
        live = _live(more)
        with reporter.searching():
            run = getattr(api, job)(
                loaded[0], seeds=seeds, **second, **arguments, **live, out=place, reporter=reporter, context=context
            )
    return status(run)


def check_words(models: list[str], data: DataOptions, legal: LegalOptions, more: dict[str, Any]) -> None:
    """What is named must be there: found out before the seconds that importing torch takes."""
    for model in models:
        check_model_word(model)
    if data.seeds is not None:
        check_seeds_word(data.seeds)
    for word, what in ((more.get("objective"), "the objective"), (legal.constraint, "the constraint")):
        if word and word not in OWN_OBJECTIVES:
            check_object_word(word, what)


@contextmanager
def reporting(style: str) -> Iterator[ApartReporter]:
    """The reporter, with the terminal given back whatever happens; with JSON, what is printed while models are loaded
    goes to stderr."""
    from nnfuzz.report.apart import ApartReporter, ModelOutput
    from nnfuzz.report.choose import make_reporter

    output = ModelOutput()
    reporter = ApartReporter(make_reporter(style, stream=output.shown), output)  # type: ignore[arg-type]
    try:
        if style == "json":
            with redirect_stdout(sys.stderr):
                yield reporter
        else:
            yield reporter
    finally:
        reporter.close()
        output.close()


@contextmanager
def quietly() -> Iterator[None]:
    """Where a model is run thousands of times and there is no run directory: what it prints is counted only, and shown
    when that fails."""
    from nnfuzz.report.apart import ModelOutput
    from nnfuzz.report.unattended import unattended
    from nnfuzz.report.words import plural

    output = ModelOutput()
    try:
        with output.led_away(), unattended():
            yield
        if lines := output.lines():
            say(f"note: the model printed {plural(lines, 'line')}: not shown")
    except Exception:
        sys.stderr.write(output.tail())
        raise
    finally:
        output.close()


def status(run: Any) -> int:
    """130 interrupted, 1 something found, 0 nothing found."""
    if run.stats.stopped == "interrupted":
        return INTERRUPTED
    return FOUND if run.findings else 0


def job_word(job: str) -> str:
    """The command that calls a function of the public face."""
    return {"find_nans": "nan", "check_rows": "rows"}.get(job, job)


@contextmanager
def held_place(out: Path | None, job: str, model: str) -> Iterator[Path]:
    """Where the run goes. A place that nobody named is taken at once, so that two runs that start together do not take
    the same one; where no run comes to it, it is given up."""
    if out is not None:
        with _told_if_early(out):
            yield out
        return
    with suppress(OSError):
        RUNS.mkdir(parents=True, exist_ok=True)
    while True:
        place = free_place(job, model)
        try:
            place.mkdir()
            break
        except FileExistsError:
            continue
        except OSError:  # said where the run is made
            break
    try:
        with _told_if_early(place):
            yield place
    finally:
        for folder in (place, RUNS):
            with suppress(OSError):  # it holds a run, or is gone already
                folder.rmdir()


@contextmanager
def _told_if_early(place: Path) -> Iterator[None]:
    """An interruption that says nothing itself came before there was a run, where none lies there."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if str(stop) or (place / MANIFEST).is_file():
            raise
        raise KeyboardInterrupt(EARLY) from stop


def free_place(job: str, model: str) -> Path:
    """``nnfuzz-runs/nan-mnist-loss-1``: the first number that is free."""
    path, _, name = model.rpartition(":") if ":" in model else (model, "", "")
    stem = (Path(path).stem if name or path.endswith(".onnx") else Path(path).stem.rpartition(".")[2]) or "model"
    words = "-".join(re.sub(r"[^\w]+", "-", w).strip("-") for w in (job, stem, name) if w)
    n = 1
    while (RUNS / f"{words}-{n}").exists():
        n += 1
    return RUNS / f"{words}-{n}"


def _context(models: list[str], data: DataOptions, legal: LegalOptions, more: dict[str, Any]) -> dict[str, Any]:
    """What resume and repro need to load everything again."""
    return {
        "command": ["nnfuzz", *spoken],
        "cwd": str(Path.cwd()),
        "model": models[0],
        "model_b": models[1] if len(models) > 1 else None,
        "seeds": data.seeds,
        "inputs": data.input or [],
        "as_": more.get("as_"),
        "objective": more.get("objective"),
        "compare": more.get("compare"),
        "constraint": legal.constraint,
        "trust": data.trust,
    }


def _models(specs: list[str], trust: bool, runtimes: list[dict[str, Any]]) -> list[Any]:
    from nnfuzz.loading import load_model
    from nnfuzz.targets.foreign import ForeignModel

    loaded = [load_model(spec, trust, runtime) for spec, runtime in zip(specs, runtimes, strict=False)]
    if any(runtimes) and not any(isinstance(model, ForeignModel) for model in loaded):
        raise UsageError(f"--provider and --ort-opt speak of ONNX models, but {' and '.join(specs)} is none")
    return loaded


def _seeds(
    data: DataOptions, declared: list[Any], model: Any, seed: int, reporter: Reporter
) -> tuple[Any, dict[str, Any]]:
    from nnfuzz.loading import load_seeds, make_seeds

    if declared:
        found: tuple[Any, dict[str, Any]] = make_seeds(declared, seed)
        return found
    notes: list[str] = []
    seeds = load_seeds(str(data.seeds), model, notes)
    for note in notes:
        reporter.note(note)
    return seeds, {}


def _with_declared(declared: dict[str, Any], given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise UsageError("--range is given for all inputs, but --input declares a range for each: name the input")
    return {**declared, **(given or {})}


def _live(more: dict[str, Any]) -> dict[str, Any]:
    from nnfuzz.loading import load_compare
    from nnfuzz.loading.rebuilt import load_objective

    live = {name: value for name, value in more.items() if value is not None}
    if "compare" in live:
        live["compare"] = load_compare(live["compare"])
    if "objective" in live:
        live["objective"] = load_objective(live["objective"])
    return live


def _function(spec: str, what: str) -> Any:
    from nnfuzz.loading.rebuilt import load_function

    return load_function(spec, what)
