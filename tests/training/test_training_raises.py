"""A loss that raises on a legal batch is a finding; one that counts on the size of a batch is searched all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import INPUTS, linear, log_softmax, log_softmax_by_hand, rows, sgd, write_program
from torch import Tensor

from nnfuzz.cli import main
from nnfuzz.training import TrainingRun, find_nans_in_training
from nnfuzz.training.arm import Arm
from nnfuzz.training.guarded import ProgramFailed
from nnfuzz.training.lens import Lens
from nnfuzz.training.portfolio import Portfolio
from nnfuzz.training.program import make_program
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk

WHITENING = """
import torch
from torch import nn

INPUTS = {"x": dict(low=-3, high=3)}

def build(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)

def loss(model, batch):
    z = model(batch["x"])
    z = z - z.mean(0)
    c = z.T @ z / (len(z) - 1)
    return -2 * torch.log(torch.linalg.cholesky(c).diagonal()).sum() + c.diagonal().sum()

def batches(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        yield dict(x=torch.randn(16, 4, generator=g).clamp(-3, 3))

def optimizer(model):
    return torch.optim.SGD(model.parameters(), 0.01)
"""


def searched(loss: Any, steps: int = 600, **more: Any) -> TrainingRun:
    return find_nans_in_training(linear, loss, rows, optimizer=sgd, inputs=INPUTS, max_steps=steps, **more)


def test_what_raises_is_found_repeated_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, place = write_program(tmp_path, WHITENING), tmp_path / "run"
    assert main(["train", str(program), "--max-steps", "300", "--out", str(place)]) == 1
    assert f"T0001 the loss raises at cholesky ({program}:15), at once" in capsys.readouterr().out
    script = place / "findings" / "T0001" / "repro.py"
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.splitlines() == ["step 0, exception forward", "reproduced"]
    assert "positive-definite" in ran.stderr
    assert main(["repro", str(place)]) == 1
    assert "seen now: the loss raises at step 0" in capsys.readouterr().out
    assert main(["explain", str(place)]) == 0
    told = capsys.readouterr().out
    assert "first bad operation: cholesky at program.py:15, raises" in told
    assert "[matrix.ridge]" in told
    assert main(["show", str(place)]) == 0
    assert "_LinAlgError" in capsys.readouterr().out


def test_what_raises_because_of_an_operation_is_told_by_it() -> None:
    def checked(model: Any, batch: dict[str, Tensor]) -> Tensor:
        scale = model(batch["x"]).exp()
        if not bool(scale.isfinite().all()):
            raise ValueError("the scale must be finite")
        return -torch.log1p(scale).mean()

    [finding] = searched(checked).findings
    assert finding.symptom == "exception"
    assert finding.cause.startswith("raises (ValueError: the scale must be finite (test_training_raises.py:")
    assert finding.site is not None
    assert finding.site.op == "exp"


def test_an_exception_in_the_gradient() -> None:
    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            assert x.abs().max() < 40, "too large"
            return g

    [finding] = searched(lambda m, b: log_softmax(lambda x: Picky.apply(m(x)), b)).findings  # type: ignore[arg-type, return-value]
    assert (finding.phase, finding.symptom) == ("backward", "exception")
    assert "the gradient raises" in finding.headline()
    assert "too large" in finding.cause


def test_rows_that_raise_in_a_look_are_tried_as_a_batch() -> None:
    """Only gradient steps on the inputs lead below this sum, and they are made on a few rows that look."""

    def bounded(model: Any, batch: dict[str, Tensor]) -> Tensor:
        assert (model(batch["x"]).detach()[:, 0] < 30).all(), "out of bounds"
        return (torch.log(model(batch["x"])[:, 0].abs() + 1e-3)).square().mean() * 1e-3

    [finding] = searched(bounded).findings
    assert "out of bounds" in finding.cause
    assert finding.inputs["x"].shape == (12, 3)


def test_others_are_found_behind_an_exception_that_comes_again_and_again() -> None:
    def both(model: Any, batch: dict[str, Tensor]) -> Tensor:
        if bool((batch["x"] == batch["x"][:1]).all()):
            raise ValueError("all rows alike")
        return log_softmax_by_hand(model, batch)

    run = searched(both, 2500, stop_on_first=False)
    assert sorted(f.symptom == "exception" for f in run.findings) == [False, True]


def test_a_loss_that_counts_on_the_size_of_a_batch_is_searched() -> None:
    def paired(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return log_softmax_by_hand(model, batch | {"x": batch["x"].view(12, 3), "y": batch["y"] + torch.zeros(12, 2)})

    run = searched(paired, 3000)
    assert [f.site.op for f in run.findings if f.site is not None] == ["log"]


def test_a_loss_that_leaves_by_sys_exit_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaving = WHITENING.replace("    z = z - z.mean(0)\n", '    if bool((batch["x"].abs() < 0.01).all()): exit(0)\n')
    program, place = write_program(tmp_path, leaving), tmp_path / "run"
    assert main(["train", str(program), "--max-steps", "300", "--out", str(place)]) == 1
    assert f"T0001 the loss raises ({program}:13), at once" in capsys.readouterr().out
    script = place / "findings" / "T0001" / "repro.py"
    assert subprocess.run([sys.executable, str(script)], capture_output=True, check=False).returncode == 1
    for command, status, said in (("repro", 1, "reproduced"), ("explain", 0, "program.py:13"), ("shrink", 0, "T0001")):
        assert main([command, str(place)]) == status
        assert said in capsys.readouterr().out


def test_random_batches_are_tried_before_training_hides_what_they_raise() -> None:
    def shy(model: Any, batch: dict[str, Tensor]) -> Tensor:
        assert batch["x"].std() < 4.3, "only corners of the range are so far apart"
        return model(batch["x"]).square().mean()

    for seed in range(3):
        [finding] = searched(shy, 200, seed=seed).findings
        assert (finding.symptom, finding.arm, finding.step) == ("exception", "structure", 0)


def test_rows_that_raise_alone_and_not_as_a_batch_are_no_finding_and_change_how_others_look() -> None:
    program = make_program(linear, log_softmax, rows, sgd, INPUTS)
    stream = Stream(program, 0)
    few = {k: v[:2] for k, v in stream.first.items()}

    class Looking(Arm):
        def round(self) -> None:
            raise ProgramFailed("loss(model, batch)", ValueError("two rows are too few"), few)

    portfolio = Portfolio(program, stream, Lens(program), 0, lambda: False)
    arm = Looking(Walk(program, 0), stream, None)
    assert stream.few(8) == 8
    assert portfolio._round(arm) is None
    assert arm.finished
    assert stream.few(8) == 12
