"""What a run watched by ``--layers`` does not bind the search of a repaired program, which may have no such part."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnfuzz.cli import main

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return torch.log(self.head(x))


def make():
    return Net()


def seeds():
    return torch.rand(3, 4)
"""


def test_explain_of_a_run_with_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layered_net.py").write_text(NET)
    words = "nan layered_net.py:make --seeds layered_net.py:seeds --layers head --range=-1:1 --stop-on-first -n 500"
    assert main([*words.split(), "--out", "RUN"]) == 1
    capsys.readouterr()
    assert main(["explain", "RUN/findings/F0001"]) == 0
    assert "what helps" in capsys.readouterr().out
