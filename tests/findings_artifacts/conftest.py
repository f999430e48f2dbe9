"""Toy models in a file of their own, and findings about them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from nnfuzz.callform import CallForm, Leaf
from nnfuzz.findings.finding import Finding, distance
from nnfuzz.findings.save import save_finding

TOYS = """
import torch
from torch import nn


class Log(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        assert not self.training
        return torch.log(self.drop(self.scale * x).sum(-1))


def make(): return Log()
made = Log().eval()
def log(x): return torch.log(x.sum(-1))
def pair(x, *, mask): return {"a": (x * mask).sum(-1), "b": torch.exp(x)}
def first(x): return torch.stack([x.sum(-1), 0 * x.sum(-1)], -1)
def second(x): return torch.stack([0 * x.sum(-1), x.sum(-1)], -1)
def halves(z): return second(z)
def positive(outputs, inputs): return outputs < 0
def unlike(a, b): return (a != b).any(-1)
def sums(x): return x.sum(-1)
def picky(x):
    if float(x.sum()) < 0: raise ArithmeticError("too low")
    return x
def hides(x): return torch.where(x < 0, torch.zeros(()), torch.sqrt(x))
def root(x): return x.sqrt().sum(-1)
def centred(x): return x - x.mean(0)
def needs_grad(x):
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        return torch.log(torch.autograd.grad((y ** 2).sum(), y)[0])
def tiny(x): return 1 / (x * 2e-38)
weight = torch.rand(4)
def drawn(x): return x * weight
def noisy(x): return x + torch.rand(4)
def linear(): return nn.Linear(4, 3)
class Moody(nn.Module):
    def forward(self, x): return torch.log(x) if self.training else x
"""


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toys") / "toys.py"
    path.write_text(TOYS)
    return path


MakeFinding = Callable[..., Finding]


@pytest.fixture
def finding(toys: Path) -> MakeFinding:
    """``finding("nan", model="log")``: a finding about a model in toys.py, made of one input x."""

    def make(
        symptom: str = "nan",
        x: Tensor | None = None,
        seed: Tensor | None = None,
        outputs: dict[str, Tensor] | None = None,
        details: dict[str, Any] | None = None,
        call: CallForm | None = None,
        **run: Any,
    ) -> Finding:
        x = -torch.ones(1, 4) if x is None else x
        inputs, start = {"x": x}, {"x": torch.ones_like(x) if seed is None else seed}
        specs = {k: f"{toys}:{v}" for k, v in run.items() if k in ("model", "model_b", "objective")}
        return Finding(
            id="F0001", objective="nonfinite", symptom=symptom, cause=f"{symptom} in output", inputs=inputs,
            outputs=outputs or {"output": torch.full((1,), torch.nan)}, seed=start, seed_index=2,
            lineage=[{"op": "noise", "id": 3}, {"op": "splice", "id": None}], distance=distance(inputs, start),
            inputs_tried=1234, seconds=1.5, details={**(details or {}), "run": {**run, **specs}},
            call=call or CallForm((Leaf("x"),), {}),
        )  # fmt: skip

    return make


@pytest.fixture
def repro(tmp_path: Path) -> Iterator[Callable[[Finding], ModuleType]]:
    """Saves a finding and imports its repro.py."""
    numbers, path_before = itertools.count(), list(sys.path)

    def load(finding: Finding) -> ModuleType:
        directory = save_finding(finding, tmp_path / f"finding{next(numbers)}")
        spec = importlib.util.spec_from_file_location("repro", directory / "repro.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.path[:] = path_before
    for name in [n for n in sys.modules if n.endswith("toys.py") or n == "toys"]:
        del sys.modules[name]
    torch.set_flush_denormal(False)
