"""PyTorch models and functions: modules, functions of tensors, ``torch.export`` programs, TorchScript."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from nnfuzz.callform import CallForm
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.base import Target, Trace, Want
from nnfuzz.targets.drive import DRIVES, Named, agree
from nnfuzz.targets.inside import InsideWatch, Known
from nnfuzz.targets.outputs import named_outputs
from nnfuzz.targets.ragged import HAS, joined
from nnfuzz.targets.taps import Taps, all_leaves, by_pattern, last_hidden, reachable_modules
from nnfuzz.targets.unit import Plan

if TYPE_CHECKING:
    from nnfuzz.gradient.allowance import Allowance
    from nnfuzz.seeds import Seeds

LAYER_BYTES = 4 << 20
"""The largest result of a layer for the rows that run together: beyond that it no longer fits into a core's caches, and
convolutional networks lose half their speed."""
LEAST_CHUNK, MOST_CHUNK = 32, 512

GRAD_MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    torch.inference_mode,
    torch.no_grad,
    torch.enable_grad,
)
"""Tried in this order: the first under which the model runs on a seed is kept (a model may call autograd itself)."""


class Unreached(NamedTuple):
    """Sentences on outputs that no searched input reaches, and whether these are all that there are."""

    notes: list[str]
    everything: bool


class TorchTarget(Target):
    """Runs a callable of tensors.

    Args:
        model: module or function. Modules are put into eval mode while ``session`` is open, unless ``train``.
        form: how named inputs become a call.
        device: where inputs go; the model's own device by default.
        train: keep the model in training mode; buffers (BatchNorm statistics) are restored after every run.
        layers: patterns of module paths for coverage; None takes the last hidden activation.
    """

    trainable = True
    """Whether somebody may want the gradients themselves, and not only be led by them."""
    mixes_rows = False
    """Whether rows that run together change one another's results by design: one scale for all of them."""
    quantized = False
    """Whether it is a graph of quantized values, whose gradients are guesses and cost much."""
    parts = "module"
    """What the parts are called of which the model is made."""

    def __init__(
        self,
        model: Callable[..., Any],
        form: CallForm,
        *,
        name: str = "",
        device: str | torch.device | None = None,
        train: bool = False,
        layers: Sequence[str] | None = None,
    ):
        if not callable(model):
            raise UsageError(f"the model is a {type(model).__name__}, but a module or a function of tensors is needed")
        self.model, self.form, self.train, self.patterns = model, form, train, layers
        self.name = name or _name_of(model)
        self.device = named_device(device) if device is not None else _device_of(model)
        if device is not None and isinstance(model, nn.Module):
            model.to(self.device)
        self.unit, self.drive, self.why = "batch", "loop", ""
        self.grad_mode = GRAD_MODES[0]
        self._taps = Taps({})
        self._watch_taps = Taps({})
        self.notes: list[str] = []
        self._inside: Known | None = None
        self.parameters = _parameters_of(model)
        self.works_in_place = False
        self.widest = 0
        """Bytes of the largest result of a layer for one candidate; 0 where layers cannot be watched."""
        self.chunk = 0
        """Rows of the parts in which a batch is run; 0: all at once."""
        self.labels: frozenset[str] = frozenset()
        """Inputs that are given, not computed: nobody differentiates with respect to them."""

    def adopt(self, plan: Plan) -> None:
        """Takes over what was found out about candidates, and plans the taps from a run of one seed."""
        self.unit, self.drive, self.why = plan.unit, plan.drive, plan.why
        first = rows(max(plan.seeds.groups, key=lambda g: len(g.index)).batch, slice(0, 1))
        one = first if self.unit == "sample" else {n: t[0] for n, t in first.items()}
        if self.patterns is not None:
            self._taps = Taps(by_pattern(self.model, self.patterns))
        else:
            self._taps = Taps(last_hidden(self.model, lambda: self.call(one)))
        self._watch_taps = Taps(all_leaves(self.model))
        self.widest = self._widest(first)
        self.chunk = _chunk(self.widest)
        try:
            self.run(first, Want())
        except Exception:
            # Hooks are refused by scripted modules and by some vmap-ed ones; outputs alone still guide.
            self._taps = Taps({})
            self.notes.append(f"{self.name}: its layers cannot be watched, so coverage sees outputs only")

    def _widest(self, first: Batch) -> int:
        try:
            watched = self.run(first, Want(layers=False, watched=True)).watched
        except Exception:
            return 0
        return max((t.numel() * t.element_size() for t in watched.values()), default=0)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Eval mode (or training mode when asked) for as long as the run lasts; the user's own modes come back."""
        used = reachable_modules(self.model)
        before = {m: m.training for module in used.values() for m in module.modules()}
        for path, module in used.items():
            if module.training and not self.train:
                who = f"{path!r} in {self.name}" if path else self.name
                self.notes.append(f"{who} was in training mode and is run in eval mode (--train keeps it)")
            _set_mode(module, self.train)
        try:
            with self._buffers_kept():  # of the first look, too
                yield
        finally:
            for m, mode in before.items():
                m.training = mode

    def call(self, inputs: Batch) -> Named:
        """The model on one model input, under the run's gradient mode."""
        with self.grad_mode():
            return self._answer(self._own(inputs))

    def _answer(self, inputs: Batch) -> Named:
        """What the model itself gives, by name: the one place where a forward pass is run."""
        return named_outputs(self.form.call(self.model, inputs))

    def _own(self, inputs: Batch) -> Batch:
        """Copies, for a model that works on its input in place."""
        return {n: t.clone() for n, t in inputs.items()} if self.works_in_place else inputs

    def _lent(self, inputs: Batch) -> Batch:
        """For a plain run: a model that asks for the gradient of its input marks an alias, not what is kept here."""
        own = self._own(inputs)
        return {n: t.detach() for n, t in own.items()} if self.grad_mode is torch.enable_grad else own

    @property
    def runtime(self) -> str:
        """What computes the answers: two sides with one runtime sum in the same order."""
        return f"torch on {self.device.type}"

    @property
    def sees_inside(self) -> bool:
        """Whether operations and gradients of ``model`` can be seen."""
        return True

    def as_answered(self, inputs: Batch, live: Named) -> Named:
        """Outputs of ``model`` that carry gradients, with the values that a plain run gives. ``inputs``: one call's."""
        return live

    def observed(self, inputs: Batch, outputs: Any) -> None:
        """Told what a traced run of ``model`` gave, for targets whose answers come from elsewhere."""

    def second_opinion(self, inputs: Batch) -> str:
        """Whether what shows operations contradicts what gives the answers, where these are two; "" if not."""
        return ""

    def told_apart(self, inputs: Batch) -> str:
        """What either gives where, on a model input, what gives the answers fails and what shows operations does not;
        "" elsewhere."""
        return ""

    def repaired(
        self,
        proposals: Sequence[Any],
        dtype: torch.dtype,
        failing: Batch,
        seeds: Sequence[Batch],
        place: Path,
        others: Sequence[Batch] = (),
    ) -> list[str]:
        """Writes a repaired model into a finding's directory, where the model is a file; tells of it in lines."""
        return []

    def part_facts(self, path: str) -> dict[str, Any]:
        """JSON-able: what a finding is told of the part of the model where it begins."""
        return {}

    def look_twice(self, inputs: Batch) -> None:
        """Two calls on the same input: a model that changes it gets copies from now on, one that answers differently is
        said to be nondeterministic. Raises ``UsageError`` when the outputs hold no tensor."""
        self.works_in_place = True
        mine = {n: t.clone() for n, t in inputs.items()}
        with self.grad_mode():
            first = self._answer(mine)
        again = self.call(inputs)
        self.works_in_place = any(not torch.equal(mine[n], t) for n, t in inputs.items() if not t.isnan().any())
        if self.works_in_place:
            self.notes.append(f"{self.name} changes its input in place, so it is given copies")
        if not first:
            raise UsageError(f"{self.name} returns no tensor and no number, so there is nothing to look at")
        if not agree(first, again):
            self.notes.append(f"{self.name} is not deterministic: two calls on one input differ")

    def find_grad_mode(self, attempt: Callable[[], Any]) -> None:
        """Keeps the first gradient mode under which ``attempt`` runs; the last error otherwise stays to be raised."""
        wanted = False
        for mode in GRAD_MODES:
            self.grad_mode = mode
            try:
                attempt()
                return
            except ModelFailure as error:
                wanted |= "grad" in str(error)
        # A model that asks for gradients fails of that first, and of what is wrong with it where it has them.
        self.grad_mode = GRAD_MODES[-1 if wanted else 0]

    def run(self, batch: Batch, want: Want) -> Trace:
        with self._buffers_kept():
            if want.backward:
                return self._run_backward(batch, want)
            if want.internal:
                return self._run_inside(batch, want)
            return self._split(self._driven(self._tapped(want), batch))

    def _driven(self, call: Callable[[Batch], Named], batch: Batch) -> Named:
        """Many candidates, in the way that was found for them, independent rows in parts that suit the caches."""
        if not self.chunk or self.drive != "rows" or size(batch) <= self.chunk:
            return DRIVES[self.drive](call, batch)
        starts = range(0, size(batch), self.chunk)
        parts = [DRIVES["rows"](call, rows(batch, slice(i, i + self.chunk))) for i in starts]
        tensors, present = joined(parts, [len(range(size(batch))[i : i + self.chunk]) for i in starts])
        return tensors | {HAS + n: mark for n, mark in present.items()}

    def joined(self, batch: Batch) -> Batch | None:
        """One model input of all candidates, ``(batch, ...)`` each, for a run that is traced; None where they are
        traced one by one. ``parted`` undoes it for the outputs."""
        return batch if self.unit == "sample" else None

    def parted(self, outputs: Named, count: int) -> Named:
        """Outputs of a joined run with one row a candidate."""
        return outputs

    @property
    def manner(self) -> str:
        """The drive whose speed this way of running has."""
        return self.drive

    @property
    def slots(self) -> int | None:
        """Candidates that a gradient turn takes at once; None for as many as usual with this unit."""
        return None

    def allowance(self) -> Allowance | None:
        """A new account of what gradient turns may take; None where a traced candidate costs some plain ones only."""
        return None

    def joins_rows(self, seeds: Seeds) -> str:
        """What the model itself shows to join the rows of a batch, in one sentence; "" where nothing does."""
        return ""

    def unreached(self, searched: Collection[str], *, shapes: bool) -> Unreached:
        """Which outputs nothing that is searched can change, as far as the model itself shows it.

        ``searched``: names of the inputs that are; ``shapes``: whether they come in different shapes.
        """
        return Unreached([], False)

    def blameless(self, path: str, searched: Collection[str] | None) -> str:
        """Why no input is to blame for what a part of the model gives, in one sentence; "" where one may be.
        ``searched``: names of the inputs that are; None: all."""
        return ""

    def interacting(self, draw: Callable[[], Batch]) -> str:
        """The same where rows that were taken as independent turn out not to be, beside random legal ones, which
        ``draw`` makes."""
        return ""

    def check(self, draw: Callable[[], Batch]) -> None:
        """Whatever was found of fast ways on the seeds may be tried again on random legal candidates, which ``draw``
        makes."""

    def _run_inside(self, batch: Batch, want: Want) -> Trace:
        """With every operation's result looked at; the first such run sees the seeds and learns what is by design."""
        learn, known = self._inside is None, self._inside if self._inside is not None else set()
        traces = []
        together = self.unit == "sample"
        parts = [batch] if together else [rows(batch, slice(i, i + 1)) for i in range(size(batch))]
        for part in parts:
            watch = InsideWatch(size(part) if together else None, known, learn=learn, device=self.device)
            with watch:
                trace = self._split(DRIVES["rows" if together else "loop"](self._tapped(want), part))
            trace.watched["inside"] = torch.where(watch.marked, torch.nan, 0.0)
            traces.append(trace)
        self._inside = known
        return Trace.cat(traces, [size(part) for part in parts])

    def model_input(self, candidate: Batch) -> Batch:
        return candidate if self.unit == "sample" else {n: t[0] for n, t in candidate.items()}

    def describe(self) -> str:
        count = sum(p.numel() for p in self.parameters)
        kind = type(self.model).__name__ if isinstance(self.model, nn.Module) else "function"
        return f"{self.name} ({kind}{f', {count:,} parameters' if count else ''}, {self.device})"

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self._taps.plan, ())

    def _tapped(self, want: Want) -> Callable[[Batch], Named]:
        """The call that also returns activations, under ``layer:`` and ``watch:`` names, so that vmap carries them."""
        use_layers, use_watched = want.layers and bool(self._taps.plan), want.watched

        def call(inputs: Batch) -> Named:
            with self.grad_mode():
                if not use_layers and not use_watched:
                    return self._answer(self._lent(inputs))
                taps = Taps(
                    ({f"layer:{n}": p for n, p in self._taps.plan.items()} if use_layers else {})
                    | ({f"watch:{n}": p for n, p in self._watch_taps.plan.items()} if use_watched else {})
                )
                with taps.attached() as caught:
                    outputs = self._answer(self._lent(inputs))
                return {**outputs, **caught}

        return call

    def _split(self, named: Named) -> Trace:
        trace = Trace({})
        for name, t in named.items():
            t = t.detach()  # a model that calls autograd itself runs with gradients on
            tag, _, rest = name.partition(":")
            if tag == "layer":
                trace.layers[rest] = t
            elif tag == "watch":
                trace.watched[rest] = t
            elif name.startswith(HAS):
                if not rest.startswith(("layer:", "watch:")):
                    trace.present[rest] = t
            else:
                trace.outputs[name] = t
        return trace

    def _run_backward(self, batch: Batch, want: Want) -> Trace:
        """Outputs and the gradients of their sum, one candidate (or, with independent rows, one batch) at a time."""
        if self.unit == "sample":
            return self._backward_once(batch, per_row=True)
        count = size(batch)
        each = [self._backward_once(rows(batch, slice(i, i + 1)), per_row=False) for i in range(count)]
        return Trace.cat(each, [1] * count)

    def _backward_once(self, batch: Batch, *, per_row: bool) -> Trace:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = self.differentiable({n: t.clone() for n, t in batch.items()})
            inputs = self._own(leaves if per_row else {n: t[0] for n, t in leaves.items()})
            outputs = named_outputs(self.form.call(self.model, inputs))
            live = [t for t in outputs.values() if t.requires_grad and (t.is_floating_point() or t.is_complex())]
            wrt = {n: t for n, t in leaves.items() if t.requires_grad}
            params = [p for p in self.parameters if p.requires_grad]
            count = size(batch)
            gradients = {n: torch.zeros_like(t, requires_grad=False) for n, t in wrt.items()}
            gradients["parameters"] = torch.zeros(count, 1, device=self.device)
            if live and (wrt or params):
                total = torch.stack(
                    [(torch.view_as_real(t) if t.is_complex() else t).sum().double() for t in live]
                ).sum()
                got = torch.autograd.grad(total, [*wrt.values(), *params], allow_unused=True)
                for name, g in zip(wrt, got, strict=False):
                    if g is not None:
                        gradients[name] = g.detach()
                of_parameters = [g for g in got[len(wrt) :] if g is not None and g.numel()]
                if of_parameters and all(bool(g.isfinite().all()) for g in of_parameters):
                    # One number stands for them: of a lone candidate how large they are, of a batch (a sum) that
                    # they are there at all.
                    alone = not per_row or count == 1
                    largest = max(float(g.abs().max()) for g in of_parameters) if alone else 1.0
                    gradients["parameters"].fill_(max(largest, 1e-30))
                elif of_parameters:
                    gradients["parameters"] = self._blame_rows(batch, gradients) if per_row else _nan_like(gradients)
        detached = {n: t.detach() for n, t in outputs.items()}
        return Trace(detached if per_row else {n: t[None] for n, t in detached.items()}, gradients=gradients)

    def differentiable(self, batch: Batch) -> Batch:
        """The same tensors, those whose gradient anybody wants (floating, not a label) marked."""
        for name, t in batch.items():
            t.requires_grad_(t.is_floating_point() and name not in self.labels)
        return batch

    def _blame_rows(self, batch: Batch, gradients: Named) -> Tensor:
        """Which rows make the parameters' gradient non-finite: bisection, since that gradient is a sum over rows."""
        flags = torch.zeros(size(batch), 1, device=self.device)
        ok = torch.ones(size(batch), dtype=torch.bool, device=self.device)
        for name, g in gradients.items():
            if name != "parameters":
                ok &= g.reshape(size(batch), -1).isfinite().all(1)
        if size(batch) == 1:
            flags[:] = torch.nan
            return flags
        if bool((~ok).any()):  # those rows explain it; the others are looked at without them
            flags[~ok] = torch.nan
            rest = ok.nonzero()[:, 0]
            if len(rest):
                flags[rest] = self._backward_once(rows(batch, rest), per_row=True).gradients["parameters"]
            return flags
        half = size(batch) // 2
        for part in (slice(0, half), slice(half, None)):
            flags[part] = self._backward_once(rows(batch, part), per_row=True).gradients["parameters"]
        return flags

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        if not (self.train and isinstance(self.model, nn.Module)):
            yield
            return
        kept = {n: b.clone() for n, b in self.model.named_buffers()}
        try:
            yield
        finally:
            with torch.no_grad():
                for n, b in self.model.named_buffers():
                    b.copy_(kept[n])


