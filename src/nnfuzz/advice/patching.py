"""The program with repairs in it: a torch function mode that answers some calls itself.

    repaired = patched(model, [Repair(site, remedy)])
    repaired(x)

Nothing of the model is changed; the mode is on while the repaired program runs, in whichever gradient mode, and what it
puts in place of a call is ordinary differentiable code, so that gradients (and their gradients) are those of the fix.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nnfuzz.advice.calls import TorchCall, Trail, opened
from nnfuzz.probe.first_bad import call, eager
from nnfuzz.probe.modules import (
    ModuleStack,
    Program,
    restored_buffers,
    restored_gradients,
    restored_random_state,
)
from nnfuzz.probe.sites import Locator, Place, Site, op_name

if TYPE_CHECKING:
    from nnfuzz.advice.remedy import Remedy


@dataclass(eq=False)
class Repair:
    """A remedy at a site, with its number where it needs one.

    names:     torch functions that run the failing operation there.
    reachable: whether any call was seen there at all; none is where the operation runs inside TorchScript.
    fired:     how often it answered a call.
    watched:   whether ``moved`` is kept: how far at most it has moved an element of an operand.
    """

    site: Site
    remedy: Remedy
    eps: float | None = None
    names: frozenset[str] = frozenset()
    reachable: bool = True
    fired: int = 0
    watched: bool = False
    moved: float = 0.0

    def stands_at(self, place: Place, module: str) -> bool:
        """Whether a place is the site's: its line and column; the module only where no user code is known."""
        if self.site.file is None:
            return place.file is None and module == self.site.module
        return (place.file, place.line, place.column) == (self.site.file, self.site.line, self.site.column)


@dataclass
class Here:
    """What a remedy sees of the run: the trail of makers, and its own number."""

    trail: Trail
    site: Site
    eps: float = 0.0

    def hit(self, made: TorchCall) -> bool:
        """Whether a call is the failing one."""
        return self.site in made.sites

    def failing(self, t: Any, *names: str) -> TorchCall | None:
        """The failing call, if it made `t`; looking through reshapes."""
        made = self.trail.through(t, *names)
        return made if made is not None and self.hit(made) else None


def patched(fn: Callable[..., Any], repairs: Sequence[Repair]) -> Callable[..., Any]:
    """`fn` with the repairs in place; same signature. The repairs must know their calls (`find_calls`)."""

    @functools.wraps(fn, assigned=(), updated=())
    def program(*args: Any, **kwargs: Any) -> Any:
        return _under(_Rewriting, fn, args, kwargs, repairs)

    return program


def find_calls(fn: Callable[..., Any], args: Any, kwargs: Any, repairs: Sequence[Repair]) -> None:
    """Finds out, by watching one run, which torch functions at the sites run the failing operation."""
    unknown = [r for r in repairs if not r.names]
    if unknown:
        program = Program.of(fn, (*args, *kwargs.values()))
        copies, named = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, dict(kwargs)))
        with ExitStack() as stack:
            for kept in (restored_random_state(), restored_buffers(program), restored_gradients(program)):
                stack.enter_context(kept)
            stack.enter_context(torch.enable_grad())
            found_names = names_at(fn, copies, named, unknown)
        for repair, found in zip(unknown, found_names, strict=True):
            repair.reachable = bool(found)
            repair.names = found or frozenset({repair.site.op})


def names_at(fn: Callable[..., Any], args: Any, kwargs: Any, repairs: Sequence[Repair]) -> list[frozenset[str]]:
    """For each repair the plain names of the torch functions at its place within which its operation runs; all of the
    functions at the place when none does (the name of a gradient's operation may differ); none where no call is seen.
    """
    mode = _listed(fn, args, kwargs, repairs)
    found = []
    for i, repair in enumerate(repairs):
        seen: dict[str, set[str]] = mode.seen[i]
        exact = frozenset(name for name, ops in seen.items() if repair.site.op in ops or name == repair.site.op)
        found.append(exact or frozenset(seen))
    return found


