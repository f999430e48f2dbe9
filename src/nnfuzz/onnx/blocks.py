"""Layers as a person means them: a node with weights together with what follows it, up to the next such node.

A convolution, the normalisation and the activation behind it, and the addition that closes a residual block are one
layer: kept in float node by node they would still be quantized between each other.
"""

from __future__ import annotations

from collections import Counter

import onnx

WEIGHTED = {"Attention", "Conv", "ConvTranspose", "DeformConv", "EmbedLayerNormalization", "GRU", "Gemm", "LSTM",
            "MatMul", "QAttention", "RNN"}  # fmt: skip
_MORE = 3
"""Operators that are named of a layer besides its first."""


def blocks(graph: onnx.GraphProto) -> list[list[str]]:
    """Names of nodes, layer by layer, in the order of the graph; nodes before all weights are a layer of their own.

    A node with several inputs belongs to the layer among theirs that comes last.
    """
    constants = {t.name for t in graph.initializer}
    of_value: dict[str, int] = {}
    found: list[list[str]] = [[]]
    for node in graph.node:
        layers = [of_value[name] for name in node.input if name in of_value]
        if is_weighted(node, constants):
            found.append([])
            at = len(found) - 1
        else:
            at = max(layers, default=0)
            if not layers and all(name in constants for name in node.input):
                constants.update(node.output)
        found[at].append(node.name)
        of_value |= {name: at for name in node.output if name not in constants}
    return [block for block in found if block]


def is_weighted(node: onnx.NodeProto, constants: set[str]) -> bool:
    """Whether it multiplies by something that was trained."""
    return node.op_type in WEIGHTED and any(name in constants for name in node.input[1:])


def told(operators: list[str]) -> str:
    """What a layer is made of: "Conv with Add, Clip and 3 more"."""
    first, *rest = operators
    kinds = [op for op, _ in Counter(rest).most_common()]
    if not kinds:
        return first
    more = len(kinds) - _MORE
    shown = ", ".join(kinds[:_MORE])
    return f"{first} with {shown}" + (f" and {more} more" if more > 0 else "")
