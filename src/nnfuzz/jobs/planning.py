"""How a job reads its seeds and runs its model: the target, what a candidate is, how a second model is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnfuzz.callform import CallForm, parameters
from nnfuzz.kinds import ALIASES, KINDS
from nnfuzz.seeds import SeedGroup, Seeds, read_seeds
from nnfuzz.settings import Settings
from nnfuzz.space import Batch, rows
from nnfuzz.targets import TorchTarget
from nnfuzz.targets.drive import Named
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.unit import Plan, decide

Model = Callable[..., Any]


def target_for(model: Model, form: CallForm, settings: Settings, **more: Any) -> TorchTarget:
    """The target of a model of any kind; ``more``: its name, and which layers to watch."""
    if isinstance(model, ForeignModel):
        return model.as_target(
            form, device=settings.device, train=settings.train, flush_denormal=settings.flush_denormal, **more
        )
    return TorchTarget(model, form, device=settings.device, train=settings.train, **more)


def read(seeds: Any, model: Model) -> Seeds:
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


def plan_for(side: TorchTarget, seeds: Seeds, settings: Settings, whole: bool, coupled: str = "") -> Plan:
    """What a candidate is, under the first gradient mode in which the model runs. ``coupled``: see ``decide``."""
    moved = Seeds(
        seeds.form,
        [SeedGroup({n: t.to(side.device) for n, t in g.batch.items()}, g.index) for g in seeds.groups],
        seeds.stacked,
        seeds.notes,
        seeds.uneven,
    )
    found: list[Plan] = []
    joins = coupled or side.joins_rows(moved)

    def call(inputs: Batch) -> Named:
        # Whether the model keeps its input is not known yet.
        return side.call({n: t.clone() for n, t in inputs.items()})

    def attempt() -> None:
        found[:] = [decide(call, moved, settings.unit, shapes_are_whole=whole, coupled=joins)]

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
    names, any_keyword, any_position = parameters(other)
    mine = seeds.form.names
    if seeds.form.keyword and (any_keyword or all(k in names for k in seeds.form.keyword)):
        return seeds.form
    if any("." in n for n in mine) or (any_position and not names):
        return seeds.form
    first = {n: t[0] for n, t in seeds.groups[0].batch.items()}
    return CallForm.of(other, tuple(first.values()))
