"""An ONNX model as a target: ONNX Runtime gives the answers, the interpreter gives gradients and looks inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.callform import CallForm
from nnfuzz.errors import NnfuzzError, Unsupported, UsageError
from nnfuzz.gradient.allowance import Allowance
from nnfuzz.gradient.climber import SLOTS
from nnfuzz.objectives.base import differences
from nnfuzz.onnx.axes import Axes, find_axes, holds
from nnfuzz.onnx.coupling import coupling
from nnfuzz.onnx.coupling_seen import interacts
from nnfuzz.onnx.dtypes import STRING
from nnfuzz.onnx.graph import Graph, read_graph
from nnfuzz.onnx.kept import same, with_kept
from nnfuzz.onnx.program import OnnxProgram
from nnfuzz.onnx.reaching import Reached, reaching, read_by, told_node, told_outputs
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.onnx.taps import TRIED, Tap, all_values, hidden_values, values_by_pattern
from nnfuzz.seeds import Seeds
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets.base import Trace, Want
from nnfuzz.targets.drive import DRIVES, Named, agree
from nnfuzz.targets.inside import InsideWatch
from nnfuzz.targets.outputs import named_outputs
from nnfuzz.targets.ragged import joined
from nnfuzz.targets.torch import TorchTarget, Unreached
from nnfuzz.targets.unit import Plan, probe_rows, several

CHUNK_BYTES = 640 << 10
"""The largest value inside the graph for the rows that one call of ONNX Runtime takes: beyond that its working memory
leaves the processor's caches, and convolutional networks lose half their speed."""
TRACED_BYTES = 256 << 20
"""All values of the candidates that are traced together: a gradient turn keeps them until its backward pass."""
TRACED, NODE_BYTES = 16, 512 << 10
"""Processor time of the interpreter with gradients and distances, in plain candidates of ONNX Runtime: measured on the
models of ``benchmarks/onnx_speed.py``, where it is right within a factor of two."""
COMPARED = 4
"""Seeds on which the interpreter is compared with ONNX Runtime."""


