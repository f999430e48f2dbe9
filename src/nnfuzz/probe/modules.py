"""Which nn.Modules a program uses, what they are called, which one is running, and putting their state back."""

import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from nnfuzz.probe.sites import owner

_DEPTH = 4  # functions calling functions that hold the model: deeper nesting has not been met


def find_modules(fn: Callable[..., Any], args: Any = ()) -> dict[str, nn.Module]:
    """Root modules reachable from `fn` (itself, bound object, closure, globals it names, attributes) and from `args`.

    Keys are the names under which they were found, "" for `fn` itself. A module inside another root is no root.
    """
    roots: dict[str, nn.Module] = {}
    seen: set[int] = set()
    _collect(fn, "", roots, seen, _DEPTH)
    for arg in args.values() if isinstance(args, Mapping) else args:
        _collect(arg, "arg", roots, seen, 2)
    if len(roots) < 2:
        return roots
    inner = {id(m) for root in roots.values() for m in root.modules() if m is not root}
    return {name: root for name, root in roots.items() if id(root) not in inner}


def _collect(thing: Any, name: str, roots: dict[str, nn.Module], seen: set[int], depth: int) -> None:
    if depth < 0 or id(thing) in seen or isinstance(thing, Tensor | str | int | float | type(None)):
        return
    seen.add(id(thing))
    below = functools.partial(_collect, roots=roots, seen=seen, depth=depth - 1)
    if isinstance(thing, nn.Module):
        roots[_free_name(name, roots)] = thing
    elif isinstance(thing, MethodType):
        below(thing.__self__, name)
        below(thing.__func__, name)
    elif isinstance(thing, functools.partial):
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            below(part, name)
    elif isinstance(thing, FunctionType):
        wrapped = getattr(thing, "__wrapped__", None)  # @torch.no_grad() and friends keep the real function here
        if wrapped is not None:
            below(wrapped, name)
        if owner(thing.__code__.co_filename) == "machinery":
            return
        for variable, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                below(cell.cell_contents, variable)
            except ValueError:  # an empty cell: the variable is not bound yet
                continue
        for variable in _names(thing.__code__):
            if variable in thing.__globals__:
                below(thing.__globals__[variable], variable)
        for default in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()):
            below(default, name)
    elif isinstance(thing, list | tuple) and len(thing) <= 64:
        for i, part in enumerate(thing):
            below(part, f"{name}{i}")
    elif isinstance(thing, dict) and len(thing) <= 64:
        for k, part in thing.items():
            below(part, str(k))
    elif hasattr(thing, "__dict__") and not isinstance(thing, type) and owner(_file_of(thing)) != "machinery":
        for attribute, part in list(vars(thing).items()):
            below(part, attribute)


def _file_of(thing: Any) -> str:
    return getattr(sys.modules.get(type(thing).__module__), "__file__", None) or "<frozen>"


def _names(code: CodeType) -> set[str]:
    nested = (_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*nested)


def _free_name(name: str, roots: Mapping[str, nn.Module]) -> str:
    candidate, n = name, 2
    while candidate in roots:
        candidate, n = f"{name}{n}", n + 1
    return candidate


@dataclass(frozen=True)
class Program:
    """The modules of a program, gone through once.

    paths:    id(module) → dotted path as in the user's `named_modules`; with several roots prefixed by the root's name.
    modules:  all of them. graphs: torch.fx modules by the file name of their generated code (see `sites.Locator`).
    scripted: whether TorchScript is among them.
    """

    paths: dict[int, str]
    modules: tuple[nn.Module, ...]
    graphs: dict[str, torch.fx.GraphModule]
    scripted: bool

    @classmethod
    def of(cls, fn: Callable[..., Any], args: Any = ()) -> "Program":
        """The modules reachable from a callable and its arguments."""
        roots = find_modules(fn, args)
        paths: dict[int, str] = {}
        modules: list[nn.Module] = []
        # Not named_modules: this runs at every observation, and that one is several times as slow.
        stack = [(name if len(roots) > 1 else "", root) for name, root in reversed(roots.items())]
        while stack:
            path, module = stack.pop()
            if id(module) in paths:
                continue
            paths[id(module)] = path
            modules.append(module)
            inner = [(f"{path}.{k}" if path else k, m) for k, m in module._modules.items() if m is not None]
            stack.extend(reversed(inner))
        graphs = {type(m).forward.__code__.co_filename: m for m in modules if isinstance(m, torch.fx.GraphModule)}
        scripted = any(isinstance(m, torch.jit.ScriptModule) for m in modules)
        return cls(paths, tuple(modules), graphs, scripted)

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, once per module that holds them."""
        for module in self.modules:
            yield from (p for p in module._parameters.values() if p is not None)


class ModuleStack:
    """Path of the module that is executing now, kept by global hooks while `entered()` is open.

    Global hooks, not per-module ones: they reach modules that nobody can find from outside, and they leave
    torch's fast paths for attention (which look at a module's own hooks) as they are.
    """

    def __init__(self, program: Program) -> None:
        self._paths = program.paths
        self._stack: list[str] = []
        self.current = ""
        self.values: dict[int, str] = {}
        """What a graph calls the values that its nodes were given so far, by the memory that they lie in."""

    def _enter(self, module: nn.Module, given: Any) -> None:
        reads = getattr(module, "reads", None)
        if isinstance(reads, tuple):
            for name, t in zip(reads, given, strict=False):
                if isinstance(t, Tensor) and t.layout is torch.strided:
                    self.values[int(t.untyped_storage()._cdata)] = name
        path = self._paths.get(id(module))
        if path is None:  # made on the fly: its class is all the name it has
            path = ".".join(p for p in (self.current, type(module).__name__) if p)
        self._stack.append(self.current)
        self.current = path

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self.current = self._stack.pop() if self._stack else ""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Install the hooks; they are gone afterwards whatever happens."""
        handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def restored_buffers(program: Program, *, only_training: bool = False) -> Iterator[None]:
    """Put the buffers of all modules (running statistics, spectral-norm vectors) back to what they were."""
    saved = [
        (module, name, buffer, buffer.detach().clone())
        for module in program.modules
        if module.training or not only_training
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, copy in saved:
                # Compared by value: native_batch_norm changes statistics without counting up their version.
                if not torch.equal(buffer, copy):
                    buffer.data.copy_(copy)
                if isinstance(module, torch.jit.ScriptModule):
                    continue  # its buffers live in the script's own memory: there is nothing to rebind
                if module._buffers.get(name) is not buffer:
                    module._buffers[name] = buffer


@contextmanager
def restored_gradients(program: Program) -> Iterator[None]:
    """Leave `.grad` of all parameters as it was, even where the program itself calls `backward()`."""
    saved = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in program.parameters()]
    try:
        yield
    finally:
        for parameter, grad, copy in saved:
            parameter.grad = grad
            if grad is not None and copy is not None:
                grad.detach().copy_(copy)


@contextmanager
def restored_random_state() -> Iterator[None]:
    """Leave torch's, Python's and NumPy's generators where they were found."""
    torch_state = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda._initialized else None
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
