"""The jobs with one model: NaN and Inf, properties and losses, rows that depend on their batch."""

from __future__ import annotations

from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.gradient import Guide, SiteGuide
from nnfuzz.jobs.base import Job
from nnfuzz.jobs.planning import Model
from nnfuzz.objectives import DeadGradient, NonFinite, Objective, Property
from nnfuzz.objectives.base import floating, told_outputs
from nnfuzz.objectives.dead_gradient import check_loss, differentiated
from nnfuzz.objectives.rows import RowsDiffer
from nnfuzz.settings import Settings
from nnfuzz.space import Batch, InputSpace, rows
from nnfuzz.targets import Target, Want
from nnfuzz.targets.rowwise import RowwiseTarget


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
        """Where a number that is not finite would be seen; where nowhere, the model's errors are all that is left."""
        outputs, layers = self._numbers()
        phases = [p for p in self._phases if p != "outputs" or not outputs]
        inside = {"layers": "in every layer's output", "internal": "inside"}.get(self.settings.watch, "")
        inside = "" if inside and self.settings.watch == "layers" and not layers else inside
        none = f"no output holds a floating-point number ({outputs})"
        if not phases and not inside:
            return f"inputs on which the model raises an error, and nothing else: {none}"
        found = " and ".join([*([f"in {' and '.join(phases)}"] if phases else []), *([inside] if inside else [])])
        return f"NaN and Inf {found}{f': {none}' if outputs else ''}"

    def _numbers(self) -> tuple[str, bool]:
        """The outputs, as text, where none of them holds floating-point numbers, else ""; whether any layer that is
        watched does. A seed shows it; where that cannot be run, nothing is taken away."""
        try:
            trace = self.side.run(self._first(), Want(layers=False, watched=self.settings.watch == "layers"))
        except Exception:
            return "", True
        numbers = any(t.numel() for t in floating(trace.outputs).values())
        return "" if numbers else told_outputs(trace.outputs), any(t.numel() for t in floating(trace.watched).values())

    def _first(self) -> Batch:
        first = rows(max(self.seeds.groups, key=lambda g: len(g.index)).batch, slice(0, 1))
        return {n: t.to(self.side.device) for n, t in first.items()}

    def futile(self) -> str:
        return self.unchanging if self.settings.watch == "outputs" else ""

    def _differentiable(self) -> bool:
        try:
            trace = self.side.run(self._first(), Want(layers=False, backward=True))
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
        self.seeds = self.rowwise.groups_of_rows(self.given, self.model)

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
