"""Whether the rows of a batch depend on one another, as far as the graph itself shows it.

Running seeds alone and together shows a dependence that the seeds happen to have: a branch that all of them take alike
shows none. So every value is followed from the inputs on: along which axis it has its rows, and which node joins them.
What cannot be followed is no claim: then only running tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.attributes import Value
from nnfuzz.onnx.coupling_rules import FIXED, OPEN, Joined, Known, Rows, State, after, joined
from nnfuzz.onnx.graph import Graph, Node
from nnfuzz.onnx.naming import told
from nnfuzz.onnx.program import OnnxProgram

TURNS = 8
"""Walks through the body of a loop until what is known of its state stays: each can only become less."""


def coupling(program: OnnxProgram, inputs: Mapping[str, Tensor], axes: Mapping[str, int | None], count: int) -> str:
    """Which node joins the rows of a batch so that an output shows it, in one sentence; "" where none is seen.

    Args:
        inputs: one call's, of ``count`` rows, two at least. axes: where each input has its rows; None: one value for
            all of them.
    """
    states = states_of(program, inputs, axes, count)
    found = (states.get(spec.name) for spec in program.graph.outputs)
    return next((str(state) for state in found if isinstance(state, Joined)), "")


def states_of(
    program: OnnxProgram, inputs: Mapping[str, Tensor], axes: Mapping[str, int | None], count: int
) -> dict[str, State]:
    """What is known of each value of the main graph; nothing where the interpreter does not run. Arguments as above."""
    try:
        with torch.inference_mode():
            values = program.run_all(inputs)
    except Exception:
        return {}
    graph = program.graph
    known: dict[str, Value] = {**graph.initializers, **inputs, **values}
    rows: dict[str, State] = {}
    for name, t in inputs.items():
        axis = axes.get(name)
        rows[name] = FIXED if axis is None or not isinstance(t, Tensor) or t.dim() <= axis else Rows(axis)
    return _walked(graph, rows, known, count)


def _walked(graph: Graph, given: Mapping[str, State], known: Mapping[str, Value], count: int) -> dict[str, State]:
    """What is known of every value of a graph. ``known``: values of one run, those of bodies excepted."""
    states: dict[str, State] = {**given, **{n: FIXED for n in graph.initializers if n not in given}}
    for node in graph.nodes:
        made = _made(node, states, known, count)
        states |= {name: state for name, state in zip(node.outputs, made, strict=False) if name}
    return states


def _made(node: Node, states: Mapping[str, State], known: Mapping[str, Value], count: int) -> list[State]:
    if node.op == "If" and not node.domain:
        return _branched(node, states, known, count)
    if node.op == "Loop" and not node.domain:
        return _looped(node, states, known, count)
    read = [states.get(n, FIXED) if n else FIXED for n in node.inputs]
    if node.graphs:  # Scan, SequenceMap
        everything = [states.get(n, FIXED) for n in node.reads]
        return [_unfollowed(everything)] * len(node.outputs)
    shapes = [_shape(known.get(n)) for n in node.inputs]
    makes = [_shape(known.get(n)) for n in node.outputs]
    held = {n: known[n] for n, s in zip(node.inputs, read, strict=True) if n and s is FIXED and n in known}
    return after(Known(node, read, shapes, makes, held, count))


def _branched(node: Node, states: Mapping[str, State], known: Mapping[str, Value], count: int) -> list[State]:
    """One branch for all rows: whatever the condition knows of them joins them."""
    decided = _decided(node, states.get(node.inputs[0], FIXED))
    if decided is not None:
        return [decided] * len(node.outputs)
    ends = []
    for graph in node.graphs.values():
        after_branch = _walked(graph, states, {**known, **graph.initializers}, count)
        ends.append([after_branch.get(s.name, FIXED) for s in graph.outputs])
    return [joined(list(parts)) for parts in zip(*ends, strict=False)]


def _looped(node: Node, states: Mapping[str, State], known: Mapping[str, Value], count: int) -> list[State]:
    for name in node.inputs[:2]:  # how often, and whether at all
        if name and (decided := _decided(node, states.get(name, FIXED))) is not None:
            return [decided] * len(node.outputs)
    (body,) = node.graphs.values()
    carried = [states.get(n, FIXED) if n else FIXED for n in node.inputs[2:]]
    ends: list[State] = []
    for _ in range(TURNS):
        given = {**states, **dict.fromkeys((s.name for s in body.inputs[:2]), FIXED)}
        given |= dict(zip((s.name for s in body.inputs[2:]), carried, strict=False))
        here = _walked(body, given, {**known, **body.initializers}, count)
        ends = [here.get(s.name, FIXED) for s in body.outputs]
        if ends and (decided := _decided(node, ends[0])) is not None:
            return [decided] * len(node.outputs)
        before, carried = carried, [joined([a, b]) for a, b in zip(carried, ends[1:], strict=False)]
        if carried == before:
            break
    else:
        carried = [s if isinstance(s, Joined) else OPEN for s in carried]
    stacked = [Rows(s.axis + 1) if isinstance(s, Rows) else s for s in ends[1 + len(carried) :]]
    return [*carried, *stacked]


def _decided(node: Node, state: State) -> Joined | None:
    """What a control-flow node makes of a condition or a number of turns that depends on the rows."""
    if state is FIXED:
        return None
    who = told(node.label, node.op)
    if isinstance(state, Joined):
        return state if state.decides else Joined(state.said, f", and {who} decides by that for all of them")
    return Joined(f"{who} decides for all rows of a batch by what they hold", " at once")


def _unfollowed(states: list[State]) -> State:
    return next((s for s in states if isinstance(s, Joined)), OPEN if any(s is not FIXED for s in states) else FIXED)


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
