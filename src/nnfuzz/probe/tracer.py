"""The tracer: one run of a program, with the distance of every unsafe operand to the edge of its domain.

How it sees operands with their gradients: autograd works *above* a TorchDispatchMode. When an operation reaches the
mode, the tensors that it gets are the program's own, with their autograd graph down to inputs and parameters. Inside
the mode autograd is switched off by excluding two dispatch keys; with those taken out of the exclusion again (torch's
functional tensors do the same for their key), differentiable code on the operands is recorded like any other. So the
program's own run stays untouched, bit for bit, gradients included, and every distance is a branch that grows out of
its graph.

A wrapper subclass would do as well for plain programs, but it records autograd twice, walks through `torch.no_grad()`
and custom backward functions, is lost in TorchScript, and costs several times as much per operation.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nnfuzz.probe.catalogue import CATALOGUE
from nnfuzz.probe.first_bad import call, eager, unoptimized
from nnfuzz.probe.hazard import Call, Catalogue, Hazard
from nnfuzz.probe.live import LiveAutograd
from nnfuzz.probe.magnitude import Provenance, follows
from nnfuzz.probe.modules import ModuleStack, Program, restored_buffers
from nnfuzz.probe.ops import OpFacts, facts
from nnfuzz.probe.sites import Locator, Phase, Site, node_op_name
from nnfuzz.probe.watch import tensors_in

Select = Callable[[Site, Hazard], bool]


@dataclass(frozen=True)
class Reading:
    """How near one call of an unsafe operation came to failing.

    site:     where; its phase is the hazard's.
    hazard:   in which way.
    operand:  the deciding operand, live in the autograd graph.
    distance: shape (rows,) if rows were asked for and the distance has that leading axis, each entry the minimum over
              its row; else (1,), the minimum over all. Differentiable, smaller is nearer, <= 0 is reached, NaN where
              the operand is NaN already.
    """

    site: Site
    hazard: Hazard
    operand: Tensor
    distance: Tensor

    @property
    def key(self) -> str:
        """Stable name of the target: site and hazard."""
        return f"{self.site.key}!{self.hazard.id}"


@dataclass
class Observation:
    """One traced run.

    outputs:  what the program returned, differentiable as in a plain run.
    readings: in execution order; a site in a loop gives one per turn.
    fallback: None, or in words what could not be seen or differentiated.
    skipped:  (site key, hazard id, reason) of distances that could not be computed.
    operations: how many ATen operations were seen.
    """

    outputs: Any
    readings: list[Reading]
    fallback: str | None = None
    skipped: list[tuple[str, str, str]] = field(default_factory=list)
    operations: int = 0

    def nearest(self) -> dict[str, Reading]:
        """One reading per target: the calls of a site in a loop merged by elementwise minimum of their distances."""
        merged: dict[str, Reading] = {}
        for r in self.readings:
            other = merged.get(r.key)
            if other is None:
                merged[r.key] = r
            elif other.distance.shape == r.distance.shape:
                distance = torch.minimum(other.distance, r.distance)
                merged[r.key] = Reading(r.site, r.hazard, r.operand, distance)
            elif bool(r.distance.detach().amin() < other.distance.detach().amin()):
                merged[r.key] = r
        return merged


def observe(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    rows: int | None = None,
    catalogue: Catalogue = CATALOGUE,
    select: Select | None = None,
) -> Observation:
    """Run `fn(*args, **kwargs)` once and read the distance of every operand of an operation in `catalogue`.

    Differentiate by the tensors in `args` and `kwargs` (nested containers too) that require a gradient, by parameters
    of modules, by any leaf that the program uses: `torch.autograd.grad(reading.distance.sum(), leaves)`.

    rows:   length of the batch axis, for one distance per sample.
    select: which targets to compute, all by default; what is confirmed already need not cost anything.

    The run is a plain one: random numbers are drawn as always, dropout is on in training mode. Buffers of modules in
    training mode (batch-norm statistics) are put back, `.grad` is not touched, no hook stays.
    """
    kwargs = dict(kwargs or {})
    program = Program.of(fn, (*args, *kwargs.values()))
    modules = ModuleStack(program)
    tracer = Tracer(Locator(call.__code__, program.graphs, program.scripted), modules, catalogue, rows, select)
    with ExitStack() as stack:
        stack.enter_context(restored_buffers(program, only_training=True))
        stack.enter_context(eager())
        if program.scripted:
            stack.enter_context(unoptimized(program))  # so that operands keep their graph
        stack.enter_context(torch.enable_grad())
        given_args, given_kwargs = tree_map(_guarded, (tuple(args), kwargs))
        stack.enter_context(modules.entered())
        stack.enter_context(tracer)
        outputs = call(fn, given_args, given_kwargs)
    tracer.finish()
    fallback = _fallback(tracer, outputs, tree_leaves((given_args, given_kwargs)))
    return Observation(outputs, tracer.readings, fallback, tracer.skipped, tracer.operations)


def _guarded(x: Any) -> Any:
    """A copy of a leaf that requires a gradient, so that the program may work on its input in place."""
    if isinstance(x, Tensor) and x.requires_grad and x.is_leaf and not isinstance(x, nn.Parameter):
        return x.clone()
    return x


def _fallback(tracer: "Tracer", outputs: Any, inputs: list[Any]) -> str | None:
    """What the run kept from the tracer, in words."""
    wanted = any(isinstance(t, Tensor) and t.requires_grad for t in inputs)
    floating = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
    if not tracer.operations:
        return "no operation was seen: the program runs in another thread, process or runtime"
    if any(t.is_inference() for t in floating):
        return "the program runs under torch.inference_mode: sites are known, distances have no gradient"
    if wanted and floating and not any(t.requires_grad for t in floating):
        return "outputs carry no gradient (no_grad, NumPy or integers inside): distances may have none either"
    return None


class Tracer(TorchDispatchMode):
    """The dispatch mode behind `observe`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Programs run uncompiled here (see `eager`); torch's guard would cost more than most operations do.
        return False

    def __init__(
        self, locator: Locator, modules: ModuleStack, catalogue: Catalogue, rows: int | None, select: Select | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings: list[Reading] = []
        self.skipped: list[tuple[str, str, str]] = []
        self.operations = 0
        self._locator, self._modules, self._rows, self._select = locator, modules, rows, select
        self._provenance = Provenance()
        self._plans = _plans(catalogue)
        self._sites: dict[Any, Site] = {}
        self._by_sequence: dict[int, Site] = {}
        self._pending: tuple[list[Hazard], Call, Site] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        if self._pending is not None:
            self.finish()
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = _Plan(func, self._plans.catalogue)
        if plan.follow:
            self._provenance.note(func, args, kwargs, plan.facts)
        if plan.before:
            made = Call(plan.facts, args, kwargs, self._provenance)
            wanted = self._wanted(plan.before, made, plan.facts)
            if wanted:
                self._read(wanted, made, self._site(plan.facts, sys._getframe().f_back))
        out = func(*args, **kwargs)
        if plan.after:
            made = Call(plan.facts, args, kwargs, self._provenance, tuple(tensors_in(out)))
            wanted = self._wanted(plan.after, made, plan.facts)
            if wanted:
                # The result gets its autograd history only after we return; it is read when the next operation begins.
                self._pending = (wanted, made, self._site(plan.facts, sys._getframe().f_back))
        return out

    def finish(self) -> None:
        """Read what the last operation left."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._read(*pending)

    def _wanted(self, hazards: tuple[Hazard, ...], made: Call, about: OpFacts) -> list[Hazard]:
        """Those of `hazards` that this call can run into."""
        found = []
        for hazard in hazards:
            try:
                if hazard.applies(made):
                    found.append(hazard)
            except Exception as error:
                self.skipped.append((about.name, hazard.id, f"{type(error).__name__}: {error}".splitlines()[0]))
        return found

    def _read(self, hazards: list[Hazard], made: Call, site: Site) -> None:
        with LiveAutograd():
            for hazard in hazards:
                here = site if hazard.phase == site.phase else self._backward(site)
                if self._select is not None and not self._select(here, hazard):
                    continue
                try:
                    distance = self._reduced(hazard.distance(made))
                except Exception as error:
                    # A call that a distance cannot handle must not end the user's run; it is reported instead.
                    self.skipped.append((here.key, hazard.id, f"{type(error).__name__}: {error}".splitlines()[0]))
                    continue
                self.readings.append(Reading(here, hazard, made.raw(hazard.operand), distance))

    def _reduced(self, distance: Tensor) -> Tensor:
        """Minimum per row where the batch axis is there, else over everything: shape (rows,) or (1,)."""
        n = self._rows
        if n is not None and distance.dim() and distance.shape[0] == n and distance.numel():
            return distance.reshape(n, -1).amin(1)
        return distance.amin().reshape(1) if distance.numel() else distance.new_full((1,), float("inf"))

    # ------------------------------------------------------------------------------------------ sites

    def _site(self, about: OpFacts, frame: Any) -> Site:
        node = torch._C._current_autograd_node()
        op = about.name
        if node is not None:
            # A gradient that the program takes itself: name the forward call that made it necessary, where it is known
            # (only calls with a reading are), else the line that asks for the gradient.
            op = node_op_name(node.name()) or op
            forward = self._by_sequence.get(node._sequence_nr())
            if forward is not None:
                return forward.backward(op)
        place = self._locator.locate(frame)
        key = (op, place, self._modules.current, node is None)
        site = self._sites.get(key)
        if site is None:
            module = self._modules.current if place.module is None else place.module
            phase: Phase = "forward" if node is None else "backward"
            site = Site(op, module, place.file, place.line, place.source, phase, place.column, place.node)
            self._sites[key] = site
        self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, site)
        return site

    def _backward(self, site: Site) -> Site:
        """The same site for a hazard of the gradient, one object per site."""
        phase: Phase = "backward"
        if site.phase == phase:
            return site
        found = self._sites.get(site)
        if found is None:
            found = self._sites[site] = site.backward()
        return found


class _Plan:
    """What to do with one ATen overload; made on its first call."""

    __slots__ = ("after", "before", "facts", "follow")

    def __init__(self, func: Any, catalogue: Catalogue) -> None:
        self.facts = facts(func)
        hazards = catalogue.get(self.facts.base, ())
        self.before = tuple(h for h in hazards if h.operand != "out")
        self.after = tuple(h for h in hazards if h.operand == "out")
        self.follow = follows(func)


class _Plans(dict[Any, _Plan]):
    """Plans by overload, for one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__()
        self.catalogue = catalogue


_CACHED: dict[int, _Plans] = {}


def _plans(catalogue: Catalogue) -> _Plans:
    found = _CACHED.get(id(catalogue))
    if found is None or found.catalogue is not catalogue:
        found = _CACHED[id(catalogue)] = _Plans(catalogue)
    return found
