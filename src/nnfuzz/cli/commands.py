"""Every command, in the order in which ``--help`` lists them."""

from __future__ import annotations

from nnfuzz.cli import again, blame, corpus, search, seeds, show, text, train
from nnfuzz.cli.app import app
from nnfuzz.cli.groups import Command, expand

SEARCHES, FINDINGS, RUNS = "Search", "Findings", "Runs"

_COMMANDS: dict[str, tuple[Command, str]] = {
    "nan": (search.nan, SEARCHES),
    "diff": (search.diff, SEARCHES),
    "fuzz": (search.fuzz, SEARCHES),
    "rows": (search.rows, SEARCHES),
    "text": (text.text, SEARCHES),
    "train": (train.train, SEARCHES),
    "seeds": (seeds.seeds, SEARCHES),
    "demo": (train.demo, SEARCHES),
    "repro": (again.repro, FINDINGS),
    "shrink": (again.shrink, FINDINGS),
    "explain": (again.explain, FINDINGS),
    "sensitivity": (blame.sensitivity, FINDINGS),
    "show": (show.show, RUNS),
    "resume": (again.resume, RUNS),
    "crash": (again.crash, RUNS),
}

for _name, (_command, _panel) in _COMMANDS.items():
    app.command(_name, rich_help_panel=_panel)(expand(_command))
app.add_typer(corpus.app, name="corpus", rich_help_panel=RUNS)

__all__ = ["app"]
