"""A model run once, and what it gives, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.findings.parts.facts import call
from nnfuzz.findings.parts.loading import read, seed_everything


def run(model: Callable[..., Any], inputs: dict[str, torch.Tensor], how: Any = None) -> dict[str, torch.Tensor]:
    """The model's outputs by name, under the strictest gradient mode in which it takes its seed."""
    how = how or call
    modes: list[Any] = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    while True:
        seed_everything()
        try:
            with modes[0]():
                return named(how(model, inputs))
        except Exception:
            if len(modes) == 1 or runs(model, modes[0], how):
                raise
            del modes[0]


def runs(model: Callable[..., Any], mode: Any, how: Any) -> bool:
    try:
        with mode():
            how(model, read("seed.safetensors"))
    except Exception:
        return False
    return True


def named(value: Any) -> dict[str, torch.Tensor]:
    """Whatever a model returns, as tensors by name; plain numbers only where there is no tensor at all."""
    found = spread(value, "")
    tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
    return tensors or {n: torch.as_tensor(v) for n, v in found.items()}


def spread(value: Any, name: str) -> dict[str, Any]:
    numbers = bool | int | float | complex
    plain_list = type(value) in (list, tuple) and value and all(isinstance(v, numbers) for v in value)
    if isinstance(value, torch.Tensor | numbers) or plain_list or hasattr(value, "__array_interface__"):
        return {name or "output": value}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) and not hasattr(value, "items"):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    found: dict[str, Any] = {}
    for key, part in value.items() if hasattr(value, "items") else ():
        found |= spread(part, f"{name}.{key}" if name else str(key))
    return found


def told(t: torch.Tensor) -> str:
    t = t.detach().cpu()
    text = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    if t.numel() <= 12:
        return f"{text} " + ", ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in t.flatten().tolist())
    if t.is_complex() or t.dtype == torch.bool:
        return text
    wide = t.double()
    finite = wide[wide.isfinite()]
    text += f" {finite.min():.6g} … {finite.max():.6g}" if finite.numel() else " nothing finite"
    counts = {"nan": wide.isnan(), "+inf": wide == float("inf"), "-inf": wide == -float("inf")}
    return text + "".join(f", {int(c.sum())} × {n}" for n, c in counts.items() if c.any())
