"""A quantized copy with some nodes as they were, by taking their quantization out of its graph.

To quantize a model anew for every layer takes seconds each, most of them spent on the layers that stay quantized. Here
the nodes in question are cut out of the finished copy and those of the float model are put in their place; they read
what the copy gives, quantized or not. What the converter would make of it may differ at the border, where a value is
quantized only for the sake of a node that no longer is: so whoever ranks layers this way makes the best ones anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx

DEQUANTIZED = "_DequantizeLinear_Output"
"""What onnxruntime appends to the name of a value where it is read after a QuantizeLinear and a DequantizeLinear."""
_FLOAT = "_nnfuzz_float"


def with_floats(
    copy: onnx.ModelProto,
    prepared: onnx.ModelProto,
    keep: Collection[str],
    quantized: Collection[str],
    ordered: Callable[[onnx.ModelProto], onnx.ModelProto],
) -> onnx.ModelProto | None:
    """The copy with the nodes ``keep`` of the float model; None where their values cannot be told apart in it.

    Args:
        copy: made of ``prepared`` by onnxruntime, which leaves the names of values as they are.
        quantized: nodes that the converter quantizes; a value stays quantized for the sake of these alone.
        ordered: puts the nodes of a model in an order in which they can run.
    """
    kept = [n for n in prepared.graph.node if n.name in keep]
    makes = {name for n in kept for name in n.output if name}
    made = onnx.ModelProto()
    made.CopyFrom(copy)
    rest = [n for n in made.graph.node if not (set(n.output) & makes) and n.name not in keep]
    there = {name for n in rest for name in n.output} | {v.name for v in made.graph.input}
    constants = {t.name: t for t in prepared.graph.initializer}
    for_others = {name for name, nodes in _users(prepared.graph).items() if (nodes & set(quantized)) - set(keep)}
    for node in rest:
        for i, name in enumerate(node.input):
            value = name.removesuffix(DEQUANTIZED)
            if value != name and value in makes and value not in for_others:
                node.input[i] = value
    held = {t.name for t in made.graph.initializer}
    new = []
    for node in kept:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for i, name in enumerate(node.input):
            if name in constants:
                changed.input[i] = name + _FLOAT
                if name + _FLOAT not in held:
                    held.add(name + _FLOAT)
                    float_weight = made.graph.initializer.add()
                    float_weight.CopyFrom(constants[name])
                    float_weight.name = name + _FLOAT
            elif name and name not in makes:
                seen_by_others = name + DEQUANTIZED in there and name in for_others
                value = name + DEQUANTIZED if seen_by_others else name
                if value not in there:
                    return None  # a value that the copy does not have: a Relu that it folded away, say
                changed.input[i] = value
        new.append(changed)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in rest] + new
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    _prune(made.graph)
    del made.graph.value_info[:]
    return ordered(made)


def _users(graph: onnx.GraphProto) -> dict[str, set[str]]:
    """Names of the nodes that make or read a value."""
    found: dict[str, set[str]] = {}
    for node in graph.node:
        for name in (*node.input, *node.output):
            found.setdefault(name, set()).add(node.name)
    return found


def _prune(graph: onnx.GraphProto) -> None:
    """Without what nobody reads any more."""
    while True:
        read = {v.name for v in graph.output} | {name for n in graph.node for name in n.input}
        read |= {name for n in graph.node for a in n.attribute if a.HasField("g") for name in _inside(a.g)}
        live = [n for n in graph.node if any(o in read for o in n.output)]
        if len(live) == len(graph.node):
            break
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in live]
        del graph.node[:]
        graph.node.extend(copies)
    used = [t for t in graph.initializer if t.name in read]
    if len(used) < len(graph.initializer):
        weights = [onnx.TensorProto.FromString(t.SerializeToString()) for t in used]
        del graph.initializer[:]
        graph.initializer.extend(weights)


def _inside(graph: onnx.GraphProto) -> set[str]:
    found = {name for n in graph.node for name in n.input} | {v.name for v in graph.output}
    for n in graph.node:
        for a in n.attribute:
            if a.HasField("g"):
                found |= _inside(a.g)
    return found
