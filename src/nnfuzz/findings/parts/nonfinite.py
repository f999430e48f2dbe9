"""Checks for numbers that are not finite: in outputs, inside, in gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nnfuzz.findings.parts.facts import SYMPTOM, call
from nnfuzz.findings.parts.frame import show
from nnfuzz.findings.parts.loading import read
from nnfuzz.findings.parts.running import named, run


def shows_symptom(t: torch.Tensor, ordinary: torch.Tensor | None = None) -> bool:
    """Whether the symptom is there, and not (an infinity by design, such as a mask) also for the seed."""
    if not (t.is_floating_point() or t.is_complex()):
        return False
    bad = symptomatic(t)
    if SYMPTOM != "nan" and ordinary is not None and ordinary.shape == t.shape:
        bad = bad & ~symptomatic(ordinary)
    return bool(bad.any())


def symptomatic(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.isnan() if SYMPTOM == "nan" else t == float(SYMPTOM)


def fails_forward(model: Callable[..., Any]) -> bool:
    return unlike_seed(model, run(model, read("input.safetensors")))


def unlike_seed(model: Callable[..., Any], outputs: dict[str, torch.Tensor]) -> bool:
    """The symptom is in an output, and not (an infinity by design, such as a mask) also for the seed."""
    inputs, seed = read("input.safetensors"), read("seed.safetensors")
    on_seed = inputs.keys() == seed.keys() and all(torch.equal(inputs[n], seed[n]) for n in seed)
    ordinary = {} if on_seed else run(model, seed)  # a seed that fails itself shows nothing of what is by design
    show(outputs)
    return any(shows_symptom(t, ordinary.get(n)) for n, t in outputs.items())


def fails_inside(model: Callable[..., Any]) -> bool:
    """The outputs are well, but some operation's result is not, and the same operation's is for the seed."""
    with Inside() as ordinary:
        run(model, read("seed.safetensors"))
    with Inside() as inside:
        outputs = run(model, read("input.safetensors"))
    show(outputs)
    return unlike_ordinary(inside, ordinary)


def unlike_ordinary(inside: Inside, ordinary: Inside) -> bool:
    bad = [f"{op}{list(shape)}" for op, shape in inside.seen if (op, shape) not in ordinary.seen]
    print(f"{SYMPTOM} in the result of: {', '.join(bad) or 'nothing'}")
    return bool(bad)


class Inside(TorchDispatchMode):
    """Notes every operation whose result shows the symptom, of ``count`` candidates that run together for one."""

    def __init__(self, count: int = 1, row: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self.count, self.row = count, row

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for t in results if isinstance(results, tuple | list) else (results,):
            if "empty" not in name and isinstance(t, torch.Tensor) and shows_symptom(own := self.own(t)):
                self.seen.append((name, tuple(own.shape)))
        return results

    def own(self, t: torch.Tensor) -> torch.Tensor:
        """The candidate's part of what has one for each, the whole of anything else."""
        if self.count == 1 or not t.dim() or t.shape[0] % self.count or not t.shape[0]:
            return t
        return t.chunk(self.count)[self.row]


def fails_backward(model: Callable[..., Any]) -> bool:
    """The gradient of the sum of all outputs, with respect to the inputs and to the model's parameters."""
    inputs = {n: t.requires_grad_(t.is_floating_point()) for n, t in read("input.safetensors").items()}
    with torch.enable_grad():
        outputs = named(call(model, inputs))
        live = [t for t in outputs.values() if t.requires_grad]
        torch.stack([(torch.view_as_real(t) if t.is_complex() else t).sum().double() for t in live]).sum().backward()
    show(outputs)
    leaves = dict(inputs)
    if isinstance(model, torch.nn.Module):
        leaves |= dict(model.named_parameters())
    found = {n: t.grad for n, t in leaves.items() if t.grad is not None}
    bad = [n for n, g in found.items() if not g.isfinite().all()]
    print(f"gradients that are not finite: {', '.join(bad) or 'none'}")
    return bool(bad)
