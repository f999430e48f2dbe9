"""The jobs: which target and which objectives each command means, and what it says of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from nnfuzz.callform import CallForm
from nnfuzz.divergence.outcome import After
from nnfuzz.divergence.pool import Pool
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.fingerprint import fingerprint
from nnfuzz.gradient import Guide, ScoreGuide, SiteGuide
from nnfuzz.inputs import listed
from nnfuzz.kinds import ALIASES, KINDS
from nnfuzz.objectives import DeadGradient, Disagreement, NonFinite, Objective, Property
from nnfuzz.objectives.compare import ROUNDING
from nnfuzz.objectives.dead_gradient import check_loss, differentiated
from nnfuzz.objectives.rows import RowsDiffer
from nnfuzz.onnx.asked import split
from nnfuzz.onnx.matching import check_first_axes, inputs_of, match_inputs, match_outputs
from nnfuzz.seeds import SeedGroup, Seeds, as_whole, read_seeds
from nnfuzz.settings import Settings
from nnfuzz.space import Batch, InputSpace, rows, size
from nnfuzz.targets import PairTarget, Target, TorchTarget, Want
from nnfuzz.targets.copies import Copies, calibration_parts
from nnfuzz.targets.drive import Named
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.precision import TorchCopies
from nnfuzz.targets.rowwise import RowwiseTarget
from nnfuzz.targets.unit import Plan, check_drive, decide, random_candidates

Model = Callable[..., Any]
KEPT = {"model": "model.onnx", "model_b": "model_b.onnx"}
"""Models of other runtimes that were given in Python without a file, in a run directory."""
COPY = "copy.onnx"
"""The copy of an ONNX model in a run directory: made with all seeds of the run, of which a finding has but one."""


class Job(ABC):
    """``prepare`` looks at the model with the seeds; after it ``target`` and ``seeds`` stand."""

    def __init__(self, settings: Settings, model: Model, seeds: Any):
        self.settings, self.model = settings, model
        self.given = seeds if isinstance(seeds, Seeds) else _read(seeds, model)
        self.stacked = self.given.stacked
        self.side = target_for(
            model, self.given.form, settings, name=settings.context.get("model") or "", layers=settings.layers
        )
        self.side.labels = labels(settings, self.given)
        self.seeds = self.given
        self.plan: Plan | None = None
        self.fingerprint: dict[str, Any] = {}
        self.pool: Pool | None = None
        """Where hits are kept beside findings, for jobs that look at them again."""
        self.found_in: Path | None = None
        """The directory of the finding that is gone back to."""

    @property
    def target(self) -> Target:
        return self.side

    def target_session(self) -> AbstractContextManager[None]:
        return self.side.session()

    def prepare(self) -> None:
        """Finds out what a candidate is. Raises ``ModelFailure`` when the model fails on its seeds."""
        self.plan = plan_for(self.side, self.given, self.settings, self.whole_shapes())
        self.side.adopt(self.plan)
        self.seeds = self.plan.seeds

    def check(self, space: InputSpace) -> None:
        """A fast way of running is tried again on random legal inputs."""
        assert self.plan is not None
        generator = torch.Generator().manual_seed(self.settings.seed)
        kept = check_drive(self.side.call, on_device(self.plan, self.side), space, generator)
        self.side.drive = kept.drive
        self.side.check(lambda: self._random(space))

    def _random(self, space: InputSpace) -> Batch:
        """Random legal candidates, on which a fast way of running is tried again."""
        group = max(self.seeds.groups, key=lambda g: len(g.index))
        generator = torch.Generator().manual_seed(self.settings.seed)
        return random_candidates(space, {n: t.to(self.side.device) for n, t in group.batch.items()}, generator)

    def constraint(self) -> Callable[[Batch], Batch] | None:
        fn = self.settings.constraint
        if fn is not None and not callable(fn):
            raise UsageError(f"the constraint is {fn!r}, but a function from a dict of inputs to such a dict is needed")
        return fn

    def whole_shapes(self) -> bool:
        """Whether ``shapes`` counts the seeds' first axis as part of a candidate."""
        shapes = self.settings.shapes or {}
        given = self.given.groups[0].batch
        return self.given.stacked and any(
            len(listed(dims)) == given[self.given.form.resolve(n, "shapes")].dim() for n, dims in shapes.items()
        )

    def keep(self, folder: Path) -> None:
        """Writes what a rerun needs beside the seeds into a new run directory."""
        for which, name in KEPT.items():
            model = getattr(self, which, None)
            if isinstance(model, ForeignModel) and model.path is None:
                model.save(folder / name)
                self.settings.context[which] = str((folder / name).resolve())

    def afterwards(self, fuzzer: Any, findings: list[Finding], run: Path | None, tell: Callable[[str], None]) -> After:
        """A closer look at what a run has found, before its findings are saved. ``run``: its directory."""
        return After()

    def notes(self) -> list[str]:
        return [*self.given.notes, *self.side.notes]

    def guidable(self) -> bool:
        """Whether gradients may lead the search at all."""
        return self.side.sees_inside

    def guides(self, objectives: list[Objective]) -> list[Guide]:
        """What gradients follow."""
        assert isinstance(self.target, TorchTarget | PairTarget)
        return [ScoreGuide(self.target, objectives[0])]

    @abstractmethod
    def objectives(self) -> list[Objective]: ...

    @abstractmethod
    def searched(self) -> str:
        """What counts as a hit, in the user's words."""


