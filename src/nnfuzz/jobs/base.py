"""What every job has: a target, seeds, objectives, and what it says of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from nnfuzz.divergence.outcome import After
from nnfuzz.divergence.pool import Pool
from nnfuzz.errors import UsageError
from nnfuzz.findings.finding import Finding
from nnfuzz.gradient import Guide, ScoreGuide
from nnfuzz.inputs import listed
from nnfuzz.jobs.planning import Model, labels, on_device, plan_for, read, target_for
from nnfuzz.objectives import Objective
from nnfuzz.onnx.matching import check_takes
from nnfuzz.seeds import Seeds
from nnfuzz.settings import Settings
from nnfuzz.space import Batch, InputSpace, rows
from nnfuzz.targets import PairTarget, Target, TorchTarget
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.unit import Plan, check_drive, random_candidates

KEPT = {"model": "model.onnx", "model_b": "model_b.onnx"}
"""Models of other runtimes that were given in Python without a file, in a run directory."""


class Job(ABC):
    """``prepare`` looks at the model with the seeds; after it ``target`` and ``seeds`` stand."""

    def __init__(self, settings: Settings, model: Model, seeds: Any):
        self.settings, self.model = settings, model
        self.given = seeds if isinstance(seeds, Seeds) else read(seeds, model)
        if isinstance(seeds, Seeds) and isinstance(model, ForeignModel):
            check_takes(model, seeds)
        self.stacked = self.given.stacked
        self.side = target_for(
            model, self.given.form, settings, name=settings.context.get("model") or "", layers=settings.layers
        )
        self.side.labels = labels(settings, self.given)
        self.seeds = self.given
        self.plan: Plan | None = None
        self.fingerprint: dict[str, Any] = {}
        self.unchanging = ""
        """Why no input can change any output, where that is so."""
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

    def reconsider(self, space: InputSpace) -> bool:
        """Rows that the seeds show as independent are looked at again beside random legal ones. Whether candidates are
        others than they were."""
        if self.plan is None or self.plan.unit != "sample" or self.settings.unit != "auto":
            return False
        why = self.side.interacting(lambda: self._far(space))
        if not why:
            return False
        self.plan = plan_for(self.side, self.given, self.settings, self.whole_shapes(), why)
        self.side.adopt(self.plan)
        self.side.notes[:] = dict.fromkeys(self.side.notes)
        self.seeds = self.plan.seeds
        return True

    def check(self, space: InputSpace) -> None:
        """A fast way of running is tried again on random legal inputs."""
        assert self.plan is not None
        generator = torch.Generator().manual_seed(self.settings.seed)
        kept = check_drive(self.side.call, on_device(self.plan, self.side), space, generator)
        self.side.drive = kept.drive
        self.side.check(lambda: self._random(space))
        self._say_unreached(self.side, [s.name for s in space.mutable], bool(space.free_dims))

    def _say_unreached(self, side: TorchTarget, searched: list[str], shapes: bool, which: str = "") -> None:
        """Outputs that a search cannot change."""
        found = side.unreached(searched, shapes=shapes)
        side.notes += [f"{which}{note}" for note in found.notes]
        if found.everything and side is self.side:
            self.unchanging = (
                "no output depends on what is searched, so that no other input can give another: --watch internal "
                "looks inside the model"
            )

    def _random(self, space: InputSpace) -> Batch:
        """Random legal candidates, on which a fast way of running is tried again."""
        group = max(self.seeds.groups, key=lambda g: len(g.index))
        generator = torch.Generator().manual_seed(self.settings.seed)
        return random_candidates(space, {n: t.to(self.side.device) for n, t in group.batch.items()}, generator)

    def _far(self, space: InputSpace) -> Batch:
        """Legal candidates as unlike the seeds as can be had: two at the ends of the ranges, and a random one."""
        drawn = rows(self._random(space), [0])
        group = max(self.seeds.groups, key=lambda g: len(g.index))
        ends = rows({n: t.to(self.side.device) for n, t in group.batch.items()}, [0, 0])
        anchors = space.anchors(dict(ends))
        for spec in space.mutable:
            if spec.is_real:
                ends[spec.name] = torch.stack(
                    [e.to(drawn[spec.name].device).expand(drawn[spec.name].shape[1:]) for e in (spec.low, spec.high)]
                ).to(drawn[spec.name].dtype)
        ends = space.project(ends, anchors)
        return {n: torch.cat([t, drawn[n]]) for n, t in ends.items()}

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

    def futile(self) -> str:
        """Why nothing that counts as a hit can come of another input; "" as a rule."""
        return ""

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
