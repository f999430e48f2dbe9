"""The copy of a model in another precision, made anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.findings.parts.facts import INT8_RANGES, PRECISION, call


def call_in_precision(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return call(model, {n: t.to(PRECISION) if t.is_floating_point() else t for n, t in inputs.items()})


def in_precision(model: Any) -> Any:
    return copy.deepcopy(model).to(PRECISION)  # model.half(), for float16


class Int8Layer(torch.nn.Module):
    """Weights: symmetric, one scale per output channel. Input activations: affine, 256 levels from low to high."""

    def __init__(self, layer: Any, low: float, high: float):
        super().__init__()
        self.layer = layer
        weight = layer.weight.detach()
        scale = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True).clamp(min=1e-12) / 127
        with torch.no_grad():
            layer.weight.copy_((weight / scale).round().clamp(-127, 127) * scale)
        self.low, self.high = torch.tensor(low), torch.tensor(high)

    def forward(self, x: torch.Tensor) -> Any:
        step = ((self.high - self.low) / 255).clamp(min=1e-12)
        zero = (-self.low / step).round()
        level = (x / step).round().add(zero).clamp(0, 255)
        return self.layer((level - zero) * step)


def in_int8(model: Any) -> Any:
    twin = copy.deepcopy(model)
    for path, (low, high) in INT8_RANGES.items():
        layer = Int8Layer(twin.get_submodule(path), low, high)
        if path == "":
            return layer
        parent, _, leaf = path.rpartition(".")
        setattr(twin.get_submodule(parent), leaf, layer)
    return twin
