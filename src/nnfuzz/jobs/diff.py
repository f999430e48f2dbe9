"""The job with two models, or with a model and its copy: where they disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from nnfuzz.callform import CallForm
from nnfuzz.divergence.outcome import After
from nnfuzz.divergence.pool import Pool
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.jobs.base import Job
from nnfuzz.jobs.planning import Model, matching_form, plan_for, target_for
from nnfuzz.objectives import Disagreement, Objective
from nnfuzz.objectives.compare import ROUNDING
from nnfuzz.onnx.asked import split
from nnfuzz.onnx.matching import as_declared, check_first_axes, inputs_of, match_inputs, match_outputs
from nnfuzz.seeds import SeedGroup, Seeds, as_whole
from nnfuzz.settings import Settings
from nnfuzz.space import InputSpace, rows, size
from nnfuzz.targets import PairTarget, Target, TorchTarget, Want
from nnfuzz.targets.copies import Copies, calibration_parts
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.precision import TorchCopies

COPY = "copy.onnx"
"""The copy of an ONNX model in a run directory: made with all seeds of the run, of which a finding has but one."""


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
        try:
            found = match_inputs(self.given, self.model, model_b, asked)
        except UsageError:
            if isinstance(self.model, ForeignModel) or not isinstance(model_b, ForeignModel) or not self.stacked:
                raise
            declared = as_declared(self.given, model_b, asked)
            if declared is None or declared.stacked:
                raise
            found = match_inputs(declared, self.model, model_b, asked)
            self.given, self.stacked = declared, False
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
        if given.stacked and unit == "sample" and (why := self._mixing(pair.b, seeds)):
            pair.b.adopt(plan_for(pair.b, as_whole(seeds, 1), Settings(), whole=False))
            self._matched.append(f"{why}: it takes one at a time")
            return
        try:
            pair.b.adopt(plan_for(pair.b, seeds, Settings(unit=unit), self.whole_shapes()))
        except (ModelFailure, UsageError):
            if not (given.stacked and self.side.unit == "sample"):
                raise
            pair.b.adopt(plan_for(pair.b, as_whole(seeds, 1), Settings(), whole=False))

    def _mixing(self, b: TorchTarget, seeds: Seeds) -> str:
        """Why rows that A takes together would change one another in B; "" where they do not."""
        if b.mixes_rows:
            return "B quantizes whatever it is given by one scale, so that rows change one another"
        joins = b.joins_rows(seeds)
        return f"in B {joins}" if joins else ""

    def reconsider(self, space: InputSpace) -> bool:
        """How B takes candidates follows from how A does: they stay as the seeds and the graphs show them."""
        return False

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
        theirs = [pair.names[s.name] for s in space.mutable if s.name in pair.names]
        self._say_unreached(pair.b, theirs, bool(space.free_dims), "B: ")
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
