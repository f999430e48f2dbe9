"""``corpus info``, ``merge`` and ``min``: looking at and thinning the corpora of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nnfuzz.cli.groups import checked, expand, option
from nnfuzz.cli.options import SEARCH, JsonOption, RunArgument
from nnfuzz.loading.quantity import positive
from nnfuzz.report.harmless import say
from nnfuzz.store_place import no_run_at, run_at

app = typer.Typer(help="Look at, join and thin the corpora of runs.", no_args_is_help=True, rich_markup_mode="rich")

NewArgument = Annotated[
    Path, typer.Argument(metavar="DEST", help="The run directory to write, new or empty.", show_default=False)
]


@app.command("info")
@expand
def info(
    run: RunArgument,
    json: JsonOption = False,
) -> int:
    """What a corpus holds."""
    run_at(run)
    from nnfuzz import corpus_tools

    _print(corpus_tools.info(run), json)
    return 0


@app.command("merge")
@expand
def merge(
    dest: NewArgument,
    sources: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs to join.", show_default=False)],
) -> int:
    """Join the corpora of several runs of one model into one, equal inputs once. DEST is then good as --seeds.

    To thin it to what adds coverage, run corpus min on it.
    """
    for source in sources:
        run_at(source)
    no_run_at(dest)
    from nnfuzz import corpus_tools

    _made(corpus_tools.merge(dest, sources), dest)
    return 0


@app.command("min")
@expand
def minimise(
    run: RunArgument,
    dest: NewArgument,
    radius: Annotated[
        str | None,
        option(
            "--radius",
            metavar="R",
            panel=SEARCH,
            callback=checked("--radius", positive),
            help="Entries nearer than this to one that is kept go.",
            default="the run's own",
        ),
    ] = None,
) -> int:
    """Write a smaller corpus with nearly the same coverage. DEST is then good as --seeds."""
    run_at(run)
    no_run_at(dest)
    from nnfuzz import corpus_tools

    _made(corpus_tools.minimise(run, dest, positive(radius) if radius is not None else None), dest)
    return 0


def _made(facts: dict[str, Any], dest: Path) -> None:
    from nnfuzz.corpus_tools import as_seeds
    from nnfuzz.store_files import from_json

    _print(facts, False)
    say(f"use it with  {as_seeds(from_json(dest / 'run.json'), dest)}")


def _print(facts: Any, as_json: bool) -> None:
    from nnfuzz.report.facts import lines
    from nnfuzz.report.jsonl import dumps, plain

    if not isinstance(facts, dict):
        return
    if as_json:
        say(dumps(plain(facts)))
        return
    for line in lines(facts):
        say(line)
