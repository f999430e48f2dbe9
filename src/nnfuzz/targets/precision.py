"""Copies of a model in a lower precision: weights *and* activations, so that the copy is what a device would run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.targets.copies import Block

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def derive(
    model: Callable[..., Any], as_: str, calibrate: Callable[[nn.Module], Any], keep: Sequence[str] = ()
) -> nn.Module:
    """The copy of ``model`` in precision ``as_`` ("fp16", "bf16", "fp64", "int8").

    ``calibrate(copy)`` runs the seeds through it, which sets the int8 ranges of activations. ``keep``: paths of modules
    that stay in the precision of the original.

    Raises:
        UsageError: unknown precision. Unsupported: not a module (a function's weights cannot be reached safely).
    """
    if as_.partition(":")[0] in ("int8-static", "int8-dynamic"):
        raise Unsupported(
            f"--as {as_} makes copies of ONNX models, but the model is a {type(model).__name__}: give int8, fp16 or "
            "bf16, or export it to ONNX first"
        )
    if as_ not in (*DTYPES, "int8"):
        raise UsageError(
            f"the precision {as_!r} is not known: choose one of {', '.join([*DTYPES, 'int8'])} (of an ONNX model: "
            "int8-dynamic, int8-static or fp16)"
        )
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise Unsupported(
            f"--as {as_} cannot derive a copy of TorchScript, whose dtypes are compiled in: give the nn.Module that it "
            "was made of, or both models"
        )
    if not isinstance(model, nn.Module):
        raise Unsupported(
            f"--as {as_} derives a copy of an nn.Module, but the model is a {type(model).__name__}: "
            "give the module itself, or both models"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # copying an exported program, torch warns of its own internals
        twin = copy.deepcopy(model)
    if as_ == "int8":
        return _int8(twin, calibrate, keep)
    twin = twin.to(DTYPES[as_])
    for path in keep:
        parent, _, leaf = path.rpartition(".")
        kept = Kept(copy.deepcopy(model.get_submodule(path)), DTYPES[as_])
        if path == "":
            return kept.train(model.training)
        setattr(twin.get_submodule(parent), leaf, kept)
    return Cast(twin, DTYPES[as_]).train(model.training)


class TorchCopies:
    """The copies of one module (see ``targets.copies.Copies``)."""

    stored = False
    quick = False

    def __init__(self, model: Callable[..., Any], way: str, calibrate: Callable[[nn.Module], Any]):
        self.original, self.way, self.calibrate = model, way, calibrate
        self.notes: list[str] = []

    def layers(self) -> dict[str, str]:
        assert isinstance(self.original, nn.Module)
        if self.way == "int8":
            return {p: type(m).__name__ for p, m in self.original.named_modules() if type(m) in _QUANTIZED}
        return {p: type(m).__name__ for p, m in self.original.named_modules() if not list(m.children())}

    def blocks(self) -> dict[str, Block]:
        return {name: Block(kind, (name,)) for name, kind in self.layers().items()}

    def model(self, keep: Sequence[str] = ()) -> nn.Module:
        return derive(self.original, self.way, self.calibrate, keep)

    sketch = model

    def save(self, path: Path) -> None:
        raise NotImplementedError("copies of modules are made again when they are needed")

    def load(self, path: Path) -> nn.Module:
        raise NotImplementedError("copies of modules are made again when they are needed")


class Cast(nn.Module):
    """Runs a module of another floating dtype on the caller's inputs; outputs stay in that dtype."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self._cast, (args, kwargs))
        return self.inner(*args, **kwargs)

    def _cast(self, t: Tensor) -> Tensor:
        return t.to(self.dtype) if t.is_floating_point() else t


class Kept(nn.Module):
    """A layer of the original within a copy of another floating dtype."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.inner, self.dtype = inner, dtype
        floats = [p.dtype for p in inner.parameters() if p.is_floating_point()]
        self.own = floats[0] if floats else torch.float32

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, lambda t: self._to(t, self.own), (args, kwargs))
        return pytree.tree_map_only(Tensor, lambda t: self._to(t, self.dtype), self.inner(*args, **kwargs))

    @staticmethod
    def _to(t: Tensor, dtype: torch.dtype) -> Tensor:
        return t.to(dtype) if t.is_floating_point() else t


class QuantizedLayer(nn.Module):
    """A linear or convolution layer in simulated int8.

    Weights: symmetric, one scale per output channel. Input activations: affine, one scale and zero point, from the
    least and greatest value seen in calibration (the scheme of Jacob et al., CVPR 2018, arXiv 1712.05877). The sum
    is exact in float32 for the usual sizes, as the int32 accumulator of a device is.
    """

    low: Tensor
    high: Tensor

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        weight: Tensor = layer.weight.detach()  # type: ignore[operator]
        reduce = tuple(d for d in range(weight.dim()) if d != 0)
        scale = weight.abs().amax(reduce, keepdim=True).clamp(min=1e-12) / 127
        with torch.no_grad():
            weight.copy_((weight / scale).round().clamp(-127, 127) * scale)
        self.calibrating = True
        self.register_buffer("low", torch.zeros((), device=weight.device))
        self.register_buffer("high", torch.zeros((), device=weight.device))

    def forward(self, x: Tensor) -> Tensor:
        if self.calibrating:
            self.low, self.high = torch.minimum(self.low, x.min()), torch.maximum(self.high, x.max())
            return self.layer(x)  # type: ignore[no-any-return]
        step = ((self.high - self.low) / 255).clamp(min=1e-12)
        zero = (-self.low / step).round()
        level = (x / step).round().add(zero).clamp(0, 255)
        return self.layer((level - zero) * step)  # type: ignore[no-any-return]


_QUANTIZED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _int8(twin: nn.Module, calibrate: Callable[[nn.Module], Any], keep: Sequence[str]) -> nn.Module:
    layers = [(p, m) for p, m in twin.named_modules() if type(m) in _QUANTIZED and p not in keep]
    if not layers and keep:
        return twin
    if not layers:
        raise Unsupported("--as int8 quantizes Linear and Conv layers, but the model has none: give both models")
    if len(layers) == 1 and layers[0][0] == "":
        twin = QuantizedLayer(twin)
        quantized = [twin]
    else:
        quantized = []
        for path, layer in layers:
            parent, _, leaf = path.rpartition(".")
            swapped = QuantizedLayer(layer)
            setattr(twin.get_submodule(parent), leaf, swapped)
            quantized.append(swapped)
    with torch.no_grad():
        calibrate(twin)
    for layer in quantized:
        layer.calibrating = False
    return twin
