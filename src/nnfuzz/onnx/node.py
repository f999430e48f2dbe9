"""One node of an ONNX graph as a torch module, and the graphs that are bodies and branches of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from nnfuzz.errors import NnfuzzError, Unsupported
from nnfuzz.onnx.attributes import Value
from nnfuzz.onnx.constants import hold, is_weight, place_of, private
from nnfuzz.onnx.graph import Graph, Node, Spec
from nnfuzz.onnx.ops import Call, find_operator
from nnfuzz.probe.sites import DOT, speaks

UNCONVERTED = torch.float8_e5m2
"""dtype of a node's marker until somebody converts the program: no program is ever converted to it."""


class OnnxNode(nn.Module):
    """Computes one node: called with its inputs that are not constants, in order, then with what its graphs take from
    the outer scope; returns the value of its one output, or a tuple of them.

    Attributes:
        site_text, site_node: the node as text and its operator, which name it where the probe tells of an operation.
        reads: names of the values that ``forward`` is given.
        initializers: names of the constants that it holds, by the names under which it holds them.
    """

    def __init__(self, node: Node, types: Mapping[str, int], constants: Mapping[str, Value]) -> None:
        """``constants``: those that only this node or one inside its graphs reads."""
        super().__init__()
        self.site_text = str(node)
        self.site_node = f"{node.domain}.{node.op}" if node.domain else node.op
        function = find_operator(node.domain, node.op)
        if function is None:
            domain = f"{node.domain}." if node.domain else ""
            raise Unsupported(f"the ONNX operator {domain}{node.op} of opset {node.version} is not built")
        self._function = function
        attrs = {k: v for k, v in node.attrs.items() if not isinstance(v, Graph)}
        of_inputs = tuple(types.get(name, 0) for name in node.inputs)
        self.onnx = Call(node.op, node.domain, node.version, attrs, node.inputs, node.outputs, node.name, of_inputs)
        self._lone = len(node.outputs) == 1
        self._marker = torch.empty(0, dtype=UNCONVERTED)
        for attribute, graph in node.graphs.items():
            self.add_module(attribute, Body(graph, constants))
        self._bodies = tuple(node.graphs)
        held: dict[str, str] = {}
        for place, name in enumerate(node.inputs):
            if name in constants and name not in held:
                held[name] = hold(self, name, constants[name], weight=is_weight(constants[name], node.op, place))
        self.initializers = {place: name for name, place in held.items()}
        self._sources = tuple(self._source(name, held) for name in node.inputs)
        """For each input the dict that holds it and its key there; None where ``forward`` is given it."""
        self._all_given = all(source is None for source in self._sources)
        self._outer = tuple(dict.fromkeys(name for body in self._bodies for name in self._body(body).takes))
        self.reads = (*(name for name in node.inputs if name and name not in held), *self._outer)

    @speaks
    def forward(self, *values: Value) -> Value:
        args: Sequence[Value] = values
        call = self.onnx
        if self._bodies or not self._all_given:
            given = iter(values)
            args = [next(given) if source is None else source[0][source[1]] for source in self._sources]
            if self._bodies:
                outer = dict(zip(self._outer, given, strict=True))
                bound = {name: Branch(self._body(name), outer) for name in self._bodies}
                call = replace(call, attrs={**call.attrs, **bound})
        try:
            result = self._function(call, *args)
            return result if self._lone and not isinstance(result, tuple) else _tidied(result, len(call.outputs))
        except NnfuzzError:
            raise
        except Exception as error:
            if any(isinstance(a, np.ndarray) for a in args):
                raise call.unsupported("computing with strings") from error
            error.add_note(f"in the ONNX node {call.label}: {self.site_text}")
            raise

    def _source(self, name: str, held: Mapping[str, str]) -> tuple[dict[str, Any], str] | None:
        if not name:
            return _LEFT_OUT
        return place_of(self, held[name]) if name in held else None

    def _body(self, attribute: str) -> Body:
        return cast(Body, self._modules[attribute])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OnnxNode:
        """Constants among the attributes move and are converted with the module, and the node learns of the dtype."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._marker = fn(self._marker)
        floating = None if self._marker.dtype == UNCONVERTED else self._marker.dtype
        attrs = {k: fn(v) if isinstance(v, Tensor) else v for k, v in self.onnx.attrs.items()}
        self.onnx = replace(self.onnx, attrs=attrs, floating=floating)
        return self

    def extra_repr(self) -> str:
        return self.site_text


_LEFT_OUT: tuple[dict[str, Any], str] = ({"": None}, "")


def _tidied(result: Value, wanted: int) -> Value:
    """One value for one output, else a tuple with one for each."""
    if wanted == 1:
        return result[0] if isinstance(result, tuple) else result
    return tuple(result) if isinstance(result, tuple) else (result,)


@dataclass(frozen=True)
class Step:
    """A turn of the interpreter: which module runs, what it reads and makes, what nobody needs after it."""

    module: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    frees: tuple[str, ...]


@dataclass(frozen=True)
class Branch:
    """A graph of a node together with the values of the outer scope: what an operator's function finds in ``attrs``."""

    body: Body
    outer: Mapping[str, Value]

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        return self.body.run(self.outer, *inputs)

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """What the file says of its outputs."""
        return self.body.outputs


