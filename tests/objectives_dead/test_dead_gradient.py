"""Broken losses are found, shrunk and explained; healthy ones stay silent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import losses
import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.objectives.dead_gradient import differentiated

HERE = Path(__file__).parent
WIDE = {"z": (-30.0, 30.0), "logits": (-50.0, 50.0)}


def seeds(*names: str, count: int = 16) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    made = {
        "z": torch.randn(count, generator=g),
        "y": (torch.rand(count, generator=g) > 0.5).float(),
        "logits": torch.randn(count, 5, generator=g),
        "label": torch.randint(0, 5, (count,), generator=g),
        "x": torch.randn(count, 4, generator=g),
        "prediction": torch.randn(count, 3, generator=g),
        "target": torch.randn(count, 3, generator=g),
        "soft": torch.rand(count, generator=g),
    }
    return {n: made[n] for n in names}


def search(model: Callable[..., Any], given: dict[str, Tensor], **more: Any) -> nnfuzz.Run:
    ranges = {n: r for n, r in WIDE.items() if n in given}
    more = {"max_inputs": 2500, "ranges": ranges, **more}
    return nnfuzz.fuzz(model, given, objective="dead-gradient", **more)


@pytest.mark.parametrize(
    ("model", "names", "op"),
    [
        (losses.sigmoid_squared, ("z", "y"), "sigmoid"),
        (losses.softmax_squared, ("logits", "label"), "softmax"),
        (losses.clipped_entropy, ("z", "y"), "clamp"),
        (losses.upside_down_hinge, ("z", "y"), "relu"),
        (losses.saturating_generator, ("z",), "sigmoid"),
    ],
)
def test_broken_losses_are_found_at_the_operation_that_saturates(
    model: Callable[..., Any], names: tuple[str, ...], op: str
) -> None:
    run = search(model, seeds(*names), fixed=[n for n in names if n == "label"])
    (finding,) = run.findings
    assert finding.symptom == "dead gradient"
    assert finding.confirmed
    assert finding.cause.startswith(f"the gradient vanishes at {op}@losses.py:")
    assert finding.details["gradient"] <= 1e-3 * finding.details["gradient of the seeds"]
    inputs = {n: t.clone().requires_grad_(n == names[0]) for n, t in finding.inputs.items()}
    loss = model(*inputs.values())
    (gradient,) = torch.autograd.grad(loss.sum(), inputs[names[0]])
    assert float(loss.detach()) == pytest.approx(finding.details["loss"])
    assert float(gradient.abs().max()) == pytest.approx(finding.details["gradient"])


def test_a_finding_is_shrunk_to_where_the_gradient_just_vanishes() -> None:
    run = search(losses.saturating_generator, seeds("z"))
    share = run.findings[0].details["share of the seeds' gradient"]
    assert 0.9e-3 < share <= 1e-3


def test_a_mean_over_the_batch_is_searched_as_a_whole() -> None:
    run = search(losses.mean_sigmoid_squared, seeds("z", "y", count=3), fixed=["y"])
    assert run.findings
    assert run.findings[0].inputs["z"].shape == (3,)


def test_parameters_count_beside_inputs() -> None:
    torch.manual_seed(0)
    model = losses.Learner().eval()
    run = search(model, seeds("x", "y"), ranges={"x": (-5.0, 5.0)}, fixed=["y"])
    details = run.findings[0].details
    assert details["gradient by parameters"] <= 1e-3 * details["gradient by parameters of the seeds"]


def test_a_gradient_that_leads_up() -> None:
    run = search(losses.wrong_way, seeds("z"))
    (finding,) = run.findings
    assert finding.cause == "the loss grows along its gradient"
    assert float(finding.inputs["z"]) > 1


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (losses.cross_entropy, seeds("logits", "label")),
        (losses.entropy_on_logits, seeds("z", "y")),
        (losses.hinge, seeds("z", "y")),
        (losses.huber, seeds("prediction", "target")),
        (losses.squared, seeds("prediction", "target")),
        (losses.good_generator, seeds("z")),
        (lambda z, soft: losses.entropy_on_logits(z, soft), seeds("z", "soft")),
    ],
    ids=["cross entropy", "entropy on logits", "hinge", "huber", "squared", "softplus", "soft labels"],
)
def test_healthy_losses_are_silent(model: Callable[..., Any], given: dict[str, Tensor]) -> None:
    if len(given) == 2 and "prediction" in given:
        ranges: Any = {"prediction": (-100.0, 100.0), "target": (-100.0, 100.0)}
    else:
        ranges = {n: r for n, r in WIDE.items() if n in given}
    assert search(model, given, ranges=ranges).findings == []


def test_a_healthy_loss_in_half_precision() -> None:
    given = {n: t.bfloat16() for n, t in seeds("z", "y").items()}
    assert search(losses.entropy_on_logits, given).findings == []


def test_a_finding_outlives_its_run(tmp_path: Path) -> None:
    spec = f"{HERE / 'losses.py'}:sigmoid_squared"
    run = search(
        losses.sigmoid_squared, seeds("z", "y"), out=tmp_path / "run", context={"model": spec, "cwd": str(HERE)}
    )
    place = tmp_path / "run" / "findings" / run.findings[0].id
    assert nnfuzz.repro(place).reproduced
    told = subprocess.run([sys.executable, place / "repro.py"], capture_output=True, text=True, check=False)
    assert told.returncode == 1, told.stdout + told.stderr
    assert "largest element of the gradient by inputs" in told.stdout
    again = nnfuzz.resume(tmp_path / "run", max_inputs=5000)
    assert [f.id for f in again.findings] == [f.id for f in run.findings]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(seeds("z", "y"), tmp_path / "seeds.pt")
    command = ["fuzz", f"{HERE / 'losses.py'}:sigmoid_squared", "--plain"]
    command += ["--objective", "dead-gradient", "--seeds", str(tmp_path / "seeds.pt"), "--range", "z=-30..30"]
    command += ["--max-inputs", "2000", "--out", str(tmp_path / "run")]
    assert main(command) == 1
    assert "dead gradient: the gradient vanishes at sigmoid" in "".join(capsys.readouterr())


# ---------------------------------------------------------------------------------------------- what is refused


def test_a_model_that_is_no_loss(refused: Callable[..., str]) -> None:
    said = refused(search, nn.Linear(4, 3), {"input": torch.randn(4, 4)})
    assert "one number a candidate" in said
    assert "shape (3,)" in said


def test_a_loss_without_gradients(refused: Callable[..., str]) -> None:
    assert "on no seed does a gradient of the loss reach z" in refused(search, lambda z: z.round().abs(), seeds("z"))


def test_nothing_to_differentiate_by(refused: Callable[..., str]) -> None:
    said = refused(search, lambda label: (label * 1.0).square(), seeds("label"))
    assert "to differentiate the loss by" in said


def test_an_objective_of_another_name(refused: Callable[..., str]) -> None:
    said = refused(nnfuzz.fuzz, losses.sigmoid_squared, seeds("z", "y"), objective="dead")
    assert "'dead-gradient'" in said


def test_labels_are_not_differentiated_by() -> None:
    given = seeds("z", "y", "label", "prediction", "target")
    assert differentiated(given, [], {}) == ["z", "prediction"]
    assert differentiated(given, ["z"], {}) == ["prediction"]
    assert differentiated({"y": given["y"]}, ["y"], {}) == ["y"]
    assert differentiated(given, [], {"prediction": "simplex"}) == ["z"]
