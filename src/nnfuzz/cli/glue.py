"""From parsed options to a run and its exit status: the one path that all searches take."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnfuzz.cli.app import spoken
from nnfuzz.cli.options import BudgetOptions, DataOptions, LegalOptions, OutOption, SearchOptions, StyleOptions
from nnfuzz.errors import UsageError

if TYPE_CHECKING:
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
    **more: Any,
) -> int:
    """Loads what is named, calls the function of ``nnfuzz.api`` called ``job``, and gives the exit status.

    ``more``: further arguments of that function; words for ``objective`` and ``compare`` are loaded here.
    """
    declared = data.declared()
    arguments = {**legal.arguments(), **how.arguments(), **budget.arguments()}
    context = _context(models, data, legal, more)
    place = out.out if out.out is not None else free_place(job_word(job), models[0])
    with reporting(style.style) as reporter:
        from nnfuzz import api

        loaded = _models(models, data.trust)
        seeds, ranges = _seeds(data, declared, loaded[0], int(how.seed), reporter)
        if ranges:
            arguments["ranges"] = _with_declared(ranges, arguments.get("ranges"))
        if legal.constraint is not None:
            arguments["constraint"] = _function(legal.constraint, "the constraint")
        second = {"model_b": loaded[1]} if len(loaded) > 1 else {}
        run = getattr(api, job)(
            loaded[0], seeds=seeds, **second, **arguments, **_live(more), out=place, reporter=reporter, context=context
        )
    return status(run)


@contextmanager
def reporting(style: str) -> Iterator[Reporter]:
    """The reporter, with the terminal given back whatever happens; with JSON, what models print goes to stderr."""
    from nnfuzz.report.choose import make_reporter

    reporter = make_reporter(style)  # type: ignore[arg-type]
    try:
        if style == "json":
            with redirect_stdout(sys.stderr):
                yield reporter
        else:
            yield reporter
    finally:
        reporter.close()


def status(run: Any) -> int:
    """130 interrupted and saved, 1 something found, 0 nothing found."""
    if run.stats.stopped == "interrupted":
        return INTERRUPTED
    return FOUND if run.findings else 0


def job_word(job: str) -> str:
    """The command that calls a function of the public face."""
    return {"find_nans": "nan", "check_rows": "rows"}.get(job, job)


def free_place(job: str, model: str) -> Path:
    """``nnfuzz-runs/nan-mnist-loss-1``: the first number that is free."""
    path, _, name = model.rpartition(":") if ":" in model else (model, "", "")
    stem = Path(path).stem.rpartition(".")[2] or "model"
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


def _models(specs: list[str], trust: bool) -> list[Any]:
    from nnfuzz.loading import load_model

    return [load_model(spec, trust) for spec in specs]


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