class Body(nn.Module):
    """A graph: a child module for each node, run in order.

    Attributes:
        takes: names of values that a run needs from the outer scope.
        initializers: names of the constants that it holds, by the names under which it holds them.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Value] | None = None) -> None:
        """``constants``: of outer graphs, those that only one node in here reads."""
        super().__init__()
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.takes: tuple[str, ...] = ()
        self.initializers: dict[str, str] = {}
        lone = private(graph)
        at_hand = {**(constants or {}), **{n: v for n, v in graph.initializers.items() if n in lone}}
        self._shared: dict[str, str] = {}
        modules: list[tuple[str, OnnxNode]] = []
        for node in graph.nodes:
            name = self._free_name(node)
            module = OnnxNode(node, graph.types, {n: at_hand[n] for n in node.reads if n in at_hand})
            self.add_module(name, module)
            modules.append((name, module))
        for name, value in graph.initializers.items():
            if name not in lone:
                self._shared[name] = hold(self, name, value, weight=_weighs(graph, name, value))
        self.initializers = {place: name for name, place in self._shared.items()}
        self._sources = {name: place_of(self, place) for name, place in self._shared.items()}
        self._steps = _planned(graph, modules)
        own = {*self._shared, *(s.name for s in graph.inputs), *(n for node in graph.nodes for n in node.outputs)}
        self.takes = tuple(n for n in graph.free if n not in own and n not in (constants or {}))

    def run(self, outer: Mapping[str, Value], *values: Value) -> tuple[Value, ...]:
        """The graph's outputs for its inputs, with ``outer`` as the values of the outer scope."""
        scope = {n: outer[n] for n in self.takes} | dict(zip((s.name for s in self.inputs), values, strict=True))
        self.execute(scope)
        return tuple(scope[s.name] for s in self.outputs)

    def execute(self, scope: dict[str, Value], *, keep: bool = False) -> None:
        """Runs all nodes on the values in ``scope`` and leaves the outputs there; with ``keep`` all that was made."""
        for name, (held, key) in self._sources.items():
            scope[name] = held[key]
        modules, nobody_looks = self._modules, not _watched()
        for step in self._steps:
            module: Any = modules[step.module]
            # Without a hook ``nn.Module.__call__`` does nothing but cost as much as a small operation.
            hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
            run = module.forward if nobody_looks and not hooked and not module._backward_pre_hooks else module
            made = run(*[scope[n] for n in step.reads])
            if len(step.makes) == 1:
                scope[step.makes[0]] = made
            else:
                scope.update(zip(step.makes, made, strict=False))
            if not keep:
                for name in step.frees:
                    scope.pop(name, None)

    def _free_name(self, node: Node) -> str:
        """A module name for a node: what it is called, which may hold anything but a dot, made unique."""
        base = node.label.replace(".", DOT)
        name, n = base, 2
        while hasattr(self, name) or name in _RESERVED:
            name, n = f"{base}_{n}", n + 1
        return name


def _watched() -> bool:
    """Whether somebody sees every call of a module: a hook on all modules, or torch's tracer."""
    return bool(
        torch._C._get_tracing_state()
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


_RESERVED = ("graph", "floating", "_marker", "_steps", "_shared", "_sources")
"""Attributes that are set after the child modules are."""


def _planned(graph: Graph, modules: Sequence[tuple[str, OnnxNode]]) -> list[Step]:
    needed = {s.name for s in graph.outputs}
    steps = []
    for (name, module), node in reversed(list(zip(modules, graph.nodes, strict=True))):
        unread = tuple(n for n in dict.fromkeys((*node.outputs, *module.reads)) if n and n not in needed)
        needed.update(module.reads)
        steps.append(Step(name, module.reads, node.outputs, unread))
    return steps[::-1]


def _weighs(graph: Graph, name: str, value: Value) -> bool:
    """Whether any node uses a constant as a weight."""
    return any(
        is_weight(value, node.op, place)
        for node in _all_nodes(graph)
        for place, read in enumerate(node.inputs)
        if read == name
    )


def _all_nodes(graph: Graph) -> Sequence[Node]:
    inner = [n for node in graph.nodes for g in node.graphs.values() for n in _all_nodes(g)]
    return [*graph.nodes, *inner]