class NanJob(Job):
    """Inputs that give non-finite numbers, in outputs and in gradients."""

    def objectives(self) -> list[Objective]:
        phase = self.settings.phase
        if phase == "auto" and not self.side.trainable:
            phase = "forward"
        differentiable = phase != "forward" and self._differentiable()
        if phase in ("backward", "both") and not differentiable:
            raise UsageError(
                f"phase={phase} needs a model with gradients, but none reach its inputs or parameters: use forward"
            )
        found: list[Objective] = []
        if phase != "backward":
            found.append(NonFinite(self.settings.watch))
        if differentiable:
            found.append(NonFinite("outputs", backward=True))
        self._phases = [("gradients" if o.want.backward else "outputs") for o in found]
        return found

    def guides(self, objectives: list[Objective]) -> list[Guide]:
        looked_at = any(o.want.backward for o in objectives)
        return [SiteGuide(self.side, backward=looked_at or self.side.trainable)]

    def searched(self) -> str:
        where = {"layers": " and in every layer's output", "internal": " and inside"}.get(self.settings.watch, "")
        return f"NaN and Inf in {' and '.join(self._phases)}{where}"

    def _differentiable(self) -> bool:
        first = rows(max(self.seeds.groups, key=lambda g: len(g.index)).batch, slice(0, 1))
        first = {n: t.to(self.side.device) for n, t in first.items()}
        try:
            trace = self.side.run(first, Want(layers=False, backward=True))
        except Exception as error:  # the reason is told; the forward pass is fuzzed all the same
            self.side.notes.append(f"gradients cannot be looked at ({type(error).__name__}: {error})"[:200])
            return False
        return any(bool((g != 0).any()) for g in trace.gradients.values())


class FuzzJob(Job):
    """Any property of outputs and inputs; or a loss whose gradient dies."""

    def objectives(self) -> list[Objective]:
        if self.settings.objective == DeadGradient.name:
            return [self._dead_gradient()]
        if not callable(self.settings.objective):
            raise UsageError(
                f"the objective is {self.settings.objective!r}, but a function fn(outputs, inputs) that returns a bool "
                f"mask, or (mask, score), or the name {DeadGradient.name!r} is needed"
            )
        return [Property(self.settings.objective, per_candidate=self.side.unit == "batch")]

    def _dead_gradient(self) -> DeadGradient:
        """Raises ``UsageError`` when the model is no loss."""
        batch = max(self.seeds.groups, key=lambda g: len(g.index)).batch
        first = {n: t[:1].to(self.side.device) for n, t in batch.items()}
        check_loss(self.side.run(first, Want(layers=False)), 1)
        form, settings = self.given.form, self.settings
        fixed = [form.resolve(n, "fixed") for n in settings.fixed]
        kinds = {form.resolve(n, "kinds"): kind for n, kind in (settings.kinds or {}).items()}
        by = differentiated(batch, fixed, kinds)
        if not by and not self.side.parameters:
            raise UsageError("dead-gradient needs a floating-point input or parameters to differentiate the loss by")
        return DeadGradient(self.side, by)

    def searched(self) -> str:
        if self.settings.objective == DeadGradient.name:
            return "a large loss whose gradient vanishes or points the wrong way"
        return f"inputs that violate {getattr(self.settings.objective, '__name__', 'the objective')}"


