"""TorchScript modules with buffers, reached through a function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nnfuzz.probe import first_bad, observe


class Magnitude(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", torch.eye(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(torch.pow(x @ self.basis, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_with_buffers_behind_a_function() -> None:
    scripted = torch.jit.script(Magnitude())
    for _ in range(3):  # the executor of scripts would otherwise join operations from the second run on
        scripted(torch.ones(2, 3, requires_grad=True)).sum().backward()
    x = torch.ones(2, 3, requires_grad=True)
    nearest = observe(lambda x: scripted(x), (x,), rows=2).nearest()
    assert any(r.site.phase == "backward" and r.distance.requires_grad for r in nearest.values())
    bad = first_bad(lambda x: scripted(x), (torch.zeros(2, 3),), backward=True)
    assert bad is not None
    assert bad.site.op == "sqrt"
    assert bad.site.phase == "backward"
