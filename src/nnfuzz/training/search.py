"""`find_nans_in_training`: search for the batches that break a training program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.probe import first_bad
from nnfuzz.training.arm import Hit
from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.guarded import ProgramFailed
from nnfuzz.training.lens import Lens, place
from nnfuzz.training.naming import named
from nnfuzz.training.outcome import TrainingRun, free_folder, give_up, save, save_at_end
from nnfuzz.training.portfolio import Portfolio
from nnfuzz.training.program import Program, make_program
from nnfuzz.training.replay import retrace, shorten
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk, global_rng_kept, statistics_kept, symptom
from nnfuzz.training.watch import Watch

Report = Callable[["TrainingRun"], None]

MEASURED = 5  # passes that are timed at most
SAVED_EVERY = 10.0  # seconds between two writings of run.json
PLAIN, PLAIN_SECONDS = 50, 1.0  # steps and seconds of plain training after a failure that came before its turn
SHORTENING = 0.1  # share of the search's passes that may be spent on making a failing sequence shorter


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
    """Search, while training goes on, for batches on which the loss or a gradient is not finite, or raises.

    build(seed) -> nn.Module; loss(model, batch) -> scalar; batches(seed) -> iterator of dicts of tensors;
    optimizer(model) -> torch.optim.Optimizer. Optimizer and learning rate stay as given.
    inputs:    name → dict(low=, high=) for data that may be searched within its range; dict(fixed=True) for labels,
    which stay with
               their row; role="noise" for numbers that are drawn for every step (searched too where they have a range).
    max_steps: training and scout steps in all. Stopped by it, the same seed gives the same findings.
    eval_loss: the loss counts in eval mode too (dropout off).
    out:       a new directory for run.json and findings/T0001/…, each written when it is found.
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
    progress: Report | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainingRun:
    """As `find_nans_in_training`, for a program from `load_program`.

    progress: called about once a second with the run so far. clock: what seconds are measured by.
    Raises ModelFailure where the program raises on its first batch, or elsewhere than in its loss and gradient; what
    was found until then is in `out`.
    """
    if max_steps is None and max_seconds is None:
        raise UsageError("neither max_steps nor max_seconds is given, but the search needs an end: give one of them")
    folder = None if out is None else free_folder(out)
    run = TrainingRun(program=None if program.path is None else str(program.path), seed=seed)
    try:
        with global_rng_kept():
            _search(program, run, folder, max_steps, max_seconds, seed, stop_on_first, report, progress, clock)
    finally:
        if folder is not None:
            give_up(folder)  # it holds a run, or none came to it
    return run


def _search(
    program: Program,
    run: TrainingRun,
    folder: Path | None,
    max_steps: int | None,
    max_seconds: float | None,
    seed: int,
    stop_on_first: bool,
    report: Report | None,
    progress: Report | None,
    clock: Callable[[], float],
) -> None:
    def look() -> None:
        _read(run, portfolio, watch.seconds)
        if progress is not None:
            progress(run)
        if folder is not None and run.seconds >= saved[0] + SAVED_EVERY:
            saved[0] = run.seconds
            save(run, folder)

    saved = [0.0]
    watch = Watch(clock, max_steps, max_seconds, look)
    portfolio = _prepared(program, seed, run, lambda: watch.over(portfolio), timed=max_steps is None)
    if folder is not None:
        save(run, folder)
    if progress is not None:
        progress(run)
    try:
        with watch.on_signals():
            for hit in portfolio.hits():
                found = len(run.findings)
                _take(hit, portfolio, run, watch.seconds)
                if folder is not None and len(run.findings) > found:
                    save(run, folder)
                if report is not None:
                    report(run)
                if run.findings and stop_on_first:
                    break
            _plain_too(portfolio, watch)
        run.stopped = "interrupted" if watch.asked else ""
    except KeyboardInterrupt:
        run.stopped = "interrupted"
    except ProgramFailed as error:
        raise _told(error, run, portfolio, folder) from error
    except Exception:
        run.stopped = "failed"
        raise
    finally:
        _read(run, portfolio, watch.seconds)
        _close(run, portfolio)
        if folder is not None:
            save_at_end(run, folder)


