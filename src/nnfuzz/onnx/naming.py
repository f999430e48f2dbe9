"""What nodes are called: by their names, and where the file gives none by operator and first output, ``Reshape -> y``.

ONNX Runtime says ``''`` of a node without a name. So graphs are given to it with these names written in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx


def visible(name: str) -> str:
    """With escapes for what a terminal would take for its own, line breaks among it."""
    return name if name.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def label(name: str, op: str, outputs: Sequence[str]) -> str:
    """The node's name; ``Reshape -> y`` for one without. No two nodes of a graph make the same value, so it is theirs
    alone."""
    first = next((n for n in outputs if n), "")
    return visible(name or (f"{op} -> {first}" if first else op))


def label_of(node: onnx.NodeProto) -> str:
    """The same of a node as the file holds it."""
    return label(node.name, node.op_type, node.output)


def told(node_label: str, op: str = "") -> str:
    """A node in a sentence: "the Reshape node 'r'", "the node 'Reshape -> y'"."""
    nameless = f"{op} -> " in node_label if op else " -> " in node_label
    return f"the node {node_label!r}" if nameless or not op else f"the {op} node {node_label!r}"


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of bodies and branches among them."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from nodes_of(inner)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Its bodies and branches."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


def nameless(proto: onnx.ModelProto) -> bool:
    """Whether any node has no name."""
    return any(not node.name for node in nodes_of(proto.graph))


def name_nodes(proto: onnx.ModelProto) -> None:
    """Writes the labels of nodes without a name into a model."""
    for node in nodes_of(proto.graph):
        node.name = label_of(node)
