"""Two models side by side, layer by layer: where a difference that is small on the seed becomes large.

Only one side's outputs are kept, as they come, and one layer of the other at a time; each pair is reduced to two
numbers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nnfuzz.targets.precision import Cast, QuantizedLayer
from nnfuzz.targets.taps import reachable_modules

JUMP = 4.0
"""A layer jumps when its difference is this many times its usual one and this many times the layer's before it."""
NOISE = 64.0
"""Differences below this many units of eps are rounding."""


@dataclass(frozen=True)
class Layer:
    """A module's output on both sides. `here`: relative difference on the failing input; `usual`: on the seed."""

    name: str
    kind: str
    here: float
    usual: float

    @property
    def growth(self) -> float:
        return self.here / max(self.usual, 1e-12)


def compare_layers(
    run_a: Callable[[Any], Any], model_a: Any, run_b: Callable[[Any], Any], model_b: Any, failing: Any, seed: Any
) -> list[Layer]:
    """Relative differences of all leaf modules that both models have under the same name, in execution order.

    run_a, run_b: run a side on one input. failing, seed: such inputs.
    """
    names_a, names_b = _leaves(model_a), _leaves(model_b)
    common = [n for n in names_a if n in names_b]
    if not common:
        return []
    here = _differences(run_a, names_a, run_b, names_b, common, failing)
    usual = _differences(run_a, names_a, run_b, names_b, common, seed)
    return [Layer(n, type(names_a[n]).__name__, gap, usual.get(n, 0.0)) for n, gap in here.items()]


def first_jump(layers: list[Layer], eps: float) -> Layer | None:
    """The first layer whose difference is far above its usual one and above that of the layer before; else the one
    that has grown most, if it has grown at all."""
    before = 0.0
    for layer in layers:
        above = layer.here > NOISE * eps and layer.growth > JUMP
        if above and not layer.here <= JUMP * before:
            return layer
        before = max(before, layer.here)
    grown = [x for x in layers if x.growth > JUMP and x.here > NOISE * eps]
    return max(grown, key=lambda x: x.growth, default=None)


def table(layers: list[Layer], most: int = 24) -> list[str]:
    """Lines of text; the middle of a long network is left out."""
    width = max((len(x.name) for x in layers), default=5)
    shown: list[Layer | None] = list(layers)
    if len(layers) > most:
        shown = [*layers[: most // 2], None, *layers[-most // 2 :]]
    lines = [f"{'layer':<{width}}  here       on the seed"]
    for x in shown:
        lines.append("…" if x is None else f"{x.name:<{width}}  {x.here:<9.2e}  {x.usual:.2e}")
    return lines


def _leaves(model: Any) -> dict[str, nn.Module]:
    """Leaf modules by path; a quantised layer stands for the layer that it replaces, a cast model for its inner one."""
    found: dict[str, nn.Module] = {}
    roots = {"": model} if isinstance(model, nn.Module) else reachable_modules(model)
    for prefix, root in roots.items():
        inner = root.inner if isinstance(root, Cast) else root
        for name, module in inner.named_modules():
            path = ".".join(p for p in (prefix, name) if p)
            whole = not list(module.children()) or isinstance(module, QuantizedLayer)
            if whole and not any(isinstance(m, QuantizedLayer) for m in _above(inner, name)):
                found[path] = module
    return found


def _above(root: nn.Module, name: str) -> Iterator[nn.Module]:
    """Modules that hold the one of this name."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        yield root.get_submodule(".".join(parts[:i]))


def _differences(
    run_a: Callable[[Any], Any], a: dict[str, nn.Module], run_b: Callable[[Any], Any], b: dict[str, nn.Module],
    names: list[str], given: Any,
) -> dict[str, float]:  # fmt: skip
    kept: dict[str, Tensor] = {}
    found: dict[str, float] = {}

    def keep(name: str, out: Tensor) -> None:
        kept.setdefault(name, out.detach().to("cpu", copy=True))

    def measure(name: str, out: Tensor) -> None:
        if name in kept and name not in found:
            found[name] = relative(kept.pop(name), out.detach().cpu())

    with torch.no_grad():
        with _heard({n: a[n] for n in names}, keep):
            run_a(given)
        order = list(kept)
        with _heard({n: b[n] for n in names}, measure):
            run_b(given)
    return {n: found[n] for n in order if n in found}


@contextmanager
def _heard(modules: dict[str, nn.Module], tell: Callable[[str, Tensor], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(_hook(name, tell)).remove)
        yield


def _hook(name: str, tell: Callable[[str, Tensor], None]) -> Callable[..., None]:
    def hook(_: nn.Module, args: Any, output: Any) -> None:
        first = next((t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()), None)
        if first is not None:
            tell(name, first)

    return hook


def relative(x: Tensor, y: Tensor) -> float:
    """Largest difference over the largest value; infinite where one side is finite and the other not."""
    if x.shape != y.shape or not x.numel():
        return float("nan")
    a, b = x.double(), y.double()
    if bool((a.isfinite() != b.isfinite()).any()):
        return float("inf")
    gap = (a - b).abs().nan_to_num(0.0).max()
    return float(gap / a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-30))
