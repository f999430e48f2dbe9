"""A model that is no longer the one that a run or a finding speaks of is noticed, and only then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.fingerprint import changes, fingerprint, weights_digest
from nnfuzz.loading import objects
from nnfuzz.report.base import SilentReporter

NET = """\
import torch
from torch import nn
from fp_layers import Log

torch.manual_seed({seed})
net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1), Log()).eval()
seeds = torch.rand(6, 4)
"""
LAYERS = "import torch\nfrom torch import nn\nclass Log(nn.Module):\n    def forward(self, x): return x.log()\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "fp_net.py").write_text(NET.format(seed=0))
    (tmp_path / "fp_layers.py").write_text(LAYERS)
    return tmp_path


def forget() -> None:
    """As another process would find it: nothing imported."""
    objects._LOADED.clear()
    for name in ("fp_net", "fp_layers"):
        sys.modules.pop(name, None)


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    forget()
    main(words)
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if "has changed" in line)


def test_resume_repro_and_shrink_say_that_the_model_has_changed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = ["nan", "fp_net.py:net", "--seeds", "fp_net.py:seeds", "--range", "-300:300", "--plain", "--out", "RUN"]
    assert main([*nan, "-n", "200", "--phase", "forward"]) == 1
    assert told(["resume", "RUN", "-n", "210", "--plain"], capsys) == ""
    assert told(["repro", "RUN/findings/F0001"], capsys) == ""
    assert told(["explain", "RUN/findings/F0001"], capsys) == ""

    (project / "fp_layers.py").write_text(LAYERS + "# the same, said otherwise\n")
    text = told(["resume", "RUN", "-n", "220", "--plain"], capsys)
    assert "note: the model has changed since the run began (the file fp_layers.py): " in text
    assert "weights" not in text
    text = told(["explain", "RUN/findings/F0001"], capsys)
    assert text.startswith("note: the model has changed since this was found (the file fp_layers.py): ")

    (project / "fp_net.py").write_text(NET.format(seed=1))
    text = told(["repro", "RUN/findings/F0001"], capsys)
    assert "since this was found (the file fp_net.py, the file fp_layers.py, the weights of the model): " in text
    assert text.count("\n") == 0
    text = told(["repro", "RUN/findings/F0001", "--model", "fp_net.py:net"], capsys)
    assert "(the weights of the model)" in text  # given in another way: which file it came from says nothing


def test_a_finding_that_is_shrunk_speaks_of_the_model_of_then(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = ["nan", "fp_net.py:net", "--seeds", "fp_net.py:seeds", "--range", "-300:300", "--plain", "--out", "RUN"]
    assert main([*nan, "-n", "200", "--phase", "forward", "--max-shrink", "1"]) == 1
    (project / "fp_net.py").write_text(NET.format(seed=0) + "# more\n")
    assert "note: when it was shrunk, the model has changed" in told(["shrink", "RUN/findings/F0001"], capsys)
    assert told(["repro", "RUN/findings/F0001"], capsys) == ""


def test_a_file_that_is_gone(project: Path) -> None:
    module = objects.load_file(project / "fp_net.py")
    context = {"model": "fp_net.py:net", "cwd": str(project)}
    recorded = fingerprint(context, {"model": module.net})
    assert set(recorded["files"]) == {"fp_net.py", "fp_layers.py"}
    (project / "fp_layers.py").unlink()
    now = fingerprint(context, {"model": module.net})
    assert changes(recorded, now, cwd=str(project)) == ["the file fp_layers.py, which is gone"]
    assert changes(recorded, now, cwd=str(project), files=False) == []
    forget()


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def test_a_live_model_is_known_by_its_weights(tmp_path: Path) -> None:
    net, seeds = nn.Linear(3, 2).eval(), torch.rand(5, 3)
    nnfuzz.find_nans(net, seeds, max_inputs=64, out=tmp_path / "run")
    notes = Notes()
    nnfuzz.resume(tmp_path / "run", model=net, max_inputs=80, reporter=notes)
    assert notes.told == []
    with torch.no_grad():
        net.bias[1] += 1e-6
    nnfuzz.resume(tmp_path / "run", model=net, max_inputs=96, reporter=notes)
    assert [t.partition(":")[0] for t in notes.told] == [
        "the model has changed since the run began (the weights of the model)"
    ]


def test_both_models_of_a_diff_are_known(tmp_path: Path) -> None:
    a, b = (nn.Linear(3, 2).eval() for _ in range(2))
    b.load_state_dict(a.state_dict())
    nnfuzz.diff(a, b, torch.rand(5, 3), max_inputs=64, out=tmp_path / "run")
    with torch.no_grad():
        b.weight *= 1.5
    notes = Notes()
    nnfuzz.resume(tmp_path / "run", model=a, model_b=b, max_inputs=80, reporter=notes)
    assert "(the weights of model B)" in notes.told[0]


def function_over(table: Tensor) -> Any:
    rows = {"w": table}

    def model(x: Tensor) -> Tensor:
        return x @ rows["w"]

    return model


@given(st.sampled_from(["float32", "bfloat16", "float16", "int64", "bool", "complex64"]), st.integers(0, 5))
def test_every_bit_counts(dtype: str, at: int) -> None:
    table = torch.zeros(2, 3).to(getattr(torch, dtype))
    before = weights_digest(function_over(table))
    assert weights_digest(function_over(table.clone())) == before
    table.view(-1)[at] = 1
    assert weights_digest(function_over(table)) != before
    assert weights_digest(function_over(table.reshape(3, 2))) != weights_digest(function_over(table))


def test_weights_without_bits_have_a_digest_too() -> None:
    assert weights_digest(torch.sin) == ""
    meta = nn.Linear(2, 2, device="meta")
    assert weights_digest(meta) == weights_digest(nn.Linear(2, 2, device="meta")) != ""
    assert weights_digest(nn.LazyLinear(3)) == ""
    tied = nn.Linear(2, 2)
    assert weights_digest(nn.Sequential(tied, tied)) == weights_digest(nn.Sequential(tied, tied))


@pytest.mark.parametrize("recorded", [None, {}, [], {"files": 3, "weights": "x"}, {"files": {"a": 1}, "weights": {}}])
def test_a_run_without_a_fingerprint_says_nothing(recorded: Any) -> None:
    assert changes(recorded, {"files": {}, "weights": {"model": "abc"}}) == []
