"""Remedies as changes of a graph: one rule a remedy, under the names that ``nnfuzz.advice`` gives them.

A rule changes the graph in place around one node and says in words what it did, or gives "" where the pattern that it
needs is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import onnx
from nnfuzz.onnx.dtypes import TORCH
from onnx import helper, numpy_helper

HEADROOM = 4.0
"""exp's argument is kept this far below the logarithm of the largest number: sums of fifty still fit."""


@dataclass
class Surgeon:
    """A graph (the main one or a branch) under change.

    Attributes:
        graph: holds the node. code: ONNX element type in which the node computes. opset: of ONNX's own operators.
        taken: names that are in use anywhere in the model; new ones are added. eps: the remedy's number, if it has one.
    """

    graph: onnx.GraphProto
    code: int
    opset: int
    taken: set[str]
    eps: float = 0.0

    @property
    def dtype(self) -> torch.dtype:
        return TORCH[self.code]

    def maker(self, name: str, *ops: str) -> onnx.NodeProto | None:
        """The node of this graph that makes a value, if it is one of these operators."""
        found = next((n for n in self.graph.node if name and name in n.output), None)
        return found if found is not None and found.op_type in ops and not found.domain else None

    def constant(self, value: float) -> str:
        """A new scalar of the node's type."""
        name = self.free_name("nnfuzz_const")
        held = torch.tensor(value, dtype=torch.float64).to(self.dtype)
        if self.dtype == torch.bfloat16:
            tensor = helper.make_tensor(name, self.code, [], [float(held)])
        else:
            tensor = numpy_helper.from_array(held.numpy(), name)
        self.graph.initializer.append(tensor)
        return name

    def before(self, node: onnx.NodeProto, op: str, inputs: list[str], **attrs: Any) -> str:
        """A new node in front of one; gives the name of its result."""
        out = self.free_name(f"nnfuzz_{op.lower()}")
        self.graph.node.insert(self.place_of(node), helper.make_node(op, inputs, [out], name=f"{out}_node", **attrs))
        return out

    def bounded(self, node: onnx.NodeProto, op: str, value: str, number: float) -> str:
        """Max or Min of a value and a number, in front of a node; gives the name of its result."""
        out = self.free_name(f"nnfuzz_{op.lower()}")
        self.graph.node.insert(self.place_of(node), self.bound(op, value, number, out, f"{out}_node"))
        return out

    def bound(self, op: str, value: str, number: float, out: str, name: str) -> onnx.NodeProto:
        """The node for it; Max and Min of opset 7 and before do not broadcast, but Clip had its bounds as attributes
        then."""
        if self.opset >= 8 or self.dtype == torch.float64:  # an attribute is a float32
            return helper.make_node(op, [value, self.constant(number)], [out], name=name)
        limit: dict[str, Any] = {"min" if op == "Max" else "max": number}
        return helper.make_node("Clip", [value], [out], name=name, **limit)

    def replace(self, node: onnx.NodeProto, op: str, inputs: list[str], **attrs: Any) -> None:
        """Another node that makes the same value, in the same place."""
        new = helper.make_node(op, inputs, list(node.output), name=node.name, **attrs)
        node.CopyFrom(new)

    def prune(self) -> None:
        """Removes nodes whose results nobody reads any more."""
        while True:
            read = {o.name for o in self.graph.output} | {i for n in self.graph.node for i in n.input}
            read |= {name for n in self.graph.node for name in _read_inside(n)}
            dead = [n for n in self.graph.node if n.op_type in _PURE and not any(o in read for o in n.output)]
            if not dead:
                return
            for node in dead:
                self.graph.node.remove(node)

    def ints(self, node: onnx.NodeProto, name: str, place: int) -> list[int] | None:
        """A list of whole numbers that is an attribute, or (since some opset) a constant input."""
        for a in node.attribute:
            if a.name == name:
                return [int(v) for v in a.ints]
        if len(node.input) <= place or not node.input[place]:
            return None
        held = next((t for t in self.graph.initializer if t.name == node.input[place]), None)
        if held is None:
            made = self.maker(node.input[place], "Constant")
            held = next((a.t for a in made.attribute if a.name == "value"), None) if made is not None else None
        return None if held is None else [int(v) for v in numpy_helper.to_array(held).reshape(-1)]

    def is_number(self, name: str, value: float) -> bool:
        """Whether a value is a constant that holds this number throughout."""
        held = next((t for t in self.graph.initializer if t.name == name), None)
        if held is None:
            made = self.maker(name, "Constant")
            held = next((a.t for a in made.attribute if a.name == "value"), None) if made is not None else None
        if held is None:
            return False
        array = numpy_helper.to_array(held)
        return bool(array.size) and bool(np.all(array.astype(np.float64) == value))

    def place_of(self, node: onnx.NodeProto) -> int:
        return next(i for i, n in enumerate(self.graph.node) if n.output[:] == node.output[:])

    def free_name(self, base: str) -> str:
        count = 0
        while f"{base}_{count}" in self.taken:
            count += 1
        self.taken.add(f"{base}_{count}")
        return f"{base}_{count}"