class DiffJob(Job):
    """Inputs on which two models disagree."""

    def __init__(self, settings: Settings, model: Model, model_b: Model | None, seeds: Any):
        super().__init__(settings, model, seeds)
        if (model_b is None) == (settings.as_ is None):
            raise UsageError(
                "diff needs a second model or as_ (fp16, bf16, int8; of ONNX models int8-dynamic, int8-static, fp16): "
                "give exactly one of the two"
            )
        self.model_b = model_b
        self.pair: PairTarget | None = None
        self.pool = Pool(settings.seed)
        self.copies: Copies | None = None
        """What derives B from A, where ``as_`` asks for that."""
        self._matched: list[str] = []
        self._asked_outputs: dict[str, str] = {}
        self._open = ExitStack()

    @property
    def target(self) -> Target:
        assert self.pair is not None
        return self.pair

    @contextmanager
    def target_session(self) -> Iterator[None]:
        with self.side.session(), self._open:
            yield

    def prepare(self) -> None:
        settings = self.settings
        form: CallForm = self.given.form
        names: dict[str, str] | None = None
        if self.model_b is not None:
            form, names = self._matched_inputs(self.model_b)  # what cannot fit is said before anything runs
        with _told_which("A", self.side):
            super().prepare()
        if self.model_b is None:
            assert settings.as_ is not None
            self.copies = self._copies(settings.as_)
            saved = settings.context.get("copy")
            other: Model = self.copies.load(Path(saved)) if saved and self.copies.stored else self.copies.model()
            name = f"{self.side.name} as {settings.as_}"
        else:
            other, name = self.model_b, settings.context.get("model_b") or ""
        b = target_for(other, form, settings, name=name)
        self.pair = PairTarget(self.side, b, names)
        self.pair.covered = settings.covered
        self._open.enter_context(b.session())
        with _told_which("B", b):
            self._plan_b(self.pair)
        if names is not None or isinstance(self.model, ForeignModel):
            self._match_outputs(self.pair, tell=names is not None)

    def variant(self, keep: Sequence[str], *, quick: bool = False) -> PairTarget:
        """The same pair with a B in which these layers are as in A; ``quick``: see ``Copies.sketch``."""
        assert self.copies is not None
        assert self.pair is not None
        model = self.copies.sketch(keep) if quick else self.copies.model(keep)
        b = target_for(model, self.pair.b.form, self.settings, name=self.pair.b.name)
        b.unit, b.drive, b.grad_mode = self.pair.b.unit, self.pair.b.drive, self.pair.b.grad_mode
        made = PairTarget(self.side, b, self.pair.names)
        made.outputs = self.pair.outputs
        return made

    def afterwards(self, fuzzer: Any, findings: list[Finding], run: Path | None, tell: Callable[[str], None]) -> After:
        from nnfuzz.divergence.after import look_closer

        return look_closer(self, fuzzer, findings, run, tell)

    def _copies(self, way: str) -> Copies:
        if not isinstance(self.model, ForeignModel):
            return TorchCopies(self.model, way, self._calibrate)
        return self.model.copies(way, calibration_parts([g.batch for g in self.seeds.groups], self.side.unit))

    def keep(self, folder: Path) -> None:
        super().keep(folder)
        if self.copies is not None and self.copies.stored:
            place = folder / COPY
            self.copies.save(place)
            self.settings.context["copy"] = str(place.resolve())

    def _matched_inputs(self, model_b: Model) -> tuple[CallForm, dict[str, str] | None]:
        """How B takes the inputs; what the user or a graph says of names is matched by them."""
        if not self.settings.match and not any(isinstance(m, ForeignModel) for m in (self.model, model_b)):
            try:
                return matching_form(self.given, model_b), None
            except UsageError as error:
                raise UsageError(f"B does not take what A does: {error}") from error
        theirs = list(inputs_of(model_b, list(self.given.form.names))[0])
        words = {**self.given.form.aliases, **{n: n for n in self.given.form.names}}
        asked, self._asked_outputs = split(self.settings.match or {}, self.model, model_b, words, theirs or None)
        found = match_inputs(self.given, self.model, model_b, asked)
        if found.dropped:
            self._matched.append(f"B takes no input like {', '.join(found.dropped)} of A: it runs without")
        return found.form, found.names

    def _plan_b(self, pair: PairTarget) -> None:
        """B takes the candidates as A does; rows that A takes together it may take one by one."""
        given, unit = self.given, "auto" if not self.given.stacked else self.side.unit
        renamed = [SeedGroup({pair.names[n]: t for n, t in g.batch.items() if n in pair.names}, g.index)
                   for g in given.groups]  # fmt: skip
        seeds = Seeds(pair.b.form, renamed, given.stacked)
        if isinstance(self.model_b, ForeignModel):
            check_first_axes(pair.names, self.model_b, self.seeds.groups[0].batch, unit == "sample")
        if pair.b.mixes_rows and given.stacked and unit == "sample":
            pair.b.adopt(plan_for(pair.b, as_whole(seeds, 1), Settings(), whole=False))
            self._matched.append(
                "B quantizes whatever it is given by one scale, so that rows change one another: it takes one at a time"
            )
            return
        try:
            pair.b.adopt(plan_for(pair.b, seeds, Settings(unit=unit), self.whole_shapes()))
        except (ModelFailure, UsageError):
            if not (given.stacked and self.side.unit == "sample"):
                raise
            pair.b.adopt(plan_for(pair.b, as_whole(seeds, 1), Settings(), whole=False))

    def _match_outputs(self, pair: PairTarget, *, tell: bool) -> None:
        """Found on a seed: what each side gives is only known then."""
        group = self.seeds.groups[0].batch
        first = {n: t.to(self.side.device) for n, t in rows(group, slice(0, 1)).items()}
        sides = pair.answers(first, Want(layers=False))
        found = match_outputs(sides[0].outputs, sides[1].outputs, self._asked_outputs)
        pair.outputs = found.pairs
        self._matched += found.said(pair.names) if tell else []

    def check(self, space: InputSpace) -> None:
        super().check(space)
        assert self.pair is not None
        pair = self.pair
        pair.b.check(lambda: pair.for_b(self._random(space)))
        if self.pair.b.drive in ("fold", "vmap"):  # verified on the seeds only: the first side's answer decides
            self.pair.b.drive = self.pair.b.drive if self.side.drive == self.pair.b.drive else "loop"

    def objectives(self) -> list[Objective]:
        return [Disagreement(
            self.settings.compare, ties=self.settings.ties, unit=self.side.unit,
            rounding=ROUNDING if self.pair is not None and self.pair.a.runtime != self.pair.b.runtime else 0.0,
        )]  # fmt: skip

    def searched(self) -> str:
        name = self.settings.compare if isinstance(self.settings.compare, str) else "the given comparison"
        return f"disagreements by {name}{' (ties counted)' if self.settings.ties else ''}"

    def notes(self) -> list[str]:
        of_copy = self.copies.notes if self.copies is not None else []
        return [*self._matched, *super().notes(), *of_copy, *(self.pair.b.notes if self.pair else [])]

    def guidable(self) -> bool:
        return any(side.sees_inside for side in (self.side, self.pair.b if self.pair else self.side))

    def _calibrate(self, twin: torch.nn.Module) -> None:
        twin.eval()
        for group in self.seeds.groups:
            some = {n: t[:256].to(self.side.device) for n, t in group.batch.items()}
            whole = [{n: t[i] for n, t in some.items()} for i in range(size(some))]
            for inputs in [some] if self.side.unit == "sample" else whole:
                self.side.form.call(twin, inputs)


