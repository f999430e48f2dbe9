"""Findings of rows that know of each other: told, rerun, shrunk and explained; models that have no rows to compare."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
import onnx
from nnfuzz.cli import main
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import load_finding as loaded
from nnfuzz.findings.told_cause import told_cause
from onnx import TensorProto, helper

X = torch.rand(8, 4, generator=torch.Generator().manual_seed(3)) * 2 - 1
QUICK: dict[str, Any] = {"max_inputs": 200, "max_seconds": None, "ranges": (-2, 2)}
Cli = Callable[..., tuple[int, str]]
MODELS = """
import torch


def centred(x):
    return x - x.mean(0)


def hinge(x):
    return x + torch.relu(x.mean(0) - 1.2)


def root(x):
    return x.sqrt() if len(x) == 1 else x.abs().sqrt()
"""


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def hinge(x: Tensor) -> Tensor:
    """Rows are independent on the seeds, and no longer where a column's mean is large."""
    return x + torch.relu(x.mean(0) - 1.2)


def root(x: Tensor) -> Tensor:
    return x.sqrt() if len(x) == 1 else x.abs().sqrt()


def opposite(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.inf if len(x) == 1 else -torch.inf)


def place_of_largest(x: Tensor) -> Tensor:
    return (x > x.mean()).long().argmax(-1)


