"""Which inputs of a graph reach a value, by what they hold or by their shapes alone.

What no input reaches is the same for every one of them: no search can change it, and no input is to blame for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nnfuzz.onnx.coupling_rules import RAGGED_OPS, RANDOM_OPS
from nnfuzz.onnx.graph import Graph, Node

Names = frozenset[str]
NONE: Names = frozenset()

_SHAPED = {"ConstantOfShape", "Range"}
"""Operators whose result has a shape that they are told, and values that follow from nothing else."""


@dataclass(frozen=True)
class Reached:
    """Inputs that reach a value by what they hold; by their shapes or what they hold; those whose contents decide its
    shape; and the initializers that it is made of."""

    values: Names = NONE
    shapes: Names = NONE
    ragged: Names = NONE
    constants: tuple[str, ...] = ()

    def with_(self, others: Iterable[Reached]) -> Reached:
        """What comes of several."""
        all_of = [self, *others]
        return Reached(
            NONE.union(*(r.values for r in all_of)),
            NONE.union(*(r.shapes for r in all_of)),
            NONE.union(*(r.ragged for r in all_of)),
            tuple(dict.fromkeys(name for r in all_of for name in r.constants)),
        )


def reaching(graph: Graph) -> dict[str, Reached]:
    """For every value of a graph and of those inside it, by name."""
    found = {s.name: Reached(frozenset({s.name}), frozenset({s.name})) for s in graph.inputs}
    _walk(graph, found, Reached())
    return found


def read_by(node_reads: Iterable[str], reached: Mapping[str, Reached]) -> Reached:
    """What reaches a node that reads these values."""
    return Reached().with_(reached.get(name, Reached()) for name in node_reads if name)


def _walk(graph: Graph, found: dict[str, Reached], control: Reached) -> None:
    """``control``: what decides whether the graph runs at all."""
    for name in graph.initializers:
        found.setdefault(name, Reached(constants=(name,)))
    for node in graph.nodes:
        read = read_by(node.reads, found).with_([control])
        for inner in node.graphs.values():
            for spec in inner.inputs:
                found[spec.name] = read
            _walk(inner, found, read_by(node.inputs, found).with_([control]))
        made = _made(node, read)
        found.update((name, made) for name in node.outputs if name)


def _made(node: Node, read: Reached) -> Reached:
    if node.op in ("Shape", "Size"):
        return Reached(read.ragged, read.shapes, NONE, read.constants)
    if node.op in RANDOM_OPS:
        return Reached(NONE, read.shapes, read.ragged, ())
    if node.op in RAGGED_OPS or node.op in _SHAPED:
        return Reached(read.values, read.shapes, read.ragged | read.values, read.constants)
    return read


def told_outputs(
    graph: Graph, reached: Mapping[str, Reached], searched: Collection[str], shapes: bool
) -> dict[str, str]:
    """Why an output cannot change, for each of which that holds.

    Args:
        searched: inputs that are. shapes: whether they come in different shapes.
    """
    told = {}
    for spec in graph.outputs:
        found = reached.get(spec.name, Reached())
        if found.values & set(searched) or (shapes and found.shapes & set(searched)):
            continue
        if not found.shapes:
            told[spec.name] = "is a constant of the graph: no input reaches it"
        elif not found.values:
            told[spec.name] = "follows from the shapes of the inputs alone: nothing that they hold reaches it"
        else:
            told[spec.name] = f"is reached by {_listed(found.values)} alone: no input that is searched reaches it"
    return told


def told_node(kind: str, found: Reached, searched: Collection[str] | None) -> str:
    """Why no input is to blame for what a node gives; "" where one may be. ``kind``: the node, as text."""
    if found.values & (set(searched) if searched is not None else found.values):
        return ""
    if found.values:
        return (
            f"no input that is searched reaches {kind}, only {_listed(found.values)}: no input is to blame that the "
            "search could change"
        )
    made_of = f" ({_listed(found.constants, 'initializer')})" if found.constants else ""
    what = "shapes and constants" if found.shapes else f"constants of the graph{made_of}"
    return (
        f"{kind} computes with {what} alone and gives this whatever the input: no input is to blame, and what helps is "
        "to mend the constants"
    )


def _listed(names: Iterable[str], what: str = "input") -> str:
    some = sorted(names) if not isinstance(names, tuple) else list(names)
    shown = ", ".join(repr(n) for n in some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
    return f"the {what}{'s' * (len(some) != 1)} {shown}"