@contextmanager
def _told_which(side: str, target: TorchTarget) -> Iterator[None]:
    """Of two models that get the same seeds, which one refuses them."""
    try:
        yield
    except ModelFailure as error:
        why = str(error).removeprefix("the model fails on its own seeds: ")  # they need not be its own
        raise ModelFailure(f"{side} ({target.name}) refuses the seeds: {why}") from error


class RowsJob(Job):
    """A row's result must not depend on the rest of its batch."""

    def __init__(self, settings: Settings, model: Model, seeds: Any):
        super().__init__(settings, model, seeds)
        self.rowwise: RowwiseTarget | None = None

    @property
    def target(self) -> Target:
        assert self.rowwise is not None
        return self.rowwise

    def prepare(self) -> None:
        self.rowwise = RowwiseTarget(self.side)
        self.seeds = self.rowwise.groups_of_rows(self.given)

    def check(self, space: InputSpace) -> None:
        """There is nothing to choose: rows are run together and alone."""

    def guidable(self) -> bool:
        return False

    def objectives(self) -> list[Objective]:
        return [RowsDiffer(*self.settings.tolerance)]

    def searched(self) -> str:
        return "rows whose result depends on the rest of their batch, or on train() against eval()"

    def notes(self) -> list[str]:
        return super().notes() + (self.rowwise.notes if self.rowwise else [])


