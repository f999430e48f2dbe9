"""Which values inside a graph the coverage watches.

A value that ONNX Runtime has fused away can be asked for, but then another program runs: one without that fusion. So
only values that outlive its optimisation are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase as fits

import onnx
from nnfuzz.errors import UsageError
from nnfuzz.onnx.naming import graphs_of, label_of
from nnfuzz.onnx.ops import Call
from nnfuzz.onnx.program import OnnxProgram
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.probe.sites import DOT

PARAMETRIC = {
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "Gemm", "QGemm", "MatMul", "MatMulInteger", "MatMulNBits",
    "QLinearMatMul", "FusedMatMul", "FusedConv", "FusedGemm", "LSTM", "GRU", "RNN", "Attention",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM",
}  # fmt: skip
"""Operators with weights: what the last of them reads is the last hidden activation."""
TRIED = 4
"""Hidden values that are tried before coverage makes do with the outputs."""


@dataclass(frozen=True)
class Tap:
    """A value of the graph and what it is called: by the node that makes it."""

    label: str
    value: str


def hidden_values(model: OnnxModel, program: OnnxProgram | None) -> list[Tap]:
    """What the last parametric node reads, then what the one before it reads, and so on."""
    graph = model.proto.graph
    made = {name for node in graph.node for name in node.output if name and node.op_type != "Constant"}
    constant = _constant_values(graph)
    kept = model.optimised
    found = []
    for node in reversed(graph.node):
        if node.op_type not in PARAMETRIC or not any(name in constant for name in node.input):
            continue
        value = next((n for n in node.input if n and n not in constant), "")
        if value in made and (not kept or value in kept) and value not in found:
            found.append(value)
    names = node_names(model, program)
    return [Tap(names[v], v) for v in found[:TRIED]]


def values_by_pattern(model: OnnxModel, program: OnnxProgram | None, patterns: Sequence[str]) -> list[Tap]:
    """First outputs of the nodes whose names match any shell pattern, and values whose own names do.

    Raises:
        UsageError: nothing matches; some names are shown.
    """
    names = node_names(model, program)
    first = {node.output[0] for node in model.proto.graph.node if node.output}
    found = [
        Tap(label, value)
        for value, label in names.items()
        if any(fits(value, q) or (value in first and fits(label.replace(DOT, "."), q)) for q in patterns)
    ]
    if not found:
        some = ", ".join(list(dict.fromkeys(names.values()))[:8]).replace(DOT, ".") or "none"
        raise UsageError(
            f"no node and no value of {model.name} matches --layers {', '.join(patterns)}: the nodes are {some}"
        )
    return found


def all_values(model: OnnxModel, program: OnnxProgram | None) -> list[Tap]:
    """Every value that ONNX Runtime computes, but the outputs."""
    kept, outputs = model.optimised, {s.name for s in model.outputs}
    return [
        Tap(label, value)
        for value, label in node_names(model, program).items()
        if value not in outputs and (not kept or value in kept)
    ]


def node_names(model: OnnxModel, program: OnnxProgram | None) -> dict[str, str]:
    """Values that nodes of the main graph make → the name of the node, as the interpreter calls it."""
    nodes = program.named_children() if program is not None else ()
    names = {n: label for label, child in nodes for n in getattr(child, "onnx", Call("")).outputs if n}
    for node in model.proto.graph.node:
        if node.op_type != "Constant":
            for name in node.output:
                if name:
                    names.setdefault(name, label_of(node))
    here = {name for node in model.proto.graph.node if node.op_type != "Constant" for name in node.output}
    return {value: label for value, label in names.items() if value in here}


def _constant_values(graph: onnx.GraphProto) -> set[str]:
    """Initializers and whatever follows from them alone (a weight that is stored quantized)."""
    known = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    for node in graph.node:
        inputs = [n for n in node.input if n]
        if node.op_type == "Constant" or (inputs and all(n in known for n in inputs) and not any(graphs_of(node))):
            known.update(n for n in node.output if n)
    return known