def _chunk(widest: int) -> int:
    """The rows whose widest result just fits, where these are few but not so few that a batch of several parts would
    take long; 0 for none."""
    fits = LAYER_BYTES // widest if widest else 0
    return 1 << int(math.log2(fits)) if LEAST_CHUNK <= fits < MOST_CHUNK else 0


def _nan_like(gradients: Named) -> Tensor:
    return torch.full_like(gradients["parameters"], torch.nan)


def _set_mode(module: nn.Module, train: bool) -> None:
    with suppress(NotImplementedError):  # torch.export modules have no modes
        module.train(train)


def _parameters_of(model: Callable[..., Any]) -> list[nn.Parameter]:
    seen: dict[int, nn.Parameter] = {}
    for module in reachable_modules(model).values():
        for p in module.parameters():
            seen[id(p)] = p
    return list(seen.values())


def _device_of(model: Callable[..., Any]) -> torch.device:
    first = next(iter(_parameters_of(model)), None)
    return first.device if first is not None else torch.device("cpu")


def named_device(device: str | torch.device) -> torch.device:
    """Raises ``UsageError`` for a device that does not exist here."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"the device {str(device)!r} cannot be used here ({said}): leave it out, or give cpu"
        ) from None
    return found


def _name_of(model: Callable[..., Any]) -> str:
    name = getattr(model, "original_name", None) or getattr(model, "__name__", None) or type(model).__name__
    return "lambda" if name == "<lambda>" else str(name)
