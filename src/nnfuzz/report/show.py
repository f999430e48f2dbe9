"""``nnfuzz show``: a run directory or a finding, read without opening the corpus, so also while it is being written."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nnfuzz.corpus_tools import as_seeds
from nnfuzz.errors import StoreError
from nnfuzz.report.facts import said
from nnfuzz.report.jsonl import dumps, facts, plain
from nnfuzz.report.panel import best_first
from nnfuzz.report.printing import command, labelled, put
from nnfuzz.report.summary import about
from nnfuzz.report.telling import nearness, place, what
from nnfuzz.report.terminal import Terminal
from nnfuzz.report.words import count, lasting, near, percent, plural, rate, short, typed
from nnfuzz.store_place import either_at

if TYPE_CHECKING:
    from torch import Tensor

    from nnfuzz.findings.finding import Finding

T = TypeVar("T")
NUMBERS_SHOWN = 8
HIDDEN = {"run", "goal", "near", "prompt", "continuation", "spans", "steps", "draws", "of draws", "B continues"}
"""Details of a finding that are there for ``repro``, or that are told above."""


def show_path(path: Path, as_json: bool, console: Console | None = None) -> bool:
    """Prints all that can be read, and which files cannot and why.

    Returns:
        Whether everything could be read.

    Raises:
        StoreError: the path is neither a run nor a finding.
    """
    damaged: list[str] = []
    show = _run if (either_at(path) / "run.json").is_file() else _one
    parts, document = show(path, damaged)
    if as_json:
        print(dumps(plain({**document, "damaged": damaged} if damaged else document)))
        return not damaged
    if damaged:
        parts = [*parts, Text(), *(Text(text, style="red") for text in damaged)]
    put(console or _console(), parts)
    return not damaged


def _console() -> Console:
    console = Terminal()
    return console if console.is_terminal else Terminal(color_system=None, width=120)


def _run(path: Path, damaged: list[str]) -> tuple[list[RenderableType], dict[str, Any]]:
    manifest = _json(path / "run.json", damaged)
    if manifest.get("kind") == "training":
        return _section(path / "run.json", damaged, lambda: _training(path, manifest)) or ([], manifest)
    stats = _json(path / "stats.json", damaged) if (path / "stats.json").is_file() else {}
    unread = any("stats.json" in text for text in damaged)
    found = _findings(path, damaged)
    head = _section(path / "run.json", damaged, lambda: _settings(manifest)) or []
    settings = manifest.get("settings")
    job = settings.get("job", "") if isinstance(settings, dict) else ""
    parts: list[RenderableType] = [Text.assemble((near(path), "bold"), f"  nnfuzz {job}".rstrip()), *head, Text()]
    if manifest.get("made_by"):
        return [*parts, command("use it", as_seeds(manifest, path))], {"manifest": manifest}
    parts += [] if unread else _section(path / "stats.json", damaged, lambda: _told_stats(stats)) or []
    parts += [Text(), Text(plural(len(found), "finding") if found else "No findings", style="bold")]
    if found:
        parts += [_table(found), command("more", f"nnfuzz show {typed(path / 'findings' / found[0].id)}")]
    document = {"manifest": manifest, "stats": stats, "findings": [facts(f, path) for f in found]}
    return parts, document


def _json(path: Path, damaged: list[str]) -> dict[str, Any]:
    """The document in a file; empty, and the reason noted, when it cannot be read."""
    from nnfuzz.store_files import from_json

    try:
        return from_json(path)
    except StoreError as error:
        damaged.append(str(error))
        return {}


def _section(file: Path, damaged: list[str], make: Callable[[], T]) -> T | None:
    """What ``make`` makes of a document; where something in it is not what it should be, that is noted instead."""
    try:
        return make()
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        damaged.append(f"{file} is damaged ({type(error).__name__}: {error}): restore it from a copy")
        return None


def _settings(manifest: dict[str, Any]) -> list[RenderableType]:
    """How the run was begun."""
    context = manifest.get("context") or {}
    rows: list[tuple[str, RenderableType]] = [
        ("command", Text(_command(manifest.get("command")))),
        ("model", Text(" and ".join(str(context[k]) for k in ("model", "model_b") if context.get(k)))),
        ("seeds", Text(str(context.get("seeds") or ", ".join(context.get("inputs") or [])))),
        ("inputs", _inputs(manifest.get("inputs") or [])),
        ("made by", Text(_made_by(manifest))),
        ("made with", Text(", ".join(f"{k} {manifest[k]}" for k in ("nnfuzz", "python", "torch") if k in manifest))),
    ]
    return [labelled([(label, body) for label, body in rows if not isinstance(body, Text) or body.plain.strip()])]


def _made_by(manifest: dict[str, Any]) -> str:
    """``nnfuzz corpus merge from runs/a, runs/b``; "" for a run."""
    made_by, sources = manifest.get("made_by"), manifest.get("made_from") or []
    return f"{made_by} from {', '.join(near(s) for s in sources)}" if made_by else ""


def _told_stats(stats: dict[str, Any]) -> list[RenderableType]:
    """How far it went, and what each mutator earned."""
    parts: list[RenderableType] = [labelled(_numbers(stats))]
    return [*parts, Text(), _yields(stats["yields"])] if stats.get("yields") else parts


def _findings(path: Path, damaged: list[str]) -> list[Finding]:
    """Those that can be read now: a run that goes on replaces them as it shrinks them."""
    from nnfuzz.findings.save import load_finding

    found = []
    for directory in sorted(p for p in (path / "findings").glob("[!._]*") if p.is_dir()):
        trouble: list[str] = []
        for _ in (1, 2):
            trouble.clear()
            try:
                found.append(load_finding(directory, trouble))
                break
            except StoreError as error:
                trouble.append(str(error))
        damaged += trouble if directory.is_dir() else []
    return found


def _command(argv: Any) -> str:
    return shlex.join(str(a) for a in argv) if isinstance(argv, list) else str(argv or "")


def _inputs(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        shape = ", ".join(str(d) for d in row.get("shape", ()))
        kind = "" if row.get("kind") == "real" else str(row.get("kind", ""))
        legal = "fixed" if row.get("fixed") else str(row.get("range", ""))
        table.add_row(str(row.get("name")), Text(f"{row.get('dtype')}[{shape}]"), kind, Text(legal))
    return table


def _numbers(stats: dict[str, Any]) -> list[tuple[str, RenderableType]]:
    if not stats:
        return [("state", Text("it has no numbers yet"))]
    share = stats.get("share_of_raw_speed")
    speed = rate(stats.get("execs_per_sec") or 0) + (f", {percent(share)} of the model alone" if share else "")
    radius = stats.get("radius")
    corpus = f"{count(stats.get('corpus_count') or 0)} entries"
    return [
        ("ran", Text(f"{plural(stats.get('execs_done') or 0, 'input')} in {lasting(stats.get('run_time') or 0)}")),
        ("speed", Text(speed)),
        ("corpus", Text(corpus + (f", radius {short(radius)}" if radius is not None else ""))),
        ("state", Text(_state(stats.get("stopped")))),
    ]


def _state(stopped: Any) -> str:
    return f"stopped: {stopped}" if stopped else "running, or killed: nnfuzz resume goes on with it"


def _yields(yields: dict[str, list[int]]) -> Table:
    from nnfuzz.stats import MutatorYield

    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(t, style="dim", justify=j) for t, j in _HEAD))  # type: ignore[arg-type]
    for each in best_first([MutatorYield(n, *v) for n, v in yields.items()]):
        numbers = (count(n) for n in (each.tried, each.novel, each.hits))
        table.add_row(f"  {each.name}", *(Text(n, justify="right") for n in numbers))
    return table


_HEAD = (("  mutator", "left"), ("inputs", "right"), ("new", "right"), ("hits", "right"))


def _table(found: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    for finding in found:
        spot = place(finding)
        text = what(finding) + (f" at {spot}" if spot else "")
        status = "" if finding.confirmed else finding.status
        table.add_row(Text(f"  {finding.id}", style="red"), Text(text), Text(nearness(finding)), Text(status))
    return table


def _one(path: Path, damaged: list[str]) -> tuple[list[RenderableType], dict[str, Any]]:
    from nnfuzz.store_files import from_json

    raw = from_json(path / "finding.json")
    if raw.get("kind") == "training":
        return _section(path / "finding.json", damaged, lambda: _lines(raw)) or [], raw
    from nnfuzz.findings.finding import NO_BATCH
    from nnfuzz.findings.save import load_finding

    finding = load_finding(path, damaged)
    parts = about(finding, path.parent.parent)
    rows: list[tuple[str, RenderableType]] = []
    rows += [("input", Text(line)) for line in tensors(finding.inputs)]
    if finding.batch is not None:
        rows.append(("batch", Text(f"it is {finding.batch.told()}: nnfuzz repro and repro.py run them all")))
    elif finding.lacks_batch and raw.get("batch") is None:
        rows.append(("batch", Text(f"{NO_BATCH}: nnfuzz repro runs it alone")))
    rows += [("output", Text(line)) for line in tensors(finding.outputs)]
    way = [str(step.get("op")) for step in finding.lineage]
    if way:
        rows.append(("lineage", Text(f"seed {finding.seed_index} → " + " → ".join(w for w in way if w != "seed"))))
    told = {k: v for k, v in finding.details.items() if k not in HIDDEN}
    rows += [("details" if i == 0 else "", Text(f"{k}: {said(v)}")) for i, (k, v) in enumerate(told.items())]
    files = sorted(p.name for p in path.iterdir() if p.is_file() and p.name != "__init__.py")
    rows.append(("files", Text(", ".join(files))))
    batch = {} if finding.batch is None else {"batch": {"row": finding.batch.row, "count": finding.batch.count}}
    return [*parts, Text(), labelled(rows)], {**facts(finding), "lineage": finding.lineage, **batch}


def tensors(named: dict[str, Tensor]) -> list[str]:
    """``x  float32[1, 784] from 0 to 1: 0, 0.2, …`` each."""
    lines = []
    for name, tensor in named.items():
        shape = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        values = tensor.flatten()[:NUMBERS_SHOWN].tolist()
        shown = ", ".join(said(v) for v in values) + (", …" if tensor.numel() > NUMBERS_SHOWN else "")
        lines.append(f"{name}  {shape}  {shown}")
    return lines


def _training(path: Path, manifest: dict[str, Any]) -> tuple[list[RenderableType], dict[str, Any]]:
    found = manifest.get("findings") or []
    parts: list[RenderableType] = [Text.assemble((near(path), "bold"), "  nnfuzz train")]
    parts.append(labelled([("ran", Text(f"{plural(manifest.get('steps') or 0, 'step')}"))]))
    for each in found:
        parts += [Text(), *_lines(each)]
        parts.append(command("rerun", f"python {typed(path / 'findings' / str(each.get('id')) / 'repro.py')}"))
    if not found:
        parts.append(Text("No findings", style="bold"))
    return parts, manifest


def _lines(raw: dict[str, Any]) -> list[RenderableType]:
    site = raw.get("site") or {}
    spot = (
        f"{site.get('op')}, {near(site['file'])}:{site.get('line')}" if site.get("file") else str(site.get("op") or "")
    )
    keys = ("phase", "mode", "step", "cause", "confirmed", "notes")
    rows: list[tuple[str, RenderableType]] = [("where", Text(spot))] if spot else []
    rows += [(k, Text(said(raw[k]))) for k in keys if raw.get(k) not in (None, "", [])]
    return [Text.assemble((str(raw.get("id")), "bold red"), "  ", (str(raw.get("symptom")), "bold")), labelled(rows)]
