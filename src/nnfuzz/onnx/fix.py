"""A remedy that was verified in the interpreter, put into the graph, and verified again in ONNX Runtime."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import onnx
from nnfuzz.advice.agreement import gap, tolerance_of
from nnfuzz.advice.verify import compared
from nnfuzz.onnx.dtypes import onnx_code
from nnfuzz.onnx.files import open_model
from nnfuzz.onnx.naming import label_of
from nnfuzz.onnx.rewrites import RULES, Surgeon
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.space import Batch

if TYPE_CHECKING:
    from nnfuzz.advice.advise import Proposal

NAME = "fixed.onnx"
LEAST_IR = 4
"""IR version from which on a constant need not be an input."""
MOST_BYTES = 2**31 - 2**20
"""protobuf's limit for one file."""


class CannotFix(Exception):
    """Why no graph was written, in words."""


@dataclass
class Fixed:
    """A changed model: what was done where, and what ONNX Runtime says of it."""

    proto: onnx.ModelProto
    remedy: str
    changes: list[str]
    checked: str = ""


def write_fixed(
    model: OnnxModel,
    proposals: Sequence[Proposal],
    dtype: torch.dtype,
    failing: Batch,
    seeds: Sequence[Batch],
    place: Path,
    others: Sequence[Batch] = (),
) -> list[str]:
    """``place/fixed.onnx`` with the first verified remedy that the graph can hold and that ONNX Runtime confirms; the
    lines to be told, which say why where none was written.

    Args:
        dtype: in which the failing operation computes. failing, seeds: model inputs by name.
        others: legal inputs besides; those on which a proposal agreed when it was tried (``places``) are compared.
    """
    reasons = []
    for proposal in proposals:
        if not proposal.verified:
            continue
        try:
            fixed = rewritten(model, proposal, dtype)
            fixed.checked = _verified(model, fixed, failing, seeds, [others[i] for i in proposal.verification.places])
            _save(fixed.proto, place / NAME)
        except CannotFix as why:
            reasons.append(f"{proposal.id}: {why}")
            continue
        lines = [f"written: {NAME}, with {fixed.remedy}:"]
        return [*lines, *(f"  {change}" for change in fixed.changes), f"  in ONNX Runtime {fixed.checked}"]
    if not reasons:
        return []
    return [f"no {NAME} was written:", *(f"  {r}" for r in reasons)]


def rewritten(model: OnnxModel, proposal: Proposal, dtype: torch.dtype) -> Fixed:
    """The model with every repair of a proposal in its graph. Raises ``CannotFix``."""
    proto = onnx.ModelProto()
    proto.CopyFrom(open_model(model.path if model.path is not None else model.proto)[0])
    taken = set(_names(proto.graph))
    del proto.graph.value_info[:]  # a changed graph's inner types are found anew
    changes = []
    for repair in proposal.repairs:
        rule = RULES.get(repair.remedy.id)
        call: Any = (
            getattr(model.program.get_submodule(repair.site.module), "onnx", None) if repair.site.module else None
        )
        if rule is None or call is None:
            raise CannotFix("a graph cannot hold it" if rule is None else "it acts on no node of its own")
        graph, node = _node(proto.graph, call.outputs)
        surgeon = Surgeon(graph, onnx_code(dtype), model.opsets.get("", 0), taken, repair.eps or 0.0)
        name = label_of(node)
        said = rule(surgeon, node)
        if not said:
            raise CannotFix(f"the node {name} is a {node.op_type} whose surroundings have another form than it needs")
        surgeon.prune()
        changes.append(f"node {name}: {said}")
    # Before version 4 an initializer has to be an input as well; a rule adds some that are none.
    proto.ir_version = max(proto.ir_version, LEAST_IR)
    try:
        onnx.checker.check_model(proto)
    except Exception as error:
        raise CannotFix(f"the changed graph is not valid ({str(error).splitlines()[0]})") from error
    return Fixed(proto, proposal.id, changes)


def _node(graph: onnx.GraphProto, outputs: Sequence[str]) -> tuple[onnx.GraphProto, onnx.NodeProto]:
    for held, node in _all_nodes(graph):
        if list(node.output) == list(outputs):
            return held, node
    raise CannotFix("its node is not in the file by itself")


