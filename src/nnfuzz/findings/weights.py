"""Weights that are not finite: no operation is at fault then, and every input may fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.findings.finding import NO_BLAME
from nnfuzz.probe.modules import Program
from nnfuzz.probe.sites import DOT

MOST = 3
"""Weights that are named one by one."""


def bad_weights(model: Any, symptom: str) -> list[str]:
    """A sentence for each parameter, buffer or initializer of ``model`` that holds NaN: which one, how much of it, and
    for a graph which nodes read it. Where none does and ``symptom`` is an infinity, for each that holds an infinity: a
    NaN that an infinite number leads to is the fault of the operation that made it."""
    held = [(said, t) for said, t in _weights(model) if _readable(t)]
    infinite = [("an infinity", torch.isinf)] if symptom in ("+inf", "-inf") else []
    for word, test in (("NaN", torch.isnan), *infinite):
        told = [_told(said, t.detach(), test(t.detach()), word) for said, t in held if bool(test(t.detach()).any())]
        if told:
            rest = len(told) - MOST
            return [*told[:MOST], *([f"and so do {rest} more"] if rest > 0 else [])]
    return []


def infinite_weights(model: Any) -> list[str]:
    """A clause for each parameter, buffer or initializer that holds an infinity: which one, and how much of it."""
    held = [(said, t.detach()) for said, t in _weights(model) if _readable(t)]
    told = [_holds(said, t, t.isinf(), "an infinity") for said, t in held if bool(t.isinf().any())]
    rest = len(told) - MOST
    return [*told[:MOST], *([f"so do {rest} more"] if rest > 0 else [])]


def _readable(t: Tensor) -> bool:
    return t.layout is torch.strided and not t.is_meta and bool(t.numel())


def _told(said: str, t: Tensor, bad: Tensor, word: str) -> str:
    return f"{_holds(said, t, bad, word)}: {NO_BLAME} for what is computed from it"


def _holds(said: str, t: Tensor, bad: Tensor, word: str) -> str:
    at = f" at {bad.nonzero()[0].tolist()}" if t.dim() else ""
    how_many = f" ({int(bad.sum()):,} of {t.numel():,} values, the first{at})" if t.numel() > 1 else ""
    return f"{said} holds {word}{how_many}"


def _weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """What each floating tensor that the model holds is called, each once."""
    program = Program.of(model)
    readers = _readers(program.modules)
    seen: set[int] = set()
    for module in program.modules:
        path = program.paths[id(module)]
        kinds = (("parameter", module._parameters), ("buffer", module._buffers), ("attribute", vars(module)))
        for kind, held in kinds:
            for key, t in held.items():
                if not isinstance(t, Tensor) or id(t) in seen or not (t.is_floating_point() or t.is_complex()):
                    continue
                seen.add(id(t))
                yield _name(module, kind, path, key, readers), t


def _name(module: nn.Module, kind: str, path: str, key: str, readers: dict[str, list[str]]) -> str:
    """A module that stands for a node of a graph holds initializers under names without dots."""
    call: Any = getattr(module, "onnx", None)
    shared: dict[str, str] = getattr(module, "_shared", {})
    if call is not None or key in shared.values():
        names = call.inputs if call is not None else [n for n, place in shared.items() if place == key]
        name = next((n for n in names if n == key), next((n for n in names if n.replace(".", DOT) == key), names[0]))
        nodes = [call.label] if call is not None else readers.get(name, [])
        read = f", read by node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:MOST])}," if nodes else ""
        return f"the initializer '{name}'{read}"
    return f"the {kind} {path + '.' if path else ''}{key}"


def _readers(modules: tuple[nn.Module, ...]) -> dict[str, list[str]]:
    """Labels of the nodes of a graph by the name of what they read."""
    found: dict[str, list[str]] = {}
    for module in modules:
        call: Any = getattr(module, "onnx", None)
        for name in dict.fromkeys(getattr(call, "inputs", ())):
            found.setdefault(name, []).append(call.label)
    return found
