"""`find_nans_in_training`: search for the batches that break a training program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.store_files import write_atomically
from nnfuzz.training.arm import Hit
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.lens import Lens, place
from nnfuzz.training.naming import named
from nnfuzz.training.plain import Natural
from nnfuzz.training.portfolio import Portfolio
from nnfuzz.training.program import Program, make_program
from nnfuzz.training.replay import retrace, shorten
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, global_rng_kept, symptom

Report = Callable[["TrainingRun"], None]

MEASURED = 5  # passes that are timed at most
SHORTENING = 0.1  # share of the search's passes that may be spent on making a failing sequence shorter


@dataclass(eq=False)
class TrainingRun:
    """What a search gave.

    findings: confirmed failures, one per operation. flaky: failures that did not replay (nondeterministic programs).
    natural:  how plain training did beside it. targets: how near each unsafe operation was brought (name, op, start,
    best; <= 0 is reached).
    steps:    training and scout steps made. seconds: wall time. arms: (way of searching, training steps, share of the
    way) each.
    """

    findings: list[TrainingFinding] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    natural: Natural = field(default_factory=Natural)
    targets: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    arms: list[tuple[str, int, float]] = field(default_factory=list)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f.headline() for f in self.findings] or ["nothing found"]
        lines.append(f"{self.steps} steps in {self.seconds:.1f} s; {self.natural}")
        if not self.findings:
            lines += [f"  nearest: {t['name']} from {t['start']:.3g} to {t['best']:.3g}" for t in self.targets[:3]]
        return "\n".join(lines)


def find_nans_in_training(
    build: Any,
    loss: Any,
    batches: Any,
    *,
    optimizer: Any,
    inputs: Mapping[str, Mapping[str, Any]],
    max_steps: int | None = None,
    max_seconds: float | None = 60,
    seed: int = 0,
    out: str | Path | None = None,
    eval_loss: bool = False,
    stop_on_first: bool = True,
    report: Report | None = None,
) -> TrainingRun:
    """Search, while training goes on, for batches after which the loss or a gradient is not finite.

    build(seed) -> nn.Module; loss(model, batch) -> scalar; batches(seed) -> iterator of dicts of tensors;
    optimizer(model) -> torch.optim.Optimizer. Optimizer and learning rate stay as given.
    inputs:    name → dict(low=, high=) for data that may be searched within its range; dict(fixed=True) for labels,
    which stay with
               their row; role="noise" for numbers that are drawn for every step (searched too where they have a range).
    max_steps: training and scout steps in all. Stopped by it, the same seed gives the same findings.
    eval_loss: the loss counts in eval mode too (dropout off).
    out:       a new directory for run.json and findings/T0001/…
    stop_on_first: return at the first finding; otherwise go on for other operations until the budget is spent.
    """
    program = make_program(build, loss, batches, optimizer, inputs, eval_loss)
    return run_program(
        program,
        max_steps=max_steps,
        max_seconds=max_seconds,
        seed=seed,
        out=out,
        stop_on_first=stop_on_first,
        report=report,
    )


def run_program(
    program: Program,
    *,
    max_steps: int | None = None,
    max_seconds: float | None = 60,
    seed: int = 0,
    out: str | Path | None = None,
    stop_on_first: bool = True,
    report: Report | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainingRun:
    """As `find_nans_in_training`, for a program from `load_program`. clock: what seconds are measured by."""
    if max_steps is None and max_seconds is None:
        raise UsageError("neither max_steps nor max_seconds is given, but the search needs an end: give one of them")
    folder = _new_folder(out)
    started = clock()
    run = TrainingRun()
    with global_rng_kept():
        stop: Callable[[], bool] = lambda: _over(portfolio, clock() - started, max_steps, max_seconds)  # noqa: E731
        portfolio = _prepared(program, seed, run, stop, timed=max_steps is None)
        for hit in portfolio.hits():
            _take(hit, portfolio, run, clock() - started)
            if report is not None:
                report(run)
            if run.findings and stop_on_first:
                break
        _close(run, portfolio, clock() - started)
    if folder is not None:
        _save(run, folder)
    return run


def _over(portfolio: Portfolio, seconds: float, max_steps: int | None, max_seconds: float | None) -> bool:
    if max_steps is not None and portfolio.moves >= max_steps:
        return True
    return max_seconds is not None and seconds >= max_seconds


def _prepared(program: Program, seed: int, run: TrainingRun, stop: Callable[[], bool], timed: bool) -> Portfolio:
    """Check the program on its own first batch, and find its unsafe operations."""
    stream = Stream(program, seed)
    walk = Walk(program, seed)
    _sound(program, walk, stream)
    lens = Lens(program)
    scout = Scout(stream, lens, [])
    lens.survey(walk.model, scout.batch, scout.rows)
    return Portfolio(program, stream, lens, seed, stop, _pass_seconds(walk, stream) if timed else None, run.natural)


def _pass_seconds(walk: Walk, stream: Stream) -> float:
    """Of one loss with gradients: the best of a few, since whatever else runs on the machine only ever adds to it."""
    walk.check(stream.first)
    times: list[float] = []
    while len(times) < MEASURED and sum(times) < 1:
        started = time.monotonic()
        walk.check(stream.first)
        times.append(time.monotonic() - started)
    return max(min(times), 1e-5)


def _sound(program: Program, walk: Walk, stream: Stream) -> None:
    """The loss of the first natural batch must be a finite scalar: otherwise there is nothing to search for."""
    try:
        value = program.loss(walk.model, dict(stream.first))
    except Exception as error:
        raise ModelFailure(
            f"loss(model, batch) raises on the first natural batch ({type(error).__name__}: {error}): make one plain "
            "step work first"
        ) from error
    if not hasattr(value, "numel") or value.numel() != 1:
        raise UsageError(
            f"loss(model, batch) gives {getattr(value, 'shape', type(value).__name__)}, but training needs a scalar: "
            "reduce it"
        )
    if bad := symptom([value.detach()]):
        raise ModelFailure(
            f"the loss of the first natural batch is {bad} already, but the search starts from finite training: look "
            "at it with first_bad"
        )


# ------------------------------------------------------------------------------------------------ from hit to finding


def _take(hit: Hit, portfolio: Portfolio, run: TrainingRun, seconds: float) -> None:
    """Replay, name the operation, shorten; a failure of an operation known already is dropped."""
    program, walk, mode = portfolio.program, hit.walk, hit.failure.mode
    tried = portfolio.moves
    seen = retrace(program, walk.seed, walk.initial, hit.steps, mode)
    if seen is None:
        run.flaky.append(
            f"{hit.failure.symptom} {hit.failure.phase} by {hit.arm} did not replay: the program is not deterministic"
        )
        return
    site, cause = named(program, seen)
    name = place(site) if site is not None else f"unknown {seen.failure.phase}"
    if name in portfolio.done:
        return
    portfolio.done.add(name)
    steps = shorten(program, walk.seed, walk.initial, seen.steps, seen.failure, SHORTENING * portfolio.passes)
    if len(steps) < len(seen.steps):
        shorter = retrace(program, walk.seed, walk.initial, steps, mode, tries=0)
        again = (None, "") if shorter is None else named(program, shorter)
        if shorter is not None and again[0] is not None and place(again[0]) == name:
            seen, (site, cause) = shorter, again
    run.findings.append(
        TrainingFinding(
            id=f"T{len(run.findings) + 1:04d}",
            phase=seen.failure.phase,
            symptom=seen.failure.symptom,
            mode=seen.failure.mode,
            site=site,
            cause=cause,
            batches=[s.batch for s in seen.steps],
            seeds=[s.seed for s in seen.steps],
            initial_state=walk.initial,
            build_seed=walk.seed,
            confirmed=True,
            seconds=seconds,
            tried=tried,
            steps_found=len(hit.steps) - 1,
            arm=hit.arm,
            program=program,
            natural=str(portfolio.natural),
            drawn="searched" if "noise" in hit.arm else "drawn",
        )
    )


# ------------------------------------------------------------------------------------------------ the end


def _close(run: TrainingRun, portfolio: Portfolio, seconds: float) -> None:
    run.seconds, run.steps = seconds, portfolio.moves
    targets = sorted(portfolio.lens.targets.values(), key=lambda t: -t.covered(t.best))
    run.targets = [{"name": t.name, "op": t.op, "start": t.start, "best": t.best} for t in targets]
    run.arms = [(a.name, len(a.walk.steps) + a.moves, a.covered) for a in portfolio.arms]
    for finding in run.findings:
        finding.natural = str(portfolio.natural)


def _new_folder(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty, but a run is never written over another: choose a new directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _save(run: TrainingRun, folder: Path) -> None:
    for finding in run.findings:
        finding.save(folder / "findings" / finding.id)
    about = {
        "kind": "training",
        "findings": [f.about() for f in run.findings],
        "flaky": run.flaky,
        "natural": str(run.natural),
        "targets": run.targets,
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
    }
    write_atomically(folder / "run.json", json.dumps(about, indent=2) + "\n")