def _told(error: ProgramFailed, run: TrainingRun, portfolio: Portfolio, folder: Path | None) -> ModelFailure:
    """What the program did in the middle of the search, with the step and what is left of the run."""
    run.stopped = "failed"
    found = f"{len(run.findings) or 'no'} finding{'s' * (len(run.findings) != 1)}"
    kept = "" if folder is None else f"; {folder} holds {found} made before"
    run.notes.append(f"{error.what} {error.why}")
    return ModelFailure(f"{error.what} {error.why} after {portfolio.moves} steps of the search{kept}")


def _plain_too(portfolio: Portfolio, watch: Watch) -> None:
    """A little plain training, where a failure was found before its turn: does it come by itself?"""
    plain, started = portfolio.arms[0], time.monotonic()
    for _ in range(PLAIN):
        late = watch.max_steps is None and time.monotonic() - started > PLAIN_SECONDS
        if portfolio.natural.steps >= PLAIN or portfolio.natural.failed_at is not None or late:
            return
        if watch.over(portfolio):
            return
        plain.round()


def _prepared(program: Program, seed: int, run: TrainingRun, stop: Callable[[], bool], timed: bool) -> Portfolio:
    """Check the program on its own first batch, and find its unsafe operations."""
    stream = Stream(program, seed)
    walk = Walk(program, seed)
    _sound(program, walk, stream)
    stream.whole = not _takes_fewer_rows(program, walk, stream)
    lens = Lens(program)
    scout = Scout(stream, lens, [])
    lens.survey(walk.model, scout.batch, scout.rows)
    return Portfolio(program, stream, lens, seed, stop, _pass_seconds(walk, stream) if timed else None, run.natural)


def _takes_fewer_rows(program: Program, walk: Walk, stream: Stream) -> bool:
    """Whether the loss can look at a few rows alone: not where it counts on the size of a batch."""
    few = Scout(stream, Lens(program), []).batch
    try:
        with statistics_kept(walk.model):
            program.loss(walk.model, dict(few))
    except ProgramFailed:
        return False
    return True


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
    except ProgramFailed as error:
        raise ModelFailure(
            f"{error.what} {error.why} on the first natural batch: make one plain step work first"
        ) from error
    if bad := symptom([value.detach()]):
        found = first_bad(program.loss, (walk.model, dict(stream.first)))
        raise ModelFailure(
            f"the loss of the first natural batch is {bad} already{'' if found is None else f', at {found.site}'}, but "
            "the search starts from finite training: mend that first (nnfuzz.probe.first_bad tells the chain of values)"
        )
    if not value.requires_grad:
        raise UsageError(
            "loss(model, batch) gives a number that does not depend on the model's parameters by gradients: compute it "
            "from the model's outputs, without .detach(), .item() or torch.no_grad()"
        )


# ------------------------------------------------------------------------------------------------ from hit to finding


def _take(hit: Hit, portfolio: Portfolio, run: TrainingRun, seconds: float) -> None:
    """Replay, name the operation, shorten; a failure of an operation known already is dropped."""
    program, walk, mode = portfolio.program, hit.walk, hit.failure.mode
    tried = portfolio.moves
    seen = retrace(program, walk.seed, walk.initial, hit.steps, mode)
    if seen is None:
        run.flaky.append(f"{hit.failure}, by {hit.arm}, did not replay: the program is not deterministic")
        return
    site, cause = named(program, seen)
    name = place(site) if site is not None else f"unknown {seen.failure.phase}"
    name += "!raises" * bool(seen.failure.raised)
    if name in portfolio.done:
        return
    portfolio.done.add(name)
    steps = shorten(program, walk.seed, walk.initial, seen.steps, seen.failure, SHORTENING * portfolio.passes)
    if len(steps) < len(seen.steps):
        shorter = retrace(program, walk.seed, walk.initial, steps, mode, tries=0)
        again = (None, "") if shorter is None else named(program, shorter)
        if shorter is not None and again[0] is not None and site is not None and place(again[0]) == place(site):
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


def _read(run: TrainingRun, portfolio: Portfolio, seconds: float) -> None:
    """How far it is by now."""
    run.seconds, run.steps = seconds, portfolio.moves
    targets = sorted(portfolio.lens.targets.values(), key=lambda t: -t.covered(t.best))
    run.targets = [{"name": t.name, "op": t.op, "start": t.start, "best": t.best} for t in targets]


def _close(run: TrainingRun, portfolio: Portfolio) -> None:
    run.arms = [(a.name, len(a.walk.steps) + a.moves, a.covered) for a in portfolio.arms]
    run.notes += portfolio.stream.notes()
    for finding in run.findings:
        finding.natural = str(portfolio.natural)
