"""repro.py sees each kind of failure again, with torch and safetensors alone."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nnfuzz.callform import CallForm, Leaf
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import save_finding

Make = Callable[..., Finding]
Repro = Callable[[Finding], ModuleType]

BAD, GOOD = -torch.ones(1, 4), torch.ones(1, 4)


@pytest.mark.parametrize(
    ("symptom", "run"),
    [
        ("nan", {"model": "make"}),
        ("nan", {"model": "made"}),
        ("nan", {"model": "Log"}),
        ("nan", {"model": "log"}),
        ("nan", {"model": "needs_grad"}),
        ("exception", {"model": "picky"}),
        ("property", {"model": "sums", "objective": "positive"}),
        ("disagreement", {"model": "first", "model_b": "second"}),
        ("disagreement", {"model": "first", "model_b": "second", "compare": "topk:1"}),
        ("disagreement", {"model": "first", "model_b": "second", "compare": "threshold:-1"}),
        ("disagreement", {"model": "first", "model_b": "second", "compare": "allclose:1e-3,1e-3"}),
        ("nan", {"model": "log", "model_b": "sums"}),
        ("exception", {"model": "sums", "model_b": "picky"}),
    ],
    ids=str,
)
def test_seen_again_and_gone(finding: Make, repro: Repro, symptom: str, run: dict[str, str]) -> None:
    assert repro(finding(symptom, **run)).still_fails() is True
    good = torch.zeros(1, 4) if symptom == "disagreement" else GOOD
    assert repro(finding(symptom, good, **run)).still_fails() is False


def test_infinities_by_design_do_not_count(finding: Make, repro: Repro) -> None:
    masked, more = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    assert repro(finding("+inf", more, masked, model="tiny")).still_fails() is True
    other = torch.tensor([[0.0, 1.0, 3.0]])
    assert repro(finding("+inf", other, masked, model="tiny")).still_fails() is False


def test_a_finding_on_a_seed_itself_counts(finding: Make, repro: Repro) -> None:
    masked = torch.tensor([[0.0, 1.0, 2.0]])
    assert repro(finding("+inf", masked, masked, model="tiny")).still_fails() is True


def test_inside(finding: Make, repro: Repro, capsys: pytest.CaptureFixture[str]) -> None:
    inside = {"vanishes again": True}
    assert repro(finding("nan", model="hides", details=inside)).still_fails() is True
    assert "nan in the result of: sqrt[1, 4]" in capsys.readouterr().out
    assert repro(finding("nan", GOOD, model="hides", details=inside)).still_fails() is False


def test_backward(finding: Make, repro: Repro) -> None:
    for x, fails in ((torch.zeros(1, 4), True), (GOOD, False)):
        f = finding("+inf", x, model="root")
        f.phase = "backward"
        assert repro(f).still_fails() is fails


def test_rows(finding: Make, repro: Repro, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert repro(finding("rows", x, model="centred", details={"atol": 1e-5, "rtol": 1e-4})).still_fails() is True
    assert "times the tolerance" in capsys.readouterr().out
    assert repro(finding("rows", x, model="sums")).still_fails() is False


def test_rows_in_training_mode(finding: Make, repro: Repro) -> None:
    recorded = {f"{way}.output": torch.zeros(3, 4) for way in ("together", "alone", "training")}
    x = torch.arange(12.0).reshape(3, 4)
    assert repro(finding("rows", x, model="Moody", outputs=recorded)).still_fails() is True
    assert repro(finding("rows", x, model="Moody")).still_fails() is False  # the run did not compare that


def test_the_mode_of_the_run(finding: Make, repro: Repro) -> None:
    assert repro(finding(model="Moody", train=True)).still_fails() is True
    assert repro(finding(model="Moody")).still_fails() is False


def test_comparison_by_angle_and_by_function(finding: Make, repro: Repro, toys: Path) -> None:
    for compare in ("cosine:0.9", f"{toys}:unlike"):
        run = {"model": "first", "compare": compare}
        assert repro(finding("disagreement", model_b="second", **run)).still_fails() is True
        assert repro(finding("disagreement", model_b="first", **run)).still_fails() is False


def test_subnormals_as_in_the_run(finding: Make, repro: Repro) -> None:
    x = torch.full((1, 4), 0.5)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    torch.set_flush_denormal(False)
    assert repro(finding("+inf", x, 100 * GOOD, model="tiny", flush_denormal=True)).still_fails() is True
    assert repro(finding("+inf", x, 100 * GOOD, model="tiny")).still_fails() is False
    assert float(torch.tensor(1e-38) * 0.5) > 0  # put back


def test_a_copy_in_half_precision(finding: Make, repro: Repro) -> None:
    x = torch.tensor([[1e5, 0.0, 0.0, 0.0]])  # beyond float16
    for as_, fails in (("fp16", True), ("bf16", False), ("fp64", False)):
        f = finding("nan" if fails else "disagreement", x, model="linear", as_=as_)
        assert repro(f).still_fails() is fails


def test_a_copy_in_int8_is_the_one_of_the_run(finding: Make, repro: Repro, toys: Path) -> None:
    from nnfuzz.targets.precision import derive

    module = repro(finding("disagreement", model="linear", as_="int8", int8={"": [-2.0, 3.0]}))
    model = module.load_model(f"{toys}:linear")
    calibration = torch.tensor([[-2.0, 3.0, 0.0, 1.0]])
    theirs = derive(copy.deepcopy(model), "int8", lambda m: m(calibration))
    x = torch.randn(50, 4)
    with torch.no_grad():
        assert torch.equal(module.in_int8(model)(x), theirs(x))
    module = repro(finding("disagreement", model="linear", as_="int8"))
    with pytest.raises(module.CannotRun, match="nnfuzz repro"):
        module.still_fails()


def test_dict_outputs_and_keyword_inputs(finding: Make, repro: Repro, capsys: pytest.CaptureFixture[str]) -> None:
    f = finding("+inf", torch.full((1, 2), 1e3), model="pair", call=CallForm((Leaf("x"),), {"mask": Leaf("m")}))
    f.inputs["m"] = f.seed["m"] = torch.tensor([[True, False]])
    f.outputs = {"a": torch.zeros(1), "b": torch.full((1, 2), torch.inf)}
    assert repro(f).still_fails() is True
    assert "b: float32[1, 2] inf, inf\n   recorded: float32[1, 2] inf, inf" in capsys.readouterr().out


def test_model_b_with_names_of_its_own(finding: Make, repro: Repro) -> None:
    call = CallForm((), {"x": Leaf("x")})
    own = CallForm((), {"z": Leaf("x")}).to_json()
    f = finding("disagreement", call=call, model="first", model_b="halves", call_b=own)
    assert repro(f).still_fails() is True


def test_what_is_drawn_at_random_is_the_same_again(finding: Make, repro: Repro, toys: Path) -> None:
    """Weights drawn by a factory, at import, and numbers drawn in the call: as nnfuzz itself loads and runs them."""
    from nnfuzz.loading import load_model

    module = repro(finding())
    for name in ("linear", "drawn", "noisy"):
        ours, theirs = module.load_model(f"{toys}:{name}"), load_model(f"{toys}:{name}")
        torch.manual_seed(0)
        with torch.no_grad():
            expected = theirs(GOOD)
        assert torch.equal(module.run(ours, {"x": GOOD})["output"], expected)


def test_constants_in_the_call(finding: Make, repro: Repro) -> None:
    call = CallForm((Leaf("x"),), {"mask": float("inf")})
    module = repro(finding("nan", torch.zeros(1, 2), model="pair", call=call))
    assert module.still_fails() is True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is on its way out
@pytest.mark.parametrize("kind", ["pt2", "pt"])
def test_model_files(tmp_path: Path, finding: Make, repro: Repro, kind: str) -> None:
    class Log(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x.sum(-1))

    path = tmp_path / f"model.{kind}"
    if kind == "pt2":
        torch.export.save(torch.export.export(Log(), (GOOD,)), path)
    else:
        torch.jit.save(torch.jit.trace(Log(), (GOOD,)), path)
    f = finding()
    f.details["run"].update(model=path.name, cwd=str(tmp_path))
    assert repro(f).still_fails() is True


def test_without_a_model_it_says_what_to_do(finding: Make, repro: Repro, toys: Path) -> None:
    module = repro(finding())
    with pytest.raises(module.CannotRun, match=r"fill in own_model\(\) in repro\.py, or run"):
        module.still_fails()
    assert module.main([]) == 2
    assert module.main([f"{toys}:log"]) == 1
    module.own_model = lambda: module.prepared(lambda x: x)
    assert module.main([]) == 0
    pair = repro(finding("disagreement", model="first"))
    assert pair.main([]) == 2
    assert pair.main([f"{toys}:first", f"{toys}:second"]) == 1


def test_without_an_objective_it_says_what_to_do(finding: Make, repro: Repro) -> None:
    module = repro(finding("property", model="sums"))
    with pytest.raises(module.CannotRun, match="set OBJECTIVE"):
        module.still_fails()


def test_what_is_not_the_finding_is_told_apart(
    finding: Make, repro: Repro, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, says in (("gone", "has no 'gone'"), ("picky", "too low")):
        assert repro(finding(model=model)).main([]) == 2
        assert says in capsys.readouterr().err
    for spec, says in (
        ("nowhere.py:f", "there is no file"),
        ("no_such_pkg.x:f", "No module named"),
        ("x.pt2", "no file"),
    ):
        f = finding()
        f.details["run"]["model"] = spec
        assert repro(f).main([]) == 2
        assert says in capsys.readouterr().err


def test_from_anywhere_in_a_process_of_its_own(tmp_path: Path, finding: Make, toys: Path) -> None:
    f = finding()
    f.details["run"].update(model="toys:make", cwd=str(toys.parent))
    place = save_finding(f, tmp_path / "F0001")
    (tmp_path / "nnfuzz.py").write_text("raise ImportError('repro.py must not need nnfuzz')")
    clean = {**os.environ, "PYTHONPATH": str(tmp_path)}
    got = subprocess.run([sys.executable, place / "repro.py"], cwd="/", env=clean, capture_output=True, text=True)
    assert got.returncode == 1, got.stderr
    assert "output: float32[1] nan\n        recorded: float32[1] nan" in got.stdout
    assert "REPRODUCED: nan" in got.stdout


def test_the_pytest_case_fails_while_the_bug_lives(tmp_path: Path, finding: Make) -> None:
    save_finding(finding(model="log"), tmp_path / "F0001")
    save_finding(finding("nan", GOOD, model="log"), tmp_path / "F0002")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    got = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 1 passed" in got.stdout, got.stdout
    assert "F0001 nan" in got.stdout


def test_the_script_is_tidy(tmp_path: Path, finding: Make) -> None:
    cases = [
        ("nan", {"model": "log"}), ("nan", {}), ("exception", {"model": "log", "as_": "fp16"}),
        ("rows", {"model": "log"}), ("property", {"objective": "positive"}), ("disagreement", {}),
        ("disagreement", {"model": "linear", "as_": "int8"}),
    ]  # fmt: skip
    for i, (symptom, run) in enumerate(cases):
        save_finding(finding(symptom, **run), tmp_path / f"F{i}")
    config = Path(__file__).parents[2] / "pyproject.toml"
    rules = ["--select", "E,F,B", "--config", str(config), "--no-cache"]
    got = subprocess.run([sys.executable, "-m", "ruff", "check", *rules, tmp_path], capture_output=True, text=True)
    assert got.returncode == 0, got.stdout


def test_a_script_without_its_packages_cannot_be_tried(tmp_path: Path) -> None:
    """Status 1 would say that the failure is there."""
    from nnfuzz.findings.parts.needed import needed

    script = tmp_path / "repro.py"
    script.write_text("import sys\n" + needed("import no_such_package\nimport torch", "no_such_package torch"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == ("cannot be tried: No module named 'no_such_package': pip install no_such_package torch\n")
