"""Which constants of a graph are weights, and where each is held.

A constant that one node reads is held by that node's module, any other by the module of its graph. Floating arrays are
parameters, so that whoever looks for parametric layers or for gradients of weights finds them; what only sets an
operation up (an exponent, a scale of resizing, a bound, running statistics) is a buffer. The gradient by such a number
is nobody's, and may be non-finite where the model is fine: d(x**p)/dp at x = 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from nnfuzz.onnx.attributes import Value
from nnfuzz.onnx.dtypes import WORKING
from nnfuzz.onnx.graph import Graph
from nnfuzz.onnx.ops.shapes import remember
from nnfuzz.probe.sites import DOT

_SETTINGS = {
    "BatchNormalization": (3, 4), "Clip": (1, 2), "Dropout": (1,), "MelWeightMatrix": (3, 4), "OneHot": (2,),
    "Div": (1,), "Pad": (2,), "Pow": (1,), "Range": (0, 1, 2), "Resize": (1, 2), "Upsample": (1,), "Where": (1, 2),
}  # fmt: skip
"""Inputs by number that set an operator up."""

_LAYERS = {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "GroupNormalization", "InstanceNormalization",
           "LayerNormalization", "MatMul", "PRelu"}  # fmt: skip
"""Operators whose weights are weights even where they are a single number."""


def is_weight(value: Value, op: str, place: int) -> bool:
    """Whether input number ``place`` of an operator is something that was trained."""
    if not isinstance(value, Tensor) or value.dtype not in WORKING or "Quantize" in op or op.startswith("QLinear"):
        return False
    return place not in _SETTINGS.get(op, ()) and (value.numel() > 1 or op in _LAYERS)


def private(graph: Graph) -> set[str]:
    """Constants of this graph that exactly one node reads, in the graph itself or in one inside it."""
    names = set(graph.initializers)
    counts = Counter(_reads(graph, names))
    return {name for name, count in counts.items() if count == 1} - set(_given_back(graph))


def _reads(graph: Graph, names: set[str]) -> Iterator[str]:
    """Each of ``names`` once for every node that reads it."""
    for node in graph.nodes:
        yield from set(node.inputs) & names
        for inner in node.graphs.values():
            yield from _reads(inner, names & set(inner.free))


def _given_back(graph: Graph) -> Iterator[str]:
    """Names of the outputs of a graph and of those inside it: no node may be the only one to know these."""
    yield from (s.name for s in graph.outputs)
    for node in graph.nodes:
        for inner in node.graphs.values():
            yield from _given_back(inner)


def hold(module: nn.Module, label: str, value: Value, *, weight: bool) -> str:
    """Registers a constant on a module under a legal, free form of ``label``, which is returned."""
    base = label.replace(".", DOT) or "constant"
    name, n = base, 2
    while hasattr(module, name):
        name, n = f"{base}_{n}", n + 1
    if not isinstance(value, Tensor):
        object.__setattr__(module, name, value)
        return name
    remember(value)
    if weight:
        module.register_parameter(name, nn.Parameter(value))
    else:
        module.register_buffer(name, value)
    return name


def place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dict of a module that holds a constant, and its key there: quicker to ask than ``nn.Module.__getattr__``,
    and right also after the module was moved, converted or copied."""
    return next((held, name) for held in (module._parameters, module._buffers, module.__dict__) if name in held)