class OnnxTarget(TorchTarget):
    """Runs an ``OnnxModel``.

    ``model`` is the interpreter (an ``OnnxProgram``), which the probe and the gradients use; where the graph holds an
    operator that is not built it is the ``OnnxModel`` itself, a black box. Outputs and activations always come from
    ONNX Runtime. Gradients are the interpreter's.
    """

    trainable = False
    parts = "node"

    def __init__(
        self,
        onnx: OnnxModel,
        form: CallForm,
        *,
        name: str = "",
        device: str | torch.device | None = None,
        train: bool = False,
        layers: Sequence[str] | None = None,
        flush_denormal: bool = False,
    ):
        if train:
            raise UsageError(f"--train is asked for, but {onnx.name} is an ONNX model, which has no training mode")
        if device is not None and torch.device(device).type != "cpu":
            raise UsageError(f"an ONNX model runs where its provider does, not on {device}: give --provider instead")
        onnx.use_flushed(flush_denormal)
        self.onnx = onnx
        self.program, trouble = interpreter_of(onnx)
        super().__init__(self.program or onnx, form, name=name or onnx.name, layers=layers)
        self.mixes_rows = any(n.op_type.startswith("DynamicQuantize") for n in onnx.proto.graph.node)
        self.quantized = any(
            "Quantize" in n.op_type or n.op_type.startswith("QLinear") or n.op_type.endswith("Integer")
            for n in onnx.proto.graph.node
        )
        self.notes += trouble
        texts = [s.name for s in onnx.outputs if s.code == STRING]
        if texts:
            self.notes.append(f"{self.name}: text is not looked at: output{'s' * (len(texts) > 1)} {', '.join(texts)}")
        self.chunk = 0
        """Rows that one call of ONNX Runtime takes; 0 for no limit."""
        self._ragged = False
        """Whether parts of a batch have given results that do not fit together."""
        self.axes: Axes | None = None
        """How whole candidates are joined, where they can be."""
        self._interact = False
        self._seeds: Batch = {}
        self.layer_taps: list[Tap] = []
        self._watched: list[Tap] | None = None
        self._values: dict[str, _Value] = {}
        self._by_design: set[str] = set()
        self.disagreements = 0
        """Inputs for which the interpreter alone gave a non-finite number."""

    @property
    def runtime(self) -> str:
        return f"ONNX Runtime with {self.onnx.provider}"

    @property
    def sees_inside(self) -> bool:
        return self.program is not None

    @property
    def manner(self) -> str:
        return self.drive if self.axes is None else "fold"

    @property
    def slots(self) -> int | None:
        """As many candidates as a traced run has memory for."""
        if self.unit == "batch" and self.axes is None:
            return None
        most = TRACED_BYTES // max(1, sum(v.bytes for v in self._values.values()))
        return max(2, min(SLOTS["sample"], most))

    def allowance(self) -> Allowance | None:
        """One candidate of a traced pass costs ``TRACED`` plain ones; each node of the pass, what ONNX Runtime does
        to ``NODE_BYTES`` of values meanwhile."""
        one = max(1, sum(v.bytes for v in self._values.values()))
        nodes = sum(n.op_type != "Constant" for n in self.onnx.proto.graph.node) * NODE_BYTES / one
        together = self.unit == "sample" or self.axes is not None
        return Allowance(lambda count: TRACED * count + nodes * (1 if together else count))

    # ------------------------------------------------------------------ running

    def _answer(self, inputs: Batch) -> Named:
        return self._run_ort(inputs, ())

    def _run_ort(self, inputs: Batch, taps: Sequence[Tap]) -> Named:
        extra = tuple(dict.fromkeys(t.value for t in taps))
        if not self.chunk or self.unit != "sample" or size(inputs) <= self.chunk:
            return self.onnx.run(inputs, extra)
        at_once = None if self._ragged else self.onnx.run_rows(inputs, self.chunk, extra)
        if at_once is not None:
            return at_once
        self._ragged = True
        starts = range(0, size(inputs), self.chunk)
        parts = [rows(inputs, slice(a, a + self.chunk)) for a in starts]
        return joined([self.onnx.run(part, extra) for part in parts], [size(part) for part in parts])[0]

    def _driven(self, call: Callable[[Batch], Named], batch: Batch) -> Named:
        if self.axes is not None and self.drive == "loop":
            return self.axes.run(call, batch, self.chunk or size(batch))
        if self.drive == "rows" and not self._ragged:
            outputs = DRIVES["rows"](call, batch)  # in parts all the same: see ``_run_ort``
            if not self._ragged:
                return outputs
        return super()._driven(call, batch)

    def joined(self, batch: Batch) -> Batch | None:
        return self.axes.joined(batch) if self.axes is not None and self.drive == "loop" else super().joined(batch)

    def parted(self, outputs: Named, count: int) -> Named:
        return outputs if self.axes is None else self.axes.parted(outputs, count)

    def joins_rows(self, seeds: Seeds) -> str:
        """By the graph: of rows that may be candidates, or of the first axes of whole ones."""
        if self.program is None:
            return ""
        batch = seeds.groups[0].batch
        if seeds.stacked:
            some = rows(probe_rows(batch), slice(0, 2))
        elif all(t.dim() > 1 for t in batch.values()) and len({t.shape[1] for t in batch.values()}) == 1:
            some = {n: t.flatten(0, 1) for n, t in rows(several(rows(batch, slice(0, 1))), slice(0, 2)).items()}
        else:
            return ""
        return coupling(self.program, some, dict.fromkeys(some, 0), size(some))

    @cached_property
    def _reached(self) -> tuple[Graph, dict[str, Reached]] | None:
        """The graph, and what reaches its values; None where it cannot be read."""
        try:
            graph = self.program.graph if self.program is not None else read_graph(self.onnx.path or self.onnx.proto)
        except NnfuzzError:
            return None
        return graph, reaching(graph)

    def unreached(self, searched: Collection[str], *, shapes: bool) -> Unreached:
        if self._reached is None:
            return Unreached([], False)
        graph, reached = self._reached
        told = told_outputs(graph, reached, searched, shapes)
        if not told:
            return Unreached([], False)
        values = self.call(self.model_input(rows(self._seeds, slice(0, 1))))
        notes = []
        for name, why in told.items():
            bad = values.get(name)
            held = f", and it holds {said_of(bad)} whatever they are" if bad is not None and not_finite(bad) else ""
            notes.append(f"the output {name!r} {why}{held}")
        return Unreached(notes, len(told) == len(graph.outputs))

    def blameless(self, path: str, searched: Collection[str] | None) -> str:
        call = getattr(self.program.get_submodule(path), "onnx", None) if self.program is not None and path else None
        if call is None or self._reached is None:
            return ""
        found = read_by(call.outputs, self._reached[1])
        return told_node(f"the {call.op} node {call.label!r}", found, searched)

    def interacting(self, draw: Callable[[], Batch]) -> str:
        self._interact = interacts(self.onnx.run, self._seeds, draw(), self.chunk)
        return "the result of a row changes with the rows beside it" if self._interact else ""

    def _joinable(self, candidates: Batch) -> Axes | None:
        """How whole candidates can be run together, where the graph does not show that this changes them."""
        axes = None if self._interact else find_axes(self.onnx.inputs, self.call, candidates)
        if axes is None or self.program is None:
            return axes
        together = axes.joined(candidates)
        apart = together is None or not coupling(self.program, together, axes.inputs, size(candidates))
        return axes if apart else None

    def check(self, draw: Callable[[], Batch]) -> None:
        """Joined runs are tried again on random legal candidates."""
        if self.axes is not None and not holds(self.axes, self.call, draw()):
            self.axes = None

    def _tapped(self, want: Want) -> Callable[[Batch], Named]:
        layers = self.layer_taps if want.layers else []
        watched = self.watch_taps if want.watched else []

        def call(inputs: Batch) -> Named:
            got = self._run_ort(inputs, [*layers, *watched])
            told = {n: got.pop(n) for n in {t.value for t in (*layers, *watched)}}
            for tag, taps in (("layer", layers), ("watch", watched)):
                got |= {f"{tag}:{t.label}": told[t.value] for t in taps}
            return got

        return call

    def _run_inside(self, batch: Batch, want: Want) -> Trace:
        """The interpreter marks candidates; a mark counts where ONNX Runtime shows a non-finite value inside, too."""
        if self.program is None:
            raise Unsupported(f"--watch internal looks into the graph, and {self.name} cannot be looked into")
        learn, known = self._inside is None, self._inside if self._inside is not None else set()
        trace = self._split(self._driven(self._tapped(want), batch))
        together = self.unit == "sample"
        marks = []
        for part in [batch] if together else each(batch):
            watch = InsideWatch(size(part) if together else None, known, learn=learn, device=self.device)
            with torch.inference_mode(), watch:
                self.form.call(self.program, part if together else {n: t[0] for n, t in part.items()})
            marks.append(watch.marked)
        self._inside = known
        marked = torch.cat(marks)
        for row in marked.nonzero()[:, 0].tolist():
            marked[row] = self._bad_inside(rows(batch, slice(row, row + 1)), learn)
        trace.watched["inside"] = torch.where(marked, torch.nan, 0.0)
        return trace

    def _bad_inside(self, candidate: Batch, learn: bool) -> bool:
        """Whether a value of the graph that is finite on the seeds is not, in either runtime."""
        assert self.program is not None
        lone = self.model_input(candidate)
        with torch.inference_mode():
            values = self.program.run_all(lone)
        bad = [n for n, t in values.items() if isinstance(t, Tensor) and not_finite(t)]
        if learn:
            self._by_design |= set(bad)
            return False
        readable = {t.value for t in all_values(self.onnx, self.program)} | {s.name for s in self.onnx.outputs}
        for name in [n for n in bad if n not in self._by_design and n in readable][:TRIED]:
            if not_finite(self._run_ort(lone, [Tap(name, name)])[name]):
                return True
        self._differ_in_finiteness("nan or inf inside")
        return False

    def as_answered(self, inputs: Batch, live: Named) -> Named:
        """ONNX Runtime's values on the interpreter's graph: gradients lead, the real runtime says how near it is."""
        if self.program is None:
            return live
        real = self._answer({n: t.detach() for n, t in inputs.items()})
        fits = {n for n, t in live.items() if n in real and real[n].shape == t.shape and t.is_floating_point()}
        return {n: t + (real[n].to(t.dtype) - t.detach()).nan_to_num(0.0) if n in fits else t for n, t in live.items()}

    def observed(self, inputs: Batch, outputs: Any) -> None:
        """What is not finite in the interpreter alone is no failure of the model as it is deployed, and is said."""
        mine = {n: t for n, t in named_outputs(outputs).items() if not_finite(t)}
        if mine:
            theirs = self._answer({n: t.detach() for n, t in inputs.items()})
            if not any(not_finite(t) for n, t in theirs.items() if n in mine):
                self._differ_in_finiteness(f"a non-finite {', '.join(mine)}")

    def _differ_in_finiteness(self, what: str) -> None:
        if not self.disagreements:
            self.notes.append(
                f"the interpreter gives {what} for inputs on which ONNX Runtime gives finite numbers: these are not "
                "counted"
            )
        self.disagreements += 1

    def second_opinion(self, inputs: Batch) -> str:
        """Whether the interpreter shows a failure that ONNX Runtime shows, for one model input; "" where it does."""
        if self.program is None:
            return "no operation is named: the graph cannot be looked into"
        with torch.inference_mode():
            mine = named_outputs(self.form.call(self.program, inputs))
        if any(not_finite(t) for t in mine.values()):
            return ""
        return "the interpreter gives finite numbers here, where ONNX Runtime does not: no operation can be named"

    def part_facts(self, path: str) -> dict[str, Any]:
        tap = next((t for t in self._watched or [] if t.label == path), None)
        call = getattr(self.program.get_submodule(path), "onnx", None) if self.program is not None and path else None
        if call is None:
            return {"node": {"name": path, "gives": [tap.value]}} if tap is not None else {}
        operator = f"{call.domain}.{call.op}" if call.domain else call.op
        about = {
            "name": call.label,
            "operator": operator,
            "reads": list(call.inputs),
            "gives": list(call.outputs),
        }
        return {"node": about}

    def told_apart(self, inputs: Batch) -> str:
        if self.program is None or not self.second_opinion(inputs):
            return ""
        kinds = {n: _kinds_of(t) for n, t in self.call(inputs).items() if not_finite(t)}
        if not kinds:
            return ""
        theirs = ", ".join(f"{kind} in {n}" for n, kind in kinds.items())
        return (
            f"ONNX Runtime gives {theirs}; the interpreter, which computes with torch, is finite on this input, so no "
            "operation can be named"
        )

    def repaired(
        self,
        proposals: Sequence[Any],
        dtype: torch.dtype,
        failing: Batch,
        seeds: Sequence[Batch],
        place: Path,
        others: Sequence[Batch] = (),
    ) -> list[str]:
        from nnfuzz.onnx.fix import write_fixed

        if self.program is None or not (place / "finding.json").is_file():
            return []
        known = with_kept(list(seeds), place, self.unit)
        return write_fixed(self.onnx, proposals, dtype, failing, known, place, others)

    # ------------------------------------------------------------------ before the run

    def adopt(self, plan: Plan) -> None:
        self.unit, self.drive, self.why = plan.unit, plan.drive, plan.why
        group = max(plan.seeds.groups, key=lambda g: len(g.index))
        some = self._seeds = rows(group.batch, slice(0, COMPARED))
        self._compare(some)
        self._values = self._survey(some)
        if self.unit == "batch" and self.drive == "loop":
            self.axes = self._joinable(several(some))
        self.widest = max((v.bytes for v in self._values.values()), default=0)
        if self.widest and (self.unit == "sample" or self.axes is not None):
            self.chunk = max(1, CHUNK_BYTES // self.widest)
            self.widest = 0  # chunks bound the working memory: batches need not
        plain = self.run(some, Want(layers=False)).outputs
        if self.patterns is None:
            taps = hidden_values(self.onnx, self.program)
            self.layer_taps = next(([t] for t in taps if self._fits([t], some, plain)), [])
            return
        taps = values_by_pattern(self.onnx, self.program, self.patterns)
        self.layer_taps = [t for t in taps if self._fits([t], some, None)]
        if not self.layer_taps:
            self.notes.append(f"{self.name}: what --layers names has no row for each candidate: coverage sees outputs")

    @property
    def watch_taps(self) -> list[Tap]:
        """Values that ``--watch layers`` looks at: floating ones that ONNX Runtime computes for each candidate."""
        if self._watched is None:
            taps = [t for t in all_values(self.onnx, self.program) if t.value in self._values]
            self._watched = [t for t in taps if self._values[t.value].by_candidate]
        return self._watched

    def _fits(self, taps: list[Tap], some: Batch, plain: Named | None) -> bool:
        """Whether the values can be read, are floating with a row for each candidate, and (with ``plain``) whether
        reading them leaves the outputs as they are, bit for bit: else it would be another program that is fuzzed."""
        before, self.layer_taps = self.layer_taps, taps
        try:
            trace = self.run(some, Want())
        except Exception:  # fused away, inside a branch, or of no common shape
            return False
        finally:
            self.layer_taps = before
        fine = all(t.is_floating_point() and t.dim() and len(t) == size(some) for t in trace.layers.values())
        return fine and (plain is None or all(same(trace.outputs[n], t) for n, t in plain.items()))

    def _survey(self, some: Batch) -> dict[str, _Value]:
        """What is known of the values inside, from one run: of the interpreter, or, of a black box, of ONNX Runtime."""
        inputs, count = (some, size(some)) if self.unit == "sample" else ({n: t[0] for n, t in some.items()}, 1)
        try:
            with torch.inference_mode():
                if self.program is not None:
                    seen = self.program.run_all(inputs)
                else:
                    seen = self._run_ort(inputs, all_values(self.onnx, None))
        except Exception:  # what is not known is not watched
            return {}
        found = {}
        for name, t in seen.items():
            if isinstance(t, Tensor):
                by_row = t.is_floating_point() and (self.unit != "sample" or (t.dim() > 0 and len(t) == count))
                found[name] = _Value(t.numel() * t.element_size() // count, by_row)
        return found

    def _compare(self, some: Batch) -> None:
        """The interpreter beside ONNX Runtime on a few seeds; without it where it fails."""
        if self.program is None:
            return
        try:
            for part in [some] if self.unit == "sample" else each(some):
                inputs = self.model_input(part)
                with torch.inference_mode():
                    mine = named_outputs(self.form.call(self.program, inputs))
                theirs = self._answer(inputs)
                if not agree({n: mine[n] for n in theirs if n in mine}, theirs):
                    self.notes.append(
                        f"the interpreter and ONNX Runtime differ on the seeds ({_gap(mine, theirs)}): what is said of "
                        "places inside the graph is the interpreter's, and need not be what ONNX Runtime does"
                    )
                    return
        except Exception as error:
            self.notes.append(_blind(self.name, f"the interpreter fails on its seeds ({_told(error)})"))
            self.model, self.program, self.parameters = self.onnx, None, []

    # ------------------------------------------------------------------ words

    def describe(self) -> str:
        return f"{self.name} ({self.onnx.describe()})"

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys((t.label for t in self.layer_taps), ())


@dataclass(frozen=True)
class _Value:
    """Bytes of a value for one candidate; whether it is floating with a row for each."""

    bytes: int
    by_candidate: bool


def _kinds_of(t: Tensor) -> str:
    """ "-inf", "nan and +inf": what is not finite in a tensor."""
    kinds = {"nan": t.isnan(), "+inf": t.isposinf(), "-inf": t.isneginf()}
    return " and ".join(kind for kind, where in kinds.items() if bool(where.any()))


def interpreter_of(onnx: OnnxModel) -> tuple[OnnxProgram | None, list[str]]:
    """The program, or None with a sentence that names what is not built."""
    try:
        return onnx.program, []
    except Unsupported as error:
        return None, [_blind(onnx.name, str(error))]


def _blind(name: str, why: str) -> str:
    return f"{name} is fuzzed as a black box, without gradients and places: {why}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def each(batch: Batch) -> list[Batch]:
    """Its candidates one by one, with their leading axis."""
    return [rows(batch, slice(i, i + 1)) for i in range(size(batch))]


def not_finite(t: Tensor) -> bool:
    """Whether a NaN or an infinity is in it."""
    return (t.is_floating_point() or t.is_complex()) and not bool(t.detach().isfinite().all())


def said_of(t: Tensor) -> str:
    """ "NaN", "plus infinity", "minus infinity": of what is not finite in it."""
    if bool(t.isnan().any()):
        return "NaN"
    return "an infinity" if t.is_complex() else "plus infinity" if bool(t.isposinf().any()) else "minus infinity"


def _gap(mine: Named, theirs: Named) -> str:
    """The output that differs most: where, and by how much."""
    worst, where = -1.0, "other outputs"
    for name, y in theirs.items():
        x = mine.get(name)
        if x is None or x.shape != y.shape:
            return f"{name}: other shapes" if x is not None else f"{name} is missing"
        gap = float(differences(x, y).max()) if x.numel() else 0.0
        if gap > worst:
            worst, where = gap, name
    return f"{where}: by {worst:.3g}"
