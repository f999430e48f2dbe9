"""`find_nans_in_training`: search for the batches that break a training program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.probe import Site, first_bad
from nnfuzz.store_files import write_atomically
from nnfuzz.training.arm import Hit
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.lens import Lens, place
from nnfuzz.training.plain import Natural
from nnfuzz.training.portfolio import Portfolio
from nnfuzz.training.program import Program, make_program
from nnfuzz.training.replay import evaluate, replay, shorten
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Failure, Mode, Step, Walk, global_rng_kept, seeded, statistics_kept, symptom

Report = Callable[["TrainingRun"], None]

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
) -> TrainingRun:
    """As `find_nans_in_training`, for a program from `load_program`."""
    if max_steps is None and max_seconds is None:
        raise UsageError("neither max_steps nor max_seconds is given, but the search needs an end: give one of them")
    folder = _new_folder(out)
    started = time.monotonic()
    run = TrainingRun()
    with global_rng_kept():
        portfolio = _prepared(
            program, seed, run, lambda: _over(portfolio, started, max_steps, max_seconds), timed=max_steps is None
        )
        for hit in portfolio.hits():
            _take(hit, portfolio, run, time.monotonic() - started)
            if report is not None:
                report(run)
            if run.findings and stop_on_first:
                break
        _close(run, portfolio, time.monotonic() - started)
    if folder is not None:
        _save(run, folder)
    return run


def _over(portfolio: Portfolio, started: float, max_steps: int | None, max_seconds: float | None) -> bool:
    if max_steps is not None and portfolio.moves >= max_steps:
        return True
    return max_seconds is not None and time.monotonic() - started >= max_seconds


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
    """Of one loss with gradients, the second time."""
    walk.check(stream.first)
    started = time.monotonic()
    walk.check(stream.first)
    return max(time.monotonic() - started, 1e-5)


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
    """Replay, shorten, name the operation; a failure of an operation known already is dropped."""
    program, walk, mode = portfolio.program, hit.walk, hit.failure.mode
    tried = portfolio.moves
    if replay(program, walk.seed, walk.initial, hit.steps, mode) is None:
        run.flaky.append(
            f"{hit.failure.symptom} {hit.failure.phase} by {hit.arm} did not replay: the program is not deterministic"
        )
        return
    steps = shorten(program, walk.seed, walk.initial, hit.steps, hit.failure, SHORTENING * portfolio.passes)
    again, (site, cause) = _named(program, walk, steps, mode)
    name = place(site) if site is not None else f"unknown {hit.failure.phase}"
    if name in portfolio.done:
        return
    portfolio.done.add(name)
    seen = again or hit.failure
    run.findings.append(
        TrainingFinding(
            id=f"T{len(run.findings) + 1:04d}",
            phase=seen.phase,
            symptom=seen.symptom,
            mode=seen.mode,
            site=site,
            cause=cause,
            batches=[s.batch for s in steps],
            seeds=[s.seed for s in steps],
            initial_state=walk.initial,
            build_seed=walk.seed,
            confirmed=again is not None,
            seconds=seconds,
            tried=tried,
            steps_found=len(hit.steps) - 1,
            arm=hit.arm,
            program=program,
            natural=str(portfolio.natural),
            drawn="searched" if "noise" in hit.arm else "drawn",
        )
    )


def _named(
    program: Program, walk: Walk, steps: list[Step], mode: Mode
) -> tuple[Failure | None, tuple[Site | None, str]]:
    """Train once more from the start, and look inside the failing step: (failure, (first bad operation, words))."""
    again = Walk.from_state(program, walk.seed, walk.initial)
    for step in steps[:-1]:
        if evaluate(again, step, "train", update=True) is not None:
            return None, (None, "it fails earlier than before")
    last = steps[-1]
    with statistics_kept(again.model):
        failure = evaluate(again, last, mode, update=False)
    if failure is None:
        return None, (None, "it does not fail again")
    again.model.train(mode == "train")
    seeded(last.seed)
    batch = {k: v.clone() for k, v in last.batch.items()}
    if failure.phase == "forward":
        bad = first_bad(program.loss, (again.model, batch))
    else:
        bad = first_bad(lambda model: program.loss(model, batch), (again.model,), backward=True)
    return failure, (None, "the operation could not be found") if bad is None else (bad.site, str(bad))


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