def _all_nodes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    for node in graph.node:
        yield graph, node
        for a in node.attribute:
            for inner in [a.g] if a.HasField("g") else list(a.graphs):
                yield from _all_nodes(inner)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name of a value, in branches too."""
    for held, node in _all_nodes(graph):
        yield from (*node.output, *(t.name for t in held.initializer), *(v.name for v in held.input))
    yield from (v.name for v in (*graph.input, *graph.initializer))


def _verified(
    model: OnnxModel, fixed: Fixed, failing: Batch, seeds: Sequence[Batch], others: Sequence[Batch] = ()
) -> str:
    """What ONNX Runtime shows of the changed model. Raises ``CannotFix`` where it does not hold."""
    try:
        new = OnnxModel(fixed.proto, model.options)
        outputs = new.run(failing)
    except Exception as error:
        raise CannotFix(f"ONNX Runtime refuses the changed graph ({str(error).splitlines()[0][:200]})") from error
    bad = [n for n, t in outputs.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if bad:
        raise CannotFix(f"in ONNX Runtime the failing inputs still give non-finite numbers ({', '.join(bad)})")
    beside = _Beside(model, new)
    for inputs in seeds:
        beside.compare(inputs, model.run(inputs), "on the seeds")
    agreeing = sum(beside.compare_finite(inputs) for inputs in others)
    better = f"; {beside.nearer} differ more, and are nearer to float64 than before" if beside.nearer else ""
    within = f"within {beside.worst:.2g} (relative, tolerance {beside.bound:.2g})" if beside.bound else "exactly"
    gives = "give finite outputs" if any(t.is_floating_point() for t in outputs.values()) else "raise no error"
    return f"the failing inputs {gives}; {compared(len(seeds), agreeing)} {within}{better}"


class _Beside:
    """Answers of the changed model beside those of the model; ``nearer``: how many outputs differ for the better."""

    def __init__(self, model: OnnxModel, new: OnnxModel) -> None:
        self._model, self._new = model, new
        self.worst, self.bound, self.nearer = 0.0, 0.0, 0

    def compare_finite(self, inputs: Batch) -> bool:
        """The same for inputs that nobody has run: those that fail, or that the model refuses, say nothing."""
        try:
            before = self._model.run(inputs)
        except Exception:
            return False
        if any(t.is_floating_point() and not bool(t.isfinite().all()) for t in before.values()):
            return False
        self.compare(inputs, before, "on other legal inputs, which do not fail,")
        return True

    def compare(self, inputs: Batch, before: Batch, where: str) -> None:
        """Raises ``CannotFix`` where an output is another one. ``before``: what the model gives."""
        after = self._new.run(inputs)
        for name, x in before.items():
            if not any(t.is_floating_point() for t in before.values()) and not torch.equal(x, after[name]):
                raise CannotFix(f"in ONNX Runtime it changes {name} {where.rstrip(',')}")
            if not x.is_floating_point() or not x.numel():
                continue
            allowed, here = tolerance_of(x), gap(x, after[name])
            self.bound = max(self.bound, allowed)
            if here <= allowed:
                self.worst = max(self.worst, here)
            elif _nearer_to_truth(self._model, inputs, name, x, after[name]):
                self.nearer += 1
            else:
                raise CannotFix(f"in ONNX Runtime it changes {name} {where} by {here:.2g} (relative)")


def _nearer_to_truth(model: OnnxModel, inputs: Batch, name: str, before: Tensor, after: Tensor) -> bool:
    """Whether the repaired model is no farther from the graph in float64 than the original: the stable form of a
    logarithm differs from the other where that has lost its digits."""
    try:
        exact = copy.deepcopy(model.program).double()
        wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
        with torch.no_grad():
            truth = exact(**wide)[name]
        return gap(truth, after.double()) <= gap(truth, before.double())
    except Exception:  # no float64 of this graph, no excuse
        return False


def _save(proto: onnx.ModelProto, path: Path) -> None:
    if proto.ByteSize() > MOST_BYTES:
        raise CannotFix("the model is larger than one file may be")
    try:
        onnx.save(proto, str(path))
    except OSError as error:
        raise CannotFix(f"{path} cannot be written ({error.strerror or error})") from error