def make_job(settings: Settings, model: Model, model_b: Model | None, seeds: Any) -> Job:
    """The job by its name in the settings, with the fingerprint of its models."""
    kinds: dict[str, type[Job]] = {"nan": NanJob, "fuzz": FuzzJob, "rows": RowsJob}
    if settings.job == "diff":
        job: Job = DiffJob(settings, model, model_b, seeds)
    elif settings.job in kinds:
        job = kinds[settings.job](settings, model, seeds)
    else:
        raise UsageError(f"the job {settings.job!r} is not known: choose one of {', '.join([*kinds, 'diff'])}")
    if job.side.device.type == "meta":
        raise UsageError(
            f"{job.side.name} is on the meta device, which holds shapes and no numbers: make it on the cpu, or move it "
            "with to_empty and load its weights"
        )
    job.fingerprint = fingerprint(settings.context, {"model": model, "model_b": model_b})
    return job


def with_copy(context: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The context of a run with the places of the models that lie in its directory."""
    places = {which: run / name for which, name in {**KEPT, "copy": COPY}.items() if not context.get(which)}
    return {**context, **{which: str(place.resolve()) for which, place in places.items() if place.is_file()}}


def target_for(model: Model, form: CallForm, settings: Settings, **more: Any) -> TorchTarget:
    """The target of a model of any kind; ``more``: its name, and which layers to watch."""
    if isinstance(model, ForeignModel):
        return model.as_target(
            form, device=settings.device, train=settings.train, flush_denormal=settings.flush_denormal, **more
        )
    return TorchTarget(model, form, device=settings.device, train=settings.train, **more)


def _read(seeds: Any, model: Model) -> Seeds:
    return model.read_seeds(seeds) if isinstance(model, ForeignModel) else read_seeds(seeds, model)


def labels(settings: Settings, seeds: Seeds) -> frozenset[str]:
    """Inputs that are fixed or of a discrete kind: what a training step takes as given."""
    resolve = seeds.form.resolve
    found = {resolve(n, "fixed") for n in settings.fixed}
    for name, kind in (settings.kinds or {}).items():
        kind = ALIASES.get(kind.lower(), kind.lower())
        if kind in KINDS and KINDS[kind].discrete:
            found.add(resolve(name, "kinds"))
    return frozenset(found)


def plan_for(side: TorchTarget, seeds: Seeds, settings: Settings, whole: bool) -> Plan:
    """What a candidate is, under the first gradient mode in which the model runs."""
    moved = Seeds(
        seeds.form,
        [SeedGroup({n: t.to(side.device) for n, t in g.batch.items()}, g.index) for g in seeds.groups],
        seeds.stacked,
        seeds.notes,
    )
    found: list[Plan] = []

    def call(inputs: Batch) -> Named:
        return side.call(
            {n: t.clone() for n, t in inputs.items()}
        )  # whether the model keeps its input is not known yet

    def attempt() -> None:
        found[:] = [decide(call, moved, settings.unit, shapes_are_whole=whole)]

    side.find_grad_mode(attempt)
    if not found:
        attempt()
    plan = found[0]
    whole_first = plan.seeds.groups[0].batch
    side.look_twice(
        rows(whole_first, slice(0, 1)) if plan.unit == "sample" else {n: t[0] for n, t in whole_first.items()}
    )
    return plan


def on_device(plan: Plan, side: TorchTarget) -> Plan:
    groups = [SeedGroup({n: t.to(side.device) for n, t in g.batch.items()}, g.index) for g in plan.seeds.groups]
    return Plan(plan.unit, plan.drive, Seeds(plan.seeds.form, groups, plan.seeds.stacked), plan.why)


def matching_form(seeds: Seeds, other: Model) -> Any:
    """How the second model takes the same inputs: by the same names where it has them, else in order."""
    from nnfuzz.callform import CallForm, parameters

    names, any_keyword, any_position = parameters(other)
    mine = seeds.form.names
    if seeds.form.keyword and (any_keyword or all(k in names for k in seeds.form.keyword)):
        return seeds.form
    if any("." in n for n in mine) or (any_position and not names):
        return seeds.form
    first = {n: t[0] for n, t in seeds.groups[0].batch.items()}
    return CallForm.of(other, tuple(first.values()))
