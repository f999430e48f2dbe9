"""Copies of a model in a lower precision: weights *and* activations, so that the copy is what a device would run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nnfuzz.errors import Unsupported, UsageError

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def derive(model: Callable[..., Any], as_: str, calibrate: Callable[[nn.Module], Any]) -> nn.Module:
    """The copy of ``model`` in precision ``as_`` ("fp16", "bf16", "fp64", "int8").

    ``calibrate(copy)`` runs the seeds through it, which sets the int8 ranges of activations.

    Raises:
        UsageError: unknown precision. Unsupported: not a module (a function's weights cannot be reached safely).
    """
    if as_ not in (*DTYPES, "int8"):
        raise UsageError(f"the precision {as_!r} is not known: choose one of {', '.join([*DTYPES, 'int8'])}")
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise Unsupported(
            f"--as {as_} derives a copy of an nn.Module, but the model is a {type(model).__name__}: "
            "give the module itself, or both models"
        )
    twin = copy.deepcopy(model)
    if as_ == "int8":
        return _int8(twin, calibrate)
    return Cast(twin.to(DTYPES[as_]), DTYPES[as_]).train(model.training)


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


def _int8(twin: nn.Module, calibrate: Callable[[nn.Module], Any]) -> nn.Module:
    layers = [(p, m) for p, m in twin.named_modules() if type(m) in _QUANTIZED]
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