def graph(first: int | str, *, inside: int | None = None) -> onnx.ModelProto:
    """Rows less their mean. ``first``: the first axis of the input; ``inside``: one that only a Reshape fixes."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Reshape", ["centred", "shape"], ["y"])
        if inside
        else helper.make_node("Identity", ["centred"], ["y"]),
    ]
    sizes = [helper.make_tensor("shape", TensorProto.INT64, [2], [inside, 4])] if inside else []
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [first, 4]) for n in "xy"]
    made = helper.make_graph(nodes, "g", values[:1], values[1:], sizes)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    onnx.save(graph("n"), tmp_path / "rows.onnx")
    np.savez(tmp_path / "x.npz", x=X.numpy())
    return tmp_path


@pytest.fixture
def cli(folder: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> tuple[int, str]:
        code = main(list(words))
        told = capfd.readouterr()
        return code, told.out + told.err

    return call


# ------------------------------------------------------------------------------------------------ rerun


@pytest.mark.parametrize("model", ["models.py:centred", "models.py:hinge", "models.py:root", "rows.onnx"])
def test_a_finding_is_rerun_shrunk_explained_and_resumed(model: str, cli: Cli) -> None:
    code, _ = cli("rows", model, "--seeds", "x.npz", "--range=-2:2", "-n", "300", "--out", "run")
    assert code == 1
    place = "run/findings/F0001"
    assert loaded(place).is_its_seed != (model == "models.py:hinge")
    for _ in range(2):
        code, out = cli("repro", place)
        assert code == 1, out
        assert out.splitlines()[-1] == "reproduced"
        assert cli("shrink", place)[0] == 0
    code, out = cli("explain", place)
    assert code == 0
    assert "a row differs between its batch and alone" in out
    code, out = cli("resume", "run", "-n", "600")
    assert code == 1, out


def test_a_mended_model_does_not_reproduce() -> None:
    finding = nnfuzz.check_rows(hinge, X, **QUICK).findings[0]
    assert nnfuzz.repro(finding, hinge).reproduced
    assert not nnfuzz.repro(finding, lambda x: x).symptom
    with pytest.raises(nnfuzz.UsageError, match="does not fail any more"):
        nnfuzz.shrink(finding, lambda x: x)


def test_shrinking_goes_on_where_the_run_left_off(tmp_path: Path) -> None:
    run = nnfuzz.check_rows(hinge, X, out=tmp_path / "run", max_shrink=0, seed=1, **QUICK)
    place = tmp_path / "run" / "findings" / "F0001"
    before = loaded(place)
    small = nnfuzz.shrink(place, hinge)
    assert small.distance["l2"] < before.distance["l2"]
    assert nnfuzz.repro(place, hinge).reproduced
    again = loaded(place)
    assert again.distance == small.distance
    row, times = again.details["row"], again.details["times the tolerance"]
    assert times == again.severity
    x = again.inputs["x"]
    gap = (hinge(x)[row] - hinge(x[row : row + 1])[0]).abs().max() / (1e-5 + 1e-4 * hinge(x).abs().max())
    assert times == pytest.approx(float(gap), rel=1e-3)
    assert run.findings[0].details["times the tolerance"] != times  # the facts are those of what it is now


# ------------------------------------------------------------------------------------- findings in Python


def test_a_finding_of_a_stored_run_is_shrunk_where_it_lies(tmp_path: Path) -> None:
    run = nnfuzz.check_rows(hinge, X, out=tmp_path / "run", max_shrink=0, seed=1, **QUICK)
    finding = run.findings[0]
    before = finding.distance["l2"]
    assert nnfuzz.shrink(finding, hinge) is finding
    assert loaded(tmp_path / "run" / "findings" / "F0001").distance["l2"] == finding.distance["l2"] < before
    assert nnfuzz.repro(finding, hinge).reproduced


def test_what_a_stored_run_allowed_holds_for_its_findings_too(tmp_path: Path) -> None:
    def whole(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t.round() for n, t in batch.items()}

    run = nnfuzz.find_nans(lambda x: x / (x - 2), X.round(), constraint=whole, out=tmp_path / "run", **QUICK)
    finding: Finding = run.findings[0]
    for again in (nnfuzz.repro, nnfuzz.shrink):
        with pytest.raises(nnfuzz.UsageError, match="pass constraint= again"):
            again(finding, lambda x: x / (x - 2))


def test_a_finding_in_memory_is_shrunk_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finding = nnfuzz.check_rows(hinge, X, max_shrink=0, seed=1, **QUICK).findings[0]
    before = finding.distance["l2"]
    assert nnfuzz.shrink(finding, hinge).distance["l2"] < before
    assert not list(tmp_path.iterdir())
    with pytest.raises(nnfuzz.UsageError, match=r"^F0001 was made in Python.*pass model="):
        nnfuzz.repro(finding)


def test_other_jobs_take_findings_too() -> None:
    def log(x: Tensor) -> Tensor:
        return (x + 1.9).log()

    finding = nnfuzz.find_nans(log, X, **QUICK).findings[0]
    assert nnfuzz.repro(finding, log).reproduced
    assert nnfuzz.shrink(finding, log) is finding


@pytest.mark.parametrize("again", [nnfuzz.repro, nnfuzz.shrink, nnfuzz.explain])
def test_what_is_no_finding_is_refused(again: Any) -> None:
    with pytest.raises(nnfuzz.UsageError, match=r"^a list was given, but a finding is needed: give its directory"):
        again([1])


def test_a_finding_that_needs_its_directory_says_so() -> None:
    finding = nnfuzz.check_rows(centred, X, **QUICK).findings[0]
    finding.symptom = "crash"
    with pytest.raises(nnfuzz.UsageError, match="give its directory, such as RUN/findings/F0001"):
        nnfuzz.repro(finding)


# ---------------------------------------------------------------------------------------- limits as text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((n, "300") for n in ("max_inputs", "max_seconds", "batch_size", "radius", "max_corpus", "max_shrink", "eps")),
        ("max_corpus_bytes", "1G"),
        ("max_shrink", -1),
        ("max_inputs", float("nan")),
        ("tolerance", "1e-3"),
        ("tolerance", 1e-3),
        ("tolerance", (1e-5, "1e-4")),
        ("tolerance", (1e-5, -1)),
    ],
)
def test_a_setting_that_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(nnfuzz.UsageError) as refused:
        nnfuzz.check_rows(centred, X, **{**QUICK, name: value})
    assert f"{value!r}, but it is" in str(refused.value) or "a corpus needs room" in str(refused.value)
    assert str(refused.value).startswith(name)


def test_limits_of_what_comes_after_a_run_are_checked_too(tmp_path: Path) -> None:
    finding = nnfuzz.check_rows(centred, X, out=tmp_path / "run", **QUICK).findings[0]
    with pytest.raises(nnfuzz.UsageError, match=r"^max_inputs is '300', but it is a limit"):
        nnfuzz.shrink(finding, centred, max_inputs="300")  # type: ignore[arg-type]
    with pytest.raises(nnfuzz.UsageError, match=r"^max_inputs is '300', but it is a limit"):
        nnfuzz.resume(tmp_path / "run", model=centred, max_inputs="300")  # type: ignore[arg-type]
    with pytest.raises(nnfuzz.UsageError, match=r"^seconds is '1', but it is a limit"):
        nnfuzz.explain(finding, centred, seconds="1")


def test_numbers_of_numpy_are_numbers() -> None:
    limits: dict[str, Any] = {"max_inputs": np.int64(50), "max_seconds": np.float32(5)}
    assert nnfuzz.check_rows(centred, X, **limits).findings


# ------------------------------------------------------------------------------------- NaN, Inf and labels


@pytest.mark.parametrize(
    ("model", "told"),
    [(root, "in its batch, NaN alone"), (opposite, "-inf in its batch, +inf alone"), (place_of_largest, "alone")],
)
def test_what_is_no_multiple_of_the_tolerance_is_told_by_its_values(model: Any, told: str) -> None:
    finding = nnfuzz.check_rows(model, X, **QUICK).findings[0]
    assert finding.cause == "a row differs between its batch and alone"
    assert told_cause(finding).startswith(f"{finding.cause}: ")
    assert told_cause(finding).endswith(told)
    text = nnfuzz.explain(finding)
    assert told in text
    assert "times the tolerance" not in text
    assert finding.severity is None


def test_a_difference_shows_both_values() -> None:
    finding = nnfuzz.check_rows(centred, X, **QUICK).findings[0]
    x, row = finding.inputs["x"], finding.details["row"]
    assert finding.details["in its batch"] in centred(x)[row].tolist()
    assert finding.details["alone"] == 0
    assert told_cause(finding) == finding.cause


def test_train_against_eval_names_its_own_sides() -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0 if self.training else x * 2

    finding = nnfuzz.check_rows(Moody(), X, **QUICK).findings[0]
    assert finding.cause == "a row differs between train() and eval()"
    assert told_cause(finding).endswith(" with eval(), +inf with train()") or "-inf with train()" in told_cause(finding)


def test_the_script_speaks_of_nan(cli: Cli) -> None:
    cli("rows", "models.py:root", "--seeds", "x.npz", "-n", "60", "--out", "run")
    assert "one gives NaN or Inf where the other does not" in script("run/findings/F0001/repro.py")


def test_the_script_of_a_graph_speaks_of_nan(cli: Cli) -> None:
    sums = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("ReduceSum", ["size", "axes"], ["sizes"], keepdims=1),
        helper.make_node("Add", ["sum", "sizes"], ["twice"]),  # 0 where a column holds no positive value
        helper.make_node("Div", ["x", "twice"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    made = helper.make_graph(sums, "g", values[:1], values[1:], [axes])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "div.onnx")
    cli("rows", "div.onnx", "--seeds", "x.npz", "-n", "60", "--out", "run")
    assert "one gives NaN or Inf where the other does not" in script("run/findings/F0001/repro.py")


def script(path: str) -> str:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


# --------------------------------------------------------------------------------------- no rows to compare


@pytest.mark.parametrize("first", [4, 1])
def test_a_graph_that_fixes_its_first_axis_is_named_as_the_reason(first: int, cli: Cli) -> None:
    onnx.save(graph(first), "fixed.onnx")
    code, out = cli("rows", "fixed.onnx", "--seeds", "x.npz", "-n", "60")
    assert code == 2
    assert f"fixed.onnx fixes the first axis of its input 'x' to {first}, " in out
    assert "export it with a dynamic first axis" in out
    assert "list" not in out


def test_a_graph_that_fixes_it_inside_is_found_out(cli: Cli) -> None:
    onnx.save(graph("n", inside=4), "inside.onnx")
    code, out = cli("rows", "inside.onnx", "--seeds", "x.npz", "-n", "60")
    assert code == 2
    assert "the model runs 4 rows of the seeds at a time but not 6 (" in out
    assert "export it with a dynamic first axis" in out


def test_an_exported_program_of_one_size_is_found_out() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return centred(x)

    program = torch.export.export(Centred(), (torch.rand(3, 4),)).module()
    with pytest.raises(nnfuzz.UsageError, match=r"runs 3 rows of the seeds at a time but not 6 .*dynamic first axis"):
        nnfuzz.check_rows(program, X, **QUICK)


def test_a_model_that_cannot_run_one_row_says_so() -> None:
    def company(x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("one is too few")
        return x

    with pytest.raises(nnfuzz.ModelFailure, match=r"runs 6 rows together, but not each of them alone.*one is too few"):
        nnfuzz.check_rows(company, X, **QUICK)


def test_a_model_that_fails_on_any_number_of_rows_is_no_matter_of_sizes() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ValueError("no")

    with pytest.raises(nnfuzz.ModelFailure, match="fails on its own seeds: ValueError: no"):
        nnfuzz.check_rows(broken, X, **QUICK)


@pytest.mark.parametrize(
    ("model", "seeds", "told"),
    [
        (centred, [X[:4], X[4:]], "the seeds are whole candidates, in a list or along one more axis in front"),
        (lambda x: x * 2, [torch.tensor(1.0), torch.tensor(2.0)], "the seeds are whole candidates, in a list"),
        (lambda x, y: x, (X, X[:3]), r"different lengths \('x' has 8, 'y' has 3\)"),
        (lambda x, y: x * y, (X, torch.tensor(2.0)), "is one number for all rows, which is not supported"),
    ],
)
def test_seeds_without_rows_are_refused_for_what_they_are(model: Any, seeds: Any, told: str) -> None:
    with pytest.raises(nnfuzz.UsageError, match=told):
        nnfuzz.check_rows(model, seeds, **QUICK)
