"""The order of nodes.

ONNX asks that every node stand behind those whose values it reads. ONNX Runtime does not ask that of the main graph,
and some tools (its own float16 converter) write nodes in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from nnfuzz.onnx.naming import graphs_of, nodes_of


def is_ordered(graph: onnx.GraphProto) -> bool:
    """Whether no node reads what a later one of its graph makes, in bodies and branches too."""
    return _stands(graph) and all(_stands(inner) for node in nodes_of(graph) for inner in graphs_of(node))


def in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with its nodes in order; a graph that cannot be ordered (a circle) stays as it is."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _order(made.graph)
    return made


def _order(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for inner in graphs_of(node):
            _order(inner)
    if _stands(graph):
        return
    ordered = _sorted(graph.node)
    if ordered is not None:
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in ordered]
        del graph.node[:]
        graph.node.extend(nodes)


def _stands(graph: onnx.GraphProto) -> bool:
    later = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        if any(name in later for name in _reads(node)):
            return False
        later.difference_update(node.output)
    return True


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto] | None:
    """None where there is no such order, or a name of a branch shadows one outside."""
    made_by = {name for node in nodes for name in node.output if name}
    known: set[str] = set()
    waiting, ordered = list(nodes), []
    while waiting:
        late = []
        for node in waiting:
            if all(name in known or name not in made_by for name in _reads(node)):
                ordered.append(node)
                known.update(node.output)
            else:
                late.append(node)
        if len(late) == len(waiting):
            return None
        waiting = late
    return ordered


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node and its branches read, names made inside the branches among them."""
    yield from node.input
    for graph in graphs_of(node):
        for inner in graph.node:
            yield from _reads(inner)
        yield from (v.name for v in graph.output)
