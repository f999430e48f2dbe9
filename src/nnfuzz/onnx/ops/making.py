"""Operators that make tensors: constants, ranges, random numbers.

Random operators with the attribute ``seed`` give the same numbers every time; without it they draw from torch's global
generator, so that a run is repeatable under ``torch.manual_seed`` only. ONNX Runtime draws other numbers either way.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from nnfuzz.onnx.attributes import constant_of
from nnfuzz.onnx.dtypes import onnx_code
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.shapes import ints


@operator("Constant")
def constant(call: Call) -> Any:
    """A value that the file holds."""
    value = constant_of(call.attrs)
    if value is None:
        raise call.unsupported(f"a value given as {', '.join(call.attrs) or 'nothing'}")
    return value


@operator("ConstantOfShape")
def constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    """One value everywhere, 0 in float32 without ``value``."""
    value = call.attr("value")
    filled = torch.zeros((), dtype=call.dtype(1), device=shape.device) if value is None else value.reshape(())
    return filled.expand(ints(shape)).clone()


@operator("Range")
def arange(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """start, start + delta, … up to limit, which is left out."""
    dtype = start.dtype
    first, last, step = (t.item() for t in (start, limit, delta))
    if not dtype.is_floating_point:
        return torch.arange(first, first + max(0, -((first - last) // step)) * step, step, device=start.device).to(
            dtype
        )
    count = max(0, int(torch.ceil(torch.tensor((last - first) / step, dtype=torch.float64))))
    inner = dtype if dtype.itemsize > 2 or not call.attr("stash_type", 1) else torch.float32
    return (torch.arange(count, dtype=inner, device=start.device) * step + first).to(dtype)


RANDOM = ("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Bernoulli", "Multinomial")


def is_random(call: Call) -> bool:
    """Whether a node gives other numbers every time."""
    return call.op in RANDOM and call.attr("seed") is None


def generator(call: Call, device: torch.device | None = None) -> torch.Generator | None:
    """A generator for the node's seed (a float, whose bits are taken); None where it has no seed."""
    seed = call.attr("seed")
    if seed is None:
        return None
    bits = struct.unpack("<I", struct.pack("<f", seed))[0]
    return torch.Generator(device or "cpu").manual_seed(bits)


@operator("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random(call: Call, like: Tensor | None = None) -> Tensor:
    """Uniform numbers between ``low`` and ``high``, or normal ones of ``mean`` and ``scale``."""
    device = None if like is None else like.device
    shape = call.attrs["shape"] if like is None else like.shape
    code = call.attr("dtype", 1 if like is None else onnx_code(like.dtype))
    drawn = torch.rand if "Uniform" in call.op else torch.randn
    numbers: Tensor = drawn(list(shape), generator=generator(call, device), device=device)
    if "Uniform" in call.op:
        low, high = float(call.attr("low", 0.0)), float(call.attr("high", 1.0))
        return (numbers * (high - low) + low).to(call.dtype(code))
    return (numbers * float(call.attr("scale", 1.0)) + float(call.attr("mean", 0.0))).to(call.dtype(code))


@operator("Bernoulli")
def bernoulli(call: Call, p: Tensor) -> Tensor:
    """1 with the given probability, else 0."""
    code = call.attr("dtype", onnx_code(p.dtype))
    drawn = torch.bernoulli(p.detach(), generator=generator(call, p.device))
    return drawn.to(call.dtype(code))


@operator("Multinomial")
def multinomial(call: Call, logits: Tensor) -> Tensor:
    """``sample_size`` classes a row, with replacement, for unnormalised logarithms of probabilities."""
    probabilities = torch.softmax(logits.detach().float(), 1)
    count = call.attr("sample_size", 1)
    drawn = torch.multinomial(probabilities, count, replacement=True, generator=generator(call, logits.device))
    return drawn.to(call.dtype(call.attr("dtype", 6)))


@operator("Dropout")
def dropout(call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    """The input and a mask of ones; with the input ``training_mode`` true what is kept, scaled, and where it is."""
    if training is None or not bool(training):
        if len(call.outputs) == 1:
            return x
        return x, torch.ones_like(x, dtype=torch.bool)
    rate = 0.5 if ratio is None else float(ratio)
    drawn = torch.rand(x.shape, generator=generator(call, x.device), device=x.device)
    kept = drawn >= rate
    return torch.where(kept, x / (1 - rate), torch.zeros_like(x)), kept
