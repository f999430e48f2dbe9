"""Activations of modules, caught by forward hooks: cheap, and the same for eager modules however they are called."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.errors import UsageError
from nnfuzz.targets.outputs import named_outputs


def reachable_modules(model: Callable[..., Any]) -> dict[str, nn.Module]:
    """Root modules that a callable uses, by name: itself, its ``__self__``, its closure and the globals it names."""
    if isinstance(model, nn.Module):
        return {"": model}
    found: dict[str, nn.Module] = {}
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module):
        found[""] = owner
    function = inspect.unwrap(getattr(model, "__func__", model))
    if hasattr(model, "func") and callable(model.func):  # functools.partial
        return found | reachable_modules(model.func)
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return found
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        if isinstance(value, nn.Module):
            found[name] = value
    return found


def named_modules(model: Callable[..., Any]) -> dict[str, nn.Module]:
    """Every module below the roots by dotted path; ScriptModules are left out below their root."""
    paths: dict[str, nn.Module] = {}
    for root, module in reachable_modules(model).items():
        for path, inner in module.named_modules():
            paths[".".join(p for p in (root, path) if p)] = inner
    return paths


class Taps:
    """Records the outputs (or inputs) of chosen modules during a run.

    ``plan`` maps a name to ``(module, "in" | "out")``. A module that runs several times keeps its last value.
    """

    def __init__(self, plan: dict[str, tuple[nn.Module, str]]):
        self.plan = plan
        self.caught: dict[str, Tensor] = {}

    @contextmanager
    def attached(self) -> Iterator[dict[str, Tensor]]:
        """Hooks are on while the context is open, and always off after it."""
        self.caught = {}
        handles = []
        try:
            for name, (module, side) in self.plan.items():
                hook = self._input_hook(name) if side == "in" else self._output_hook(name)
                handles.append(
                    module.register_forward_pre_hook(hook, with_kwargs=True)
                    if side == "in"
                    else module.register_forward_hook(hook)
                )
            yield self.caught
        finally:
            for handle in handles:
                handle.remove()

    def _input_hook(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Tensor):
                    self.caught[name] = value
                    return

        return hook

    def _output_hook(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            for value in named_outputs(output).values():
                self.caught[name] = value
                return

        return hook


def last_hidden(model: Callable[..., Any], run: Callable[[], Any]) -> dict[str, tuple[nn.Module, str]]:
    """The plan that catches the last hidden activation: the input of the parametric leaf that runs last."""
    order: list[str] = []
    leaves = {
        p: m
        for p, m in named_modules(model).items()
        if not any(True for _ in m.children()) and any(True for _ in m.parameters(recurse=False))
    }
    if not leaves:
        return {}
    handles = []
    try:
        for path, module in leaves.items():
            handles.append(module.register_forward_pre_hook(lambda *_, p=path: order.append(p)))
    except RuntimeError:  # scripted modules refuse hooks
        for handle in handles:
            handle.remove()
        return {}
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return {f"{order[-1]}:in": (leaves[order[-1]], "in")} if order else {}


def by_pattern(model: Callable[..., Any], patterns: Sequence[str]) -> dict[str, tuple[nn.Module, str]]:
    """Outputs of the modules whose paths match any shell pattern (``layer4.*``)."""
    modules = {p: m for p, m in named_modules(model).items() if p}
    plan = {p: (m, "out") for p, m in modules.items() if any(fnmatch.fnmatchcase(p, q) for q in patterns)}
    if not plan:
        some = ", ".join(list(modules)[:8]) or "none"
        raise UsageError(f"no module matches --layers {', '.join(patterns)}: the modules are {some}")
    return plan


def all_leaves(model: Callable[..., Any]) -> dict[str, tuple[nn.Module, str]]:
    """Outputs of every leaf module, for ``--watch layers``."""
    return {p: (m, "out") for p, m in named_modules(model).items() if p and not any(True for _ in m.children())}
