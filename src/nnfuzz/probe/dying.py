"""Where a gradient dies: the operation of the backward pass that lets the least of it through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnfuzz.probe.first_bad import call, eager, unoptimized
from nnfuzz.probe.modules import ModuleStack, Program, restored_buffers
from nnfuzz.probe.ops import facts
from nnfuzz.probe.sites import Locator, Site, node_op_name


@dataclass(frozen=True)
class Dying:
    """``op`` as the user wrote it, ``site`` where its line is known; ``passed``: the share of the gradient (sum of
    magnitudes) that came through."""

    op: str
    site: Site | None
    passed: float

    @property
    def key(self) -> str:
        """Stable name of the place."""
        return self.site.key if self.site is not None else self.op


def where_gradient_dies(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Tensor]
) -> Dying | None:
    """Runs ``fn`` once and differentiates the sum of its outputs by ``leaves`` (tensors among the arguments, or
    parameters); None when no operation loses anything."""
    program = Program.of(fn, (*args, *kwargs.values()))
    modules = ModuleStack(program)
    places = _Places(Locator(call.__code__, program.graphs, program.scripted), modules)
    with ExitStack() as stack:
        stack.enter_context(restored_buffers(program, only_training=True))
        stack.enter_context(eager())
        if program.scripted:
            stack.enter_context(unoptimized(program))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(modules.entered())
        stack.enter_context(places)
        outputs = call(fn, tuple(args), dict(kwargs))
    live = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad and t.is_floating_point()]
    if not live:
        return None
    total = torch.stack([t.sum().double() for t in live]).sum()
    passed: dict[Any, float] = {}
    hooks = [node.register_hook(_meter(node, passed)) for node in _nodes(total.grad_fn)]
    try:
        torch.autograd.grad(total, [t for t in leaves if t.requires_grad], allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    bends = {n: share for n, share in passed.items() if not _scales(n)} or passed
    if not bends:
        return None
    node = min(bends, key=lambda n: bends[n])
    if not passed[node] < 1:
        return None
    return Dying(node_op_name(node.name()) or node.name(), places.sites.get(node._sequence_nr()), passed[node])


class _Places(TorchDispatchMode):
    """Autograd's number of an operation → its site."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, locator: Locator, modules: ModuleStack):
        super().__init__()  # type: ignore[no-untyped-call]
        self._locator, self._modules = locator, modules
        self.sites: dict[int, Site] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place = self._locator.locate(sys._getframe().f_back)
        module = self._modules.current if place.module is None else place.module
        site = Site(facts(func).name, module, place.file, place.line, place.source, "forward", place.column, place.node)
        self.sites.setdefault(torch._C._autograd._get_sequence_nr() - 1, site)
        return func(*args, **(kwargs or {}))


def _nodes(root: Any) -> list[Any]:
    """Every node of an autograd graph but the leaves."""
    seen: set[Any] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node is None or node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        pending += [n for n, _ in node.next_functions]
    return list(seen)


def _scales(node: Any) -> bool:
    """A product or quotient with a constant: what it takes away (the branch of the other label) is meant to go."""
    return node_op_name(node.name()) in ("mul", "div") and sum(n is not None for n, _ in node.next_functions) == 1


def _meter(node: Any, passed: dict[Any, float]) -> Callable[[Any, Any], None]:
    def measure(after: Any, before: Any) -> None:
        incoming = sum(float(g.abs().double().sum()) for g in before if g is not None)
        outgoing = sum(float(g.abs().double().sum()) for g in after if g is not None)
        if incoming > 0 and any(g is not None for g in after):
            passed[node] = outgoing / incoming

    return measure
