"""``train``: search while a model is trained. ``demo``: both classic jobs on a trained digit classifier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnfuzz.cli.glue import FOUND, INTERRUPTED, RUNS, held_place, status
from nnfuzz.cli.groups import checked, option
from nnfuzz.cli.options import BUDGET, DEFAULT_SECONDS, OUTPUT, JsonOption, OutOption, SeedOption, max_time_option
from nnfuzz.loading.quantity import count, duration, whole
from nnfuzz.report.harmless import say

if TYPE_CHECKING:
    from nnfuzz.training import TrainingRun


def train(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.py",
            show_default=False,
            help="Defines build(seed), loss(model, batch), batches(seed), optimizer(model) and INPUTS, the ranges.",
        ),
    ],
    out: OutOption,
    max_steps: Annotated[
        str | None,
        option(
            "--max-steps",
            "-n",
            metavar="N",
            panel=BUDGET,
            callback=checked("--max-steps", count),
            help="Stop after this many training steps.",
            default="no limit",
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        max_time_option("Stop after this time: 60s, 5m, 1h; 0 for no limit.", "60s, unless --max-steps is given"),
    ] = None,
    keep_going: Annotated[
        bool, option("--keep-going", panel=BUDGET, help="Look for other failures after the first.")
    ] = False,
    seed: SeedOption = "0",
    json: JsonOption = False,
) -> int:
    """Search for batches that make a training go NaN or Inf.

    Ctrl-C ends it and keeps what was found. What the program prints goes to RUN/model.log.
    """
    from nnfuzz.report.jsonl import dumps, plain
    from nnfuzz.report.words import typed

    seconds = duration(max_time) if max_time is not None else None if max_steps is not None else DEFAULT_SECONDS
    with held_place(out.out, "train", str(program)) as place:
        run, printed = _searched(
            program,
            place,
            json,
            max_steps=count(max_steps) if max_steps else None,
            max_seconds=seconds or None,
            seed=whole(seed),
            stop_on_first=not keep_going,
        )
    if json:
        body = {"path": str(place), "seconds": run.seconds, "steps": run.steps, "flaky": run.flaky}
        body["stopped"] = run.stopped
        say(dumps(plain({"event": "end", **body, "findings": [f.about() for f in run.findings]})))
    else:
        say(run.summary())
        if printed:
            say(f"  note: {printed}")
        for finding in run.findings:
            say(f"  rerun     nnfuzz repro {typed(place / 'findings' / finding.id)}")
    if run.stopped == "interrupted":
        return INTERRUPTED
    return FOUND if run.findings else 0


def _searched(program: Path, place: Path, silent: bool, **limits: Any) -> tuple[TrainingRun, str]:
    """(the run, what is to be said of what the program printed): that goes to RUN/model.log meanwhile."""
    from nnfuzz.report.apart import MOST_BYTES, ModelOutput
    from nnfuzz.report.unattended import unattended
    from nnfuzz.report.words import near, plural
    from nnfuzz.training import load_program, run_program
    from nnfuzz.training.outcome import free_folder, give_up
    from nnfuzz.training.status_line import StatusLine

    free_folder(place)  # before the program's own code runs
    output = ModelOutput()
    line = StatusLine(output.shown)

    def progress(run: TrainingRun) -> None:
        if output.path is None:
            output.keep(place)
        output.check()
        if not silent:
            line.show(run)

    try:
        with output.led_away(), unattended():
            run = run_program(load_program(program), out=place, progress=progress, **limits)
        more = f", and more than {MOST_BYTES >> 20} MiB, which was dropped" if output.dropped else ""
        where = f"see {near(output.path)}" if output.path is not None else "not shown"
        lines = output.lines()
        return run, f"the program printed {plural(lines, 'line')}{more}: {where}" if lines else ""
    except Exception:
        line.clear()
        if output.path is None or not output.path.exists():
            sys.stderr.write(output.tail())
        raise
    finally:
        line.clear()
        output.close()
        give_up(place)


def demo(
    out: Annotated[
        Path,
        option(
            "--out", "-o", metavar="DIR", panel=OUTPUT, help="Where the runs are written.", default="nnfuzz-runs/demo"
        ),
    ] = RUNS / "demo",
    max_time: Annotated[
        str | None,
        max_time_option("For each of the two searches.", "60s"),
    ] = None,
    plain: Annotated[bool, option("--plain", panel=OUTPUT, help="Plain lines, as when the output is no terminal.")] = (
        False
    ),
) -> int:
    """Train a small digit classifier on real images, then find a NaN and a float16 disagreement in it.

    Exit status 0 when both are found, as they should be, and 1 otherwise.
    """
    from nnfuzz import demo as demo_
    from nnfuzz.report.choose import make_reporter

    seconds = duration(max_time or "") if max_time else DEFAULT_SECONDS
    runs = demo_.run(out, reporter=lambda: make_reporter("plain" if plain else "auto"), say=say, max_seconds=seconds)
    states = [status(run) for run in runs]
    if INTERRUPTED in states:
        return INTERRUPTED
    return 0 if all(state == FOUND for state in states) else 1