_PURE = {"Softmax", "Sigmoid", "Exp", "ReduceSum", "Add", "Sub", "Neg", "Div", "Log", "Constant"}
Rule = Callable[[Surgeon, onnx.NodeProto], str]


def _read_inside(node: onnx.NodeProto) -> set[str]:
    """Names that the branches and bodies of a node read."""
    found: set[str] = set()
    for a in node.attribute:
        for graph in [a.g] if a.HasField("g") else list(a.graphs):
            found |= {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
            for n in graph.node:
                found |= _read_inside(n)
    return found


def _told(node: onnx.NodeProto) -> str:
    return f"{node.op_type}({', '.join(node.input)})"


def _limit(dtype: torch.dtype) -> float:
    return math.log(torch.finfo(dtype).max) - HEADROOM


# ---------------------------------------------------------------------------------------------------- guards


def _at_least(op: tuple[str, ...], place: int, low: Callable[[Surgeon], float]) -> Rule:
    """Max(operand, number) in front of a node."""

    def rule(s: Surgeon, node: onnx.NodeProto) -> str:
        if node.op_type not in op:
            return ""
        bound, said = low(s), node.input[place]
        node.input[place] = s.bounded(node, "Max", node.input[place], bound)
        return f"{said} kept at {bound:.3g} or more"

    return rule


def _between(ops: tuple[str, ...], ends: Callable[[Surgeon], tuple[float | None, float | None]]) -> Rule:
    """Max and Min in front of a node."""

    def rule(s: Surgeon, node: onnx.NodeProto) -> str:
        if node.op_type not in ops:
            return ""
        low, high = ends(s)
        value, said = node.input[0], []
        if low is not None:
            value = s.bounded(node, "Max", value, low)
            said.append(f"at least {low:.6g}")
        if high is not None:
            value = s.bounded(node, "Min", value, high)
            said.append(f"at most {high:.6g}")
        told, node.input[0] = node.input[0], value
        return f"{told} kept {' and '.join(said)}"

    return rule


def _integer_denominator(s: Surgeon, node: onnx.NodeProto) -> str:
    if node.op_type != "Div":
        return ""
    d = node.input[1]
    zero = s.before(node, "Equal", [d, s.constant(0)])
    node.input[1] = s.before(node, "Where", [zero, s.constant(1), d])
    return f"{d} taken for 1 where it is 0"


def _signed_denominator(s: Surgeon, node: onnx.NodeProto) -> str:
    place = {"Div": 1, "Reciprocal": 0}.get(node.op_type)
    if place is None:
        return ""
    d, eps = node.input[place], s.constant(s.eps)
    small = s.before(node, "Less", [s.before(node, "Abs", [d]), eps])
    negative = s.before(node, "Less", [d, s.constant(0.0)])
    bound = s.before(node, "Where", [negative, s.constant(-s.eps), eps])
    node.input[place] = s.before(node, "Where", [small, bound, d])
    return f"its denominator kept at least {s.eps:.3g} away from zero"


def _denominator(s: Surgeon, node: onnx.NodeProto) -> str:
    place = {"Div": 1, "Reciprocal": 0}.get(node.op_type)
    if place is None:
        return ""
    node.input[place] = s.bounded(node, "Max", node.input[place], s.eps)
    return f"its denominator kept at {s.eps:.3g} or more"


def _inside_root(s: Surgeon, node: onnx.NodeProto) -> str:
    if node.op_type != "Sqrt":
        return ""
    positive = s.bounded(node, "Max", node.input[0], 0.0)
    node.input[0] = s.before(node, "Add", [positive, s.constant(s.eps)])
    return f"its operand kept at 0 or more, and {s.eps:.3g} added inside the root"


def _variance(s: Surgeon, node: onnx.NodeProto) -> str:
    """Max(a − b, 0) where a difference is what the root is taken of, maybe after something was added."""
    if node.op_type != "Sqrt":
        return ""
    reader, place, low = node, 0, s.eps
    made = s.maker(node.input[0], "Add")
    if made is not None:
        place = next((i for i in (0, 1) if s.maker(made.input[i], "Sub") is not None), -1)
        reader, low = made, 0.0
    if place < 0 or s.maker(reader.input[place], "Sub") is None:
        return ""
    reader.input[place] = s.bounded(reader, "Max", reader.input[place], low)
    return f"the difference under the root kept at {low:.3g} or more"


def _saturated(s: Surgeon, node: onnx.NodeProto) -> str:
    out = node.output[0]
    raw = s.free_name("nnfuzz_raw")
    node.output[0] = raw
    most = float(torch.finfo(s.dtype).max)
    index = s.place_of(node) + 1
    low = s.free_name("nnfuzz_max")
    s.graph.node.insert(index, s.bound("Min", low, most, out, f"{out}_nnfuzz_min"))
    s.graph.node.insert(index, s.bound("Max", raw, -most, low, f"{low}_node"))
    return f"its result kept inside ±{most:.6g}"


# ----------------------------------------------------------------------------------------------- exact forms


def _log_of_probability(s: Surgeon, node: onnx.NodeProto) -> str:
    """Log(Softmax(x)) → LogSoftmax(x); Log(Sigmoid(x)) → −Softplus(−x)."""
    if node.op_type != "Log":
        return ""
    made = s.maker(node.input[0], "Softmax", "Sigmoid")
    if made is None:
        return ""
    before = f"{_told(node)} of {_told(made)}"
    if made.op_type == "Softmax":
        attrs = {a.name: helper.get_attribute_value(a) for a in made.attribute}
        s.replace(node, "LogSoftmax", [made.input[0]], **attrs)
        return f"{before} is LogSoftmax({made.input[0]})"
    flipped = s.before(node, "Softplus", [s.before(node, "Neg", [made.input[0]])])
    s.replace(node, "Neg", [flipped])
    return f"{before} is -Softplus(-{made.input[0]})"


def _log_of_sum(s: Surgeon, node: onnx.NodeProto) -> str:
    """Log(ReduceSum(Exp(x))) → ReduceLogSumExp(x). ``node`` is the Exp."""
    for log in s.graph.node:
        total = s.maker(log.input[0], "ReduceSum") if log.op_type == "Log" else None
        if total is not None and total.input[0] in node.output:
            attrs = {a.name: helper.get_attribute_value(a) for a in total.attribute}
            axes = s.ints(total, "axes", 1)
            inputs = [node.input[0]]
            if axes is not None and s.opset >= 18:
                name = s.free_name("nnfuzz_axes")
                s.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
                inputs.append(name)
            elif axes is not None:
                attrs["axes"] = axes
            if s.opset < 18:
                attrs.pop("noop_with_empty_axes", None)
            said = f"{_told(log)} is ReduceLogSumExp({node.input[0]})"
            s.replace(log, "ReduceLogSumExp", inputs, **attrs)
            return said
    return ""


def _minus_max(s: Surgeon, node: onnx.NodeProto) -> str:
    """Exp(x) / ReduceSum(Exp(x)) → the same with x − ReduceMax(x). ``node`` is an Exp."""
    if node.op_type != "Exp":
        return ""
    exps = [n for n in s.graph.node if n.op_type == "Exp" and n.input[0] == node.input[0]]
    outs = {o for n in exps for o in n.output}
    total = next((n for n in s.graph.node if n.op_type == "ReduceSum" and n.input[0] in outs), None)
    divided = total is not None and any(
        n.op_type == "Div" and n.input[0] in outs and n.input[1] in total.output for n in s.graph.node
    )
    readers = [n for n in s.graph.node if any(i in outs for i in n.input)]
    if total is None or not divided or any(n.op_type not in ("Div", "ReduceSum") for n in readers):
        return ""
    axes = s.ints(total, "axes", 1)
    if axes is None or any(a.name == "keepdims" and not a.i for a in total.attribute):
        return ""
    x = node.input[0]
    if s.opset >= 18:
        name = s.free_name("nnfuzz_axes")
        s.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
        highest = s.before(exps[0], "ReduceMax", [x, name], keepdims=1)
    else:
        highest = s.before(exps[0], "ReduceMax", [x], axes=axes, keepdims=1)
    shifted = s.before(exps[0], "Sub", [x, highest])
    for n in exps:
        n.input[0] = shifted
    return f"the maximum over axis {', '.join(map(str, axes))} subtracted from {x} before Exp"


def _one_plus(s: Surgeon, value: str, exp: onnx.NodeProto) -> bool:
    """Whether a value is 1 + exp."""
    made = s.maker(value, "Add")
    return made is not None and any(made.input[i] in exp.output and s.is_number(made.input[1 - i], 1.0) for i in (0, 1))


def _softplus(s: Surgeon, node: onnx.NodeProto) -> str:
    """Log(1 + Exp(x)) → Softplus(x). ``node`` is the Exp."""
    for log in s.graph.node:
        if log.op_type == "Log" and _one_plus(s, log.input[0], node):
            said = f"{_told(log)} is Softplus({node.input[0]})"
            s.replace(log, "Softplus", [node.input[0]])
            return said
    return ""


def _sigmoid(s: Surgeon, node: onnx.NodeProto) -> str:
    """1 / (1 + Exp(z)) → Sigmoid(−z); Exp(z) / (1 + Exp(z)) → Sigmoid(z). ``node`` is the Exp."""
    for n in s.graph.node:
        below = n.input[1] if n.op_type == "Div" else n.input[0] if n.op_type == "Reciprocal" else ""
        if not below or not _one_plus(s, below, node):
            continue
        if n.op_type == "Div" and n.input[0] in node.output:
            said = f"{_told(n)} is Sigmoid({node.input[0]})"
            s.replace(n, "Sigmoid", [node.input[0]])
            return said
        if n.op_type == "Reciprocal" or s.is_number(n.input[0], 1.0):
            inner = s.maker(node.input[0], "Neg")
            said = _told(n)
            z = inner.input[0] if inner is not None else s.before(n, "Neg", [node.input[0]])
            s.replace(n, "Sigmoid", [z])
            return f"{said} is Sigmoid({z})"
    return ""


def _tanh(s: Surgeon, node: onnx.NodeProto) -> str:
    """(Exp(x) − Exp(−x)) / (Exp(x) + Exp(−x)) → Tanh(x). ``node`` is one of the Exp."""
    for n in s.graph.node:
        above = s.maker(n.input[0], "Sub") if n.op_type == "Div" else None
        below = s.maker(n.input[1], "Add") if above is not None else None
        if above is None or below is None or set(above.input) != set(below.input):
            continue
        up, down = s.maker(above.input[0], "Exp"), s.maker(above.input[1], "Exp")
        inner = s.maker(down.input[0], "Neg") if down is not None else None
        if up is not None and inner is not None and inner.input[0] == up.input[0] and (node is up or node is down):
            said = f"{_told(n)} is Tanh({up.input[0]})"
            s.replace(n, "Tanh", [up.input[0]])
            return said
    return ""


def _root_of_exp(s: Surgeon, node: onnx.NodeProto) -> str:
    made = s.maker(node.input[0], "Exp") if node.op_type == "Sqrt" else None
    if made is None:
        return ""
    x = made.input[0]
    s.replace(node, "Exp", [s.before(node, "Mul", [x, s.constant(0.5)])])
    return f"Sqrt(Exp({x})) is Exp({x} / 2)"


RULES: dict[str, Rule] = {
    "log.softmax": _log_of_probability,
    "log.clamp": _at_least(("Log",), 0, lambda s: s.eps),
    "exp.softmax": _minus_max,
    "exp.logsumexp": _log_of_sum,
    "exp.softplus": _softplus,
    "exp.sigmoid": _sigmoid,
    "exp.tanh": _tanh,
    "exp.clamp": _between(("Exp",), lambda s: (None, _limit(s.dtype))),
    "sinh.clamp": _between(("Sinh", "Cosh"), lambda s: (-_limit(s.dtype), _limit(s.dtype))),
    "div.guard": _denominator,
    "div.signed": _signed_denominator,
    "div.integer": _integer_denominator,
    "sqrt.floor": _at_least(("Sqrt",), 0, lambda s: s.eps),
    "sqrt.inside": _inside_root,
    "sqrt.variance": _variance,
    "sqrt.exp": _root_of_exp,
    "pow.clamp": _at_least(("Pow",), 0, lambda s: s.eps),
    "bound.one": _between(("Acos", "Asin", "Atanh"), lambda s: (-1 + s.eps, 1 - s.eps)),
    "bound.acosh": _between(("Acosh",), lambda s: (1 + s.eps, None)),
    "saturate": _saturated,
}
"""Remedies that a graph can hold."""