def _under(kind: Any, fn: Callable[..., Any], args: Any, kwargs: Any, repairs: Sequence[Repair]) -> Any:
    _, stack = _entered(kind, fn, args, kwargs, repairs)
    with stack:
        return call(fn, args, kwargs)


def _listed(fn: Callable[..., Any], args: Any, kwargs: Any, repairs: Sequence[Repair]) -> _Listing:
    mode, stack = _entered(_Listing, fn, args, kwargs, repairs)
    # A program that raises because of its NaN has still made the calls up to there.
    with stack, suppress(Exception):
        call(fn, args, kwargs)
    return cast(_Listing, mode)


def _entered(
    kind: Any, fn: Callable[..., Any], args: Any, kwargs: Any, repairs: Sequence[Repair]
) -> tuple[Mode, ExitStack]:
    program = Program.of(fn, (*args, *kwargs.values()))
    modules = ModuleStack(program)
    mode: Mode = kind(Locator(call.__code__, program.graphs, False), modules, repairs)
    stack = ExitStack()
    stack.enter_context(eager())
    if any(r.site.file is None for r in repairs):
        stack.enter_context(modules.entered())
    stack.enter_context(mode)
    return mode, stack


class Mode(TorchFunctionMode):
    """Follows calls; a function written in Python is entered, everything else is a call of its own."""

    def __init__(self, locator: Locator, modules: ModuleStack, repairs: Sequence[Repair]) -> None:
        super().__init__()
        self._locator, self._modules, self.repairs = locator, modules, repairs
        self.trail = Trail()
        self._open: set[tuple[Any, ...]] = set()  # entered now: one that comes again asked in a way we did not blind

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__", "backward"):
            return func(*args, **kwargs)
        inner = opened(func)
        same = (func, *map(id, args))
        if inner is not None and same not in self._open:
            self._open.add(same)
            try:
                with self:
                    return inner(*args, **kwargs)
            finally:
                self._open.discard(same)
        made = TorchCall.of(func, args, kwargs, self._locator.locate(sys._getframe(1)))
        out = self.answer(made, args, kwargs)
        self.trail.note(out, made)
        return out

    def answer(self, made: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Rewriting(Mode):
    """Lets each repair answer in turn."""

    def answer(self, made: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = [r for r in self.repairs if made.name in r.names and r.stands_at(made.place, self._modules.current)]
        made.sites = frozenset(r.site for r in here)
        for repair in self.repairs:
            if repair in here or repair.remedy.around:
                made.watched = repair.watched
                out = repair.remedy.rewrite(made, Here(self.trail, repair.site, repair.eps or 0.0))
                if out is not None:
                    repair.fired += 1
                    repair.moved = max(repair.moved, made.moved)
                    return _written_back(made, args, out)
        return made.func(*args, **kwargs)


def _written_back(made: TorchCall, args: tuple[Any, ...], out: Any) -> Any:
    """What an in-place call would have left in its operand."""
    name = getattr(made.func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    return args[0].copy_(out) if in_place and args else out


class _Operations(TorchDispatchMode):
    """Tells which ATen operations run inside the current call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, names: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._names.add(op_name(func))
        return func(*args, **(kwargs or {}))


class _Listing(Mode):
    """Notes the calls at each repair's place with the operations inside them."""

    def __init__(self, locator: Locator, modules: ModuleStack, repairs: Sequence[Repair]) -> None:
        super().__init__(locator, modules, repairs)
        self.seen: list[dict[str, set[str]]] = [{} for _ in repairs]

    def answer(self, made: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = [i for i, r in enumerate(self.repairs) if r.stands_at(made.place, self._modules.current)]
        if not at:
            return made.func(*args, **kwargs)
        names: set[str] = set()
        try:
            with _Operations(names):
                return made.func(*args, **kwargs)
        finally:  # a call that raises may be the one to be repaired
            for i in at:
                self.seen[i].setdefault(made.name, set()).update(names)
