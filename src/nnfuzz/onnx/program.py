"""An ONNX model as a torch module that runs it node by node: differentiable, hookable, traceable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

import onnx
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.onnx.attributes import Value
from nnfuzz.onnx.dtypes import WORKING
from nnfuzz.onnx.files import OLDEST
from nnfuzz.onnx.graph import Graph, Node, Spec, read_graph
from nnfuzz.onnx.node import UNCONVERTED, Body, OnnxNode
from nnfuzz.onnx.ops import find_operator
from nnfuzz.onnx.ops.making import is_random

NEWEST = 28
"""Operators are built for the opsets of ONNX's own domain from ``OLDEST`` to this; those that mean the same in an older
or newer one serve there too."""


def unsupported(graph: Graph) -> list[tuple[str, str, int, str]]:
    """(domain, operator, version, what the node is called) of every node that cannot be run, in branches too."""
    return [
        (node.domain, node.op, node.version, node.label)
        for node in _nodes(graph)
        if find_operator(node.domain, node.op) is None or not _known_version(node)
    ]


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.graphs.values():
            yield from _nodes(inner)


def _known_version(node: Node) -> bool:
    if node.domain or OLDEST <= node.version <= NEWEST:
        return True
    if node.version > onnx.defs.onnx_opset_version():
        return False  # the installed onnx cannot tell what changed
    try:
        written = onnx.defs.get_schema(node.op, OLDEST if node.version < OLDEST else NEWEST, node.domain)
        return onnx.defs.get_schema(node.op, node.version, node.domain).since_version == written.since_version
    except onnx.defs.SchemaError:
        return False


class OnnxProgram(Body):
    """A model whose nodes are child modules under their names.

    Inputs are given in the graph's order or by name; the result is a dict from output name to tensor (a list of them
    for a sequence). Every operation is one or a few of torch's own, so autograd, hooks, ``torch.func.vmap`` and
    dispatch modes see it as they would see a module written by hand.

    ``program.double()``, ``.half()`` and ``.bfloat16()`` give a program in that dtype: weights are converted, and
    wherever the file names a floating type of 16 bits or more (an input, a Cast, a constant), it then means the dtype
    converted to. That is what makes a float64 copy of a float32 model one that rounds nowhere to float32.

    Raises:
        UsageError: see ``read_graph``. Unsupported: the model has operators that are not built; all are named.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes | onnx.ModelProto | Graph) -> None:
        graph = source if isinstance(source, Graph) else read_graph(source)
        missing = unsupported(graph)
        if missing:
            raise Unsupported(_says(missing))
        super().__init__(graph)
        self.graph = graph
        self._marker = torch.empty(0, dtype=UNCONVERTED)
        self.eval()

    @property
    def declared_inputs(self) -> tuple[str, ...]:
        """Names of the inputs in the graph's order."""
        return tuple(s.name for s in self.inputs)

    @property
    def draws(self) -> list[str]:
        """Nodes that draw random numbers without a seed of their own: the program gives other results every time,
        unless torch's generator is seeded before each."""
        return [path for path, m in self.named_modules() if isinstance(m, OnnxNode) and is_random(m.onnx)]

    @property
    def floating(self) -> torch.dtype | None:
        """The dtype to which the program was converted; None for one that computes as the file says."""
        return None if self._marker.dtype == UNCONVERTED else self._marker.dtype

    def forward(self, *args: Value, **kwargs: Value) -> dict[str, Value]:
        scope = self._bound(args, kwargs)
        self.execute(scope)
        return {s.name: scope[s.name] for s in self.outputs}

    def run_all(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Every value by name that the nodes of the main graph make, in order, for inputs by name."""
        scope = self._bound((), inputs)
        self.execute(scope, keep=True)
        return {name: scope[name] for node in self.graph.nodes for name in node.outputs if name in scope and name}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnnxProgram:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._marker = fn(self._marker)
        return self

    def _bound(self, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> dict[str, Value]:
        """Values by name, each as the file declares it."""
        names = [s.name for s in self.inputs]
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or not kwargs.keys() <= set(names) - set(given):
            extra = [k for k in kwargs if k not in names or k in given]
            what = f"{len(args)} inputs" if len(args) > len(names) else f"an input {extra[0]!r}"
            raise UsageError(f"the ONNX model was given {what}, but takes {self._takes_text()}: give these, each once")
        given |= kwargs
        for spec in self.inputs:
            if spec.optional:
                given.setdefault(spec.name, None)
            if spec.name not in given:
                raise UsageError(f"the ONNX model takes {self._takes_text()}, but {spec.name!r} was not given: give it")
            self._check(spec, given[spec.name])
        return given

    def _takes_text(self) -> str:
        return ", ".join(f"{s.name!r} ({s})" for s in self.inputs) or "no inputs"

    def _check(self, spec: Spec, value: Value) -> None:
        if spec.kind != "tensor" or not isinstance(value, Tensor):
            if spec.kind == "tensor" and spec.dtype is not None and not (spec.optional and value is None):
                raise self._wrong(spec, f"a {type(value).__name__}")
            return
        wanted = spec.dtype
        if self.floating is not None and wanted in WORKING:
            wanted = self.floating
        if wanted is not None and value.dtype != wanted:
            said = f"a tensor of {_plain(value.dtype)}"
            raise self._wrong(spec, said + (f" (it was converted to {_plain(wanted)})" if self.floating else ""))
        shape = tuple(value.shape)
        if spec.shape is None:
            return
        fits = len(shape) == len(spec.shape) and all(
            not isinstance(d, int) or d == n for d, n in zip(spec.shape, shape, strict=True)
        )
        if not fits:
            raise self._wrong(spec, f"a tensor of shape {list(shape)}")

    def _wrong(self, spec: Spec, said: str) -> UsageError:
        return UsageError(f"the input {spec.name!r} of the ONNX model is {spec}, but was given {said}")


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _says(missing: list[tuple[str, str, int, str]]) -> str:
    first = next((m for m in missing if not m[0] and m[2] < OLDEST), None)
    if first is not None:
        return (
            f"the ONNX model uses opset {first[2]}, but operators are built from opset {OLDEST} on: "
            "export it with a newer one"
        )
    kinds: dict[str, list[str]] = {}
    for domain, op, version, name in missing:
        kinds.setdefault(f"{f'{domain}.' if domain else ''}{op} of opset {version}", []).append(name)
    told = ", ".join(f"{kind} (node {names[0]!r})" for kind, names in kinds.items())
    return f"the ONNX model uses operators that are not built, so it cannot be looked into: {told}"
