"""What an ONNX file says: its inputs, outputs, constants and nodes, decoded and with local functions inlined."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

import onnx
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.onnx.attributes import Value, constant_of, decode_attribute, decode_sparse, decode_tensor
from nnfuzz.onnx.dtypes import NAMES, TORCH
from nnfuzz.onnx.files import open_model
from nnfuzz.onnx.naming import label, label_of, told
from nnfuzz.onnx.ops.registry import DOMAINS

Dim = int | str | None
"""A fixed size, the name of a free one, or a free one without a name."""


@dataclass(frozen=True)
class Spec:
    """An input or output of a graph.

    Attributes:
        name: as in the file.
        code: ONNX element type (``onnx.TensorProto.DataType``), 0 where the file does not say.
        shape: one entry an axis; None where even the rank is open.
        kind: "tensor", "sequence" (a list of tensors), "optional" or "other" (a map, a sparse tensor).
        optional: whether None may be given.
    """

    name: str
    code: int
    shape: tuple[Dim, ...] | None
    kind: str = "tensor"
    optional: bool = False

    @property
    def dtype(self) -> torch.dtype | None:
        """torch dtype of the elements; None for strings and where the file does not say."""
        return TORCH.get(self.code)

    def __str__(self) -> str:
        shape = "" if self.shape is None else f"[{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        text = f"{NAMES.get(self.code, 'any')}{shape}"
        return text if self.kind == "tensor" else f"{self.kind} of {text}"


@dataclass(frozen=True)
class Node:
    """One operation. ``name`` is as in the file, maybe empty; ``attrs`` hold a ``Graph`` where the node has one."""

    op: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What the node is called; see ``naming``."""
        return label(self.name, self.op, self.outputs)

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        return f"{op}({', '.join(self.inputs)}) -> {', '.join(n for n in self.outputs if n)}"

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """Branches and bodies by attribute."""
        return {name: value for name, value in self.attrs.items() if isinstance(value, Graph)}

    @cached_property
    def reads(self) -> list[str]:
        """Names that it needs: its inputs, and what its graphs take from the outer scope."""
        seen = dict.fromkeys(name for name in self.inputs if name)
        for graph in self.graphs.values():
            seen |= dict.fromkeys(graph.free)
        return list(seen)


@dataclass(frozen=True)
class Graph:
    """A graph or the body of a control-flow node.

    Attributes:
        inputs: without those that have an initializer: these are constants with a default's name.
        initializers: constants by name, those of Constant nodes among them.
        nodes: in an order in which they can run.
        types: ONNX element types of values by name, as far as the file tells.
        opsets: versions by domain ("" is ONNX's own); of the main graph only.
    """

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    initializers: Mapping[str, Value]
    nodes: tuple[Node, ...]
    types: Mapping[str, int] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def free(self) -> list[str]:
        """Names that it takes from the outer scope."""
        own = {*self.initializers, *(s.name for s in self.inputs)}
        own.update(name for node in self.nodes for name in node.outputs)
        names = dict.fromkeys(name for node in self.nodes for name in node.reads)
        names |= dict.fromkeys(s.name for s in self.outputs)
        return [name for name in names if name not in own]


def read_graph(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Graph:
    """Reads a model: a path, the bytes of a file, or a ``ModelProto``.

    Raises:
        UsageError: no such file, not ONNX, cut short, weights in another file that is missing, or a graph that does
            not hold together (a node reads a name that nothing made).
        Unsupported: an element type among the constants that torch cannot hold.
    """
    proto, name = open_model(source)
    opsets = {DOMAINS.get(o.domain, o.domain): int(o.version) for o in proto.opset_import}
    try:
        graph = _Reader(opsets).graph(proto.graph, {})
    except Unsupported:
        raise
    except UsageError as error:
        raise UsageError(f"{name} is not a valid ONNX graph: {error}") from error
    return replace(graph, opsets=opsets)


class _Reader:
    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets

    def graph(self, proto: onnx.GraphProto, outer: Mapping[str, int]) -> Graph:
        """``outer``: names known in the outer scope, with their element types (0 for unknown)."""
        constants: dict[str, Value] = {t.name: decode_tensor(t) for t in proto.initializer}
        constants |= {s.values.name: decode_sparse(s) for s in proto.sparse_initializer}
        types = dict(outer)
        types |= {t.name: t.data_type for t in proto.initializer}
        inputs = tuple(spec_of(v) for v in proto.input if v.name not in constants)
        outputs = tuple(spec_of(v) for v in proto.output)
        types |= {s.name: s.code for s in (*inputs, *(spec_of(v) for v in proto.value_info))}
        known = {*outer, *constants, *(s.name for s in inputs)}
        nodes = []
        for n in proto.node:
            node = self._node(n, known, types)
            if node.op == "Constant" and not node.domain and (value := constant_of(node.attrs)) is not None:
                constants[node.outputs[0]] = value
            else:
                nodes.append(node)
            known.update(name for name in node.outputs if name)
            types |= {name: 0 for name in node.outputs if name and name not in types}
        types |= {s.name: s.code for s in outputs}
        for spec in outputs:
            if spec.name not in known:
                raise UsageError(f"nothing makes the output {spec.name!r}: {_DAMAGED}")
        return Graph(proto.name, inputs, outputs, constants, tuple(nodes), types)

    def _node(self, proto: onnx.NodeProto, known: set[str], types: Mapping[str, int]) -> Node:
        for name in proto.input:
            if name and name not in known:
                where = told(label_of(proto), proto.op_type)
                raise UsageError(f"{where} reads {name!r}, which nothing before it makes: {_DAMAGED}")
        domain = DOMAINS.get(proto.domain, proto.domain)

        def inner(g: onnx.GraphProto) -> Graph:
            return self.graph(g, {name: types.get(name, 0) for name in known})

        attrs = {a.name: decode_attribute(a, inner) for a in proto.attribute}
        version = self._opsets.get(domain, 1)
        return Node(proto.op_type, domain, version, proto.name, _trimmed(proto.input), tuple(proto.output), attrs)


_DAMAGED = "the file is damaged, or was edited by hand: export it again"


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """Without the inputs left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def spec_of(proto: onnx.ValueInfoProto) -> Spec:
    """An input, an output or an inner value as the file declares it."""
    kind, held, optional = proto.type.WhichOneof("value"), proto.type, False
    if kind == "optional_type":
        held, optional = held.optional_type.elem_type, True
        kind = held.WhichOneof("value")
    name = "sequence" if kind == "sequence_type" else "tensor" if kind in ("tensor_type", None) else "other"
    if kind == "sequence_type":
        held = held.sequence_type.elem_type
    tensor = held.tensor_type
    shape = tuple(_dim(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return Spec(
        proto.name, int(tensor.elem_type), shape, "optional" if optional and name == "other" else name, optional
    )


def _dim(proto: onnx.TensorShapeProto.Dimension) -> Dim:
    if proto.HasField("dim_value"):
        return int(proto.dim_value) if proto.dim_value >= 0 else None  # some exporters write −1 for a free one
    return str(proto.dim_param) or None
