"""The values inside one side of a pair, for one candidate, in the order in which they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnfuzz.space import Batch
from nnfuzz.targets import TorchTarget
from nnfuzz.targets.precision import Cast, Kept, QuantizedLayer
from nnfuzz.targets.taps import reachable_modules


@dataclass(frozen=True)
class Limits:
    """What a quantized tensor can hold: ``low`` and ``high`` in real numbers, ``step`` between two levels."""

    low: float
    high: float
    step: float

    def beyond(self, t: Tensor) -> float:
        """Share of the values that are clipped to a limit."""
        if not t.numel():
            return 0.0
        wide = t.double()
        outside = (wide < self.low - self.step / 2) | (wide > self.high + self.step / 2)
        return float(outside.double().mean())


@dataclass(frozen=True)
class Value:
    """A result of a layer.

    Attributes:
        layer: what the user calls it. kind: its module's class, or its operator.
        tensor: the result, floating, on the CPU. given: what the layer was given first, where that is known.
        limits: of ``tensor`` where it was rounded to levels; with ``limits_input`` of ``given`` instead.
    """

    layer: str
    kind: str
    tensor: Tensor
    given: Tensor | None = None
    limits: Limits | None = None
    limits_input: bool = False


Values = dict[str, Value]
"""By the name by which values of two sides are matched: a tensor's name, a module's path."""


class Reader(Protocol):
    """Reads what is inside of one side. ``named`` says by what its values are called: "tensor", "module" or "op"."""

    named: str

    def read(self, inputs: Batch) -> Values:
        """``inputs``: one candidate as the model takes it."""


def readers_of(a: TorchTarget, b: TorchTarget, *, deployed: bool = False) -> tuple[Reader, Reader]:
    """For both sides of a pair. Beside a graph a module is read operation by operation, as finely as the graph is."""
    first, second = reader_of(a, deployed=deployed), reader_of(b, deployed=deployed)
    if {first.named, second.named} == {"tensor", "module"}:
        first = OperationReader(a) if first.named == "module" else first
        second = OperationReader(b) if second.named == "module" else second
    return first, second


def reader_of(side: TorchTarget, *, deployed: bool = False) -> Reader:
    """For an ONNX model its graph, else its modules, else (a script, a plain function) its operations.

    ``deployed``: of a graph the values that the optimised one still computes, and not all of one without optimisation.
    """
    from nnfuzz.targets.foreign import ForeignModel

    onnx = getattr(side, "onnx", None)
    if isinstance(onnx, ForeignModel):
        from nnfuzz.divergence.graph_values import GraphReader

        return GraphReader(side, deployed=deployed)
    modules = leaves(side.model)
    if modules and not any(isinstance(m, torch.jit.ScriptModule) for m in modules.values()):
        return ModuleReader(side, modules)
    return OperationReader(side)


class ModuleReader:
    """Outputs of leaf modules. One that runs several times has a value for each."""

    named = "module"

    def __init__(self, side: TorchTarget, modules: dict[str, nn.Module]):
        self.side, self.modules = side, modules

    def read(self, inputs: Batch) -> Values:
        found: Values = {}

        def tell(name: str, given: Tensor | None, out: Tensor) -> None:
            key, n = name, 2
            while key in found:
                key, n = f"{name}#{n}", n + 1
            module = self.modules[name]
            layer = name or type(module).__name__
            limits = _limits(module)
            found[key] = Value(layer, _kind(module), _kept(out), None if given is None else _kept(given), limits, True)

        with torch.no_grad(), _heard(self.modules, tell):
            self.side.call(inputs)
        return found


class OperationReader:
    """Results of all operations, by their name and how often it had run before; a leaf module lends them its own."""

    named = "op"

    def __init__(self, side: TorchTarget):
        self.side = side
        self.modules = {p: m for p, m in leaves(side.model).items() if not isinstance(m, torch.jit.ScriptModule)}

    def read(self, inputs: Batch) -> Values:
        recorder = _Recorder()
        with torch.no_grad(), ExitStack() as stack:
            for path, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(recorder.entering(path)).remove)
                stack.callback(module.register_forward_hook(recorder.left).remove)
            stack.enter_context(recorder)
            self.side.form.call(self.side.model, inputs)
        return recorder.found


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Values = {}
        self._counts: dict[str, int] = {}
        self._inside = ""

    def entering(self, path: str) -> Callable[..., None]:
        """A hook that says which leaf module the operations to come belong to."""

        def hook(*_: Any) -> None:
            self._inside = path

        return hook

    def left(self, *_: Any) -> None:
        self._inside = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.is_floating_point() and t.numel() > 1 and "empty" not in name:
                number = self._counts[name] = self._counts.get(name, 0) + 1
                key = f"{name}#{number}"
                self.found[key] = Value(self._inside or key, name, _kept(t))
                break
        return out


def leaves(model: Any) -> dict[str, nn.Module]:
    """Leaf modules by path; a quantised layer stands for the layer that it replaces, a cast model for its inner one."""
    found: dict[str, nn.Module] = {}
    roots = {"": model} if isinstance(model, nn.Module) else reachable_modules(model)
    for prefix, root in roots.items():
        inner = root.inner if isinstance(root, Cast) else root
        for name, module in inner.named_modules():
            path = ".".join(p for p in (prefix, name) if p)
            whole = not list(module.children()) or isinstance(module, _STANDING_IN)
            script = isinstance(inner, torch.jit.ScriptModule)  # which knows no paths, and holds no stand-ins
            if whole and (script or not any(isinstance(m, _STANDING_IN) for m in _above(inner, name))):
                found[path] = module
    return found


_STANDING_IN = (QuantizedLayer, Kept)


def _kind(module: nn.Module) -> str:
    if isinstance(module, Kept):
        module = module.inner
    return type(module.layer).__name__ if isinstance(module, QuantizedLayer) else type(module).__name__


def _limits(module: nn.Module) -> Limits | None:
    """Of the *input* of a simulated int8 layer, which rounds what it is given."""
    if not isinstance(module, QuantizedLayer):
        return None
    low, high = float(module.low), float(module.high)
    return Limits(low, high, max((high - low) / 255, 1e-12))


def _above(root: nn.Module, name: str) -> Iterator[nn.Module]:
    """Modules that hold the one of this name."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        yield root.get_submodule(".".join(parts[:i]))


def _kept(t: Tensor) -> Tensor:
    return t.detach().to("cpu", copy=True)


Tell = Callable[[str, Tensor | None, Tensor], None]


@contextmanager
def _heard(modules: dict[str, nn.Module], tell: Tell) -> Iterator[None]:
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(_hook(name, tell)).remove)
        yield


def _hook(name: str, tell: Tell) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, output: Any) -> None:
        first = _first(output)
        if first is not None:
            tell(name, _first(args), first)

    return hook


def _first(part: Any) -> Tensor | None:
    return next((t for t in tree_leaves(part) if isinstance(t, Tensor) and t.is_floating_point()), None)
