"""Exported programs take each argument in the way it was exported, scripted ones under the names of their signature;
seeds of any form find their places."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.seeds import read_seeds

X = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
S = torch.full((6, 1), 2.0)


class Scaled(nn.Module):
    def forward(self, image: Tensor, scale: Tensor) -> Tensor:
        return image * scale


class ScaledByName(nn.Module):
    def forward(self, image: Tensor, *, scale: Tensor) -> Tensor:
        return image * scale


class ScaledWhole(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["image"] * batch["scale"]


def exported(model: nn.Module, args: Any, kwargs: Any = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model.eval(), args, kwargs or {}).module()


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    return {
        "by position": exported(Scaled(), (X, S)),
        "scale by name": exported(ScaledByName(), (X,), {"scale": S}),
        "both by name": exported(Scaled(), (), {"image": X, "scale": S}),
        "whole": exported(ScaledWhole(), ({"image": X, "scale": S},)),
    }


@pytest.mark.parametrize(
    "seeds",
    [
        (X, S),
        {"image": X, "scale": S},
        {"scale": S, "image": X},
        {"a": X, "b": S},
        {"image": X, "scale": S, "label": S},
    ],
)
@pytest.mark.parametrize("which", ["by position", "scale by name", "both by name"])
def test_seeds_find_their_places(programs: dict[str, Any], which: str, seeds: Any) -> None:
    model = programs[which]
    read = read_seeds(seeds, model)
    assert torch.equal(read.form.call(model, read.groups[0].batch), X * S)
    read.form.resolve("0", "test")
    run = nnfuzz.find_nans(model, seeds, unit="batch", max_inputs=16, phase="forward")
    assert run.stats.inputs == 16


def test_a_dict_that_is_one_input(programs: dict[str, Any]) -> None:
    model = programs["whole"]
    read = read_seeds({"scale": S, "image": X}, model)
    assert torch.equal(read.form.call(model, read.groups[0].batch), X * S)


@pytest.mark.parametrize("which", ["by position", "scale by name"])
@pytest.mark.parametrize("seeds", [X, {"image": X}])
def test_a_missing_input_is_named(programs: dict[str, Any], which: str, seeds: Any, refused: Any) -> None:
    assert refused(read_seeds, seeds, programs[which]) == (
        "the model was exported with the inputs image, scale, but the seeds give no scale: give them all"
    )


class ScriptedOddly(nn.Module):
    def forward(me, image: Tensor, scale: Tensor) -> Tensor:  # noqa: N805
        return image * scale


@pytest.fixture
def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(ScriptedOddly())


@pytest.mark.parametrize(
    "seeds", [(X, S), {"scale": S, "image": X}, {"a": X, "b": S}, {"x": X, "image": X, "scale": S}]
)
def test_seeds_of_a_script(scripted: Any, seeds: Any) -> None:
    read = read_seeds(seeds, scripted)
    assert torch.equal(read.form.call(scripted, read.groups[0].batch), X * S)
    assert ("'x' in the seeds is left out" in "".join(read.notes)) == ("x" in seeds)


def test_a_script_has_no_copies(scripted: Any, refused: Any) -> None:
    for way in ("fp16", "bf16", "int8"):
        assert refused(nnfuzz.diff, scripted, seeds=(X, S), as_=way) == (
            f"--as {way} cannot derive a copy of TorchScript, whose dtypes are compiled in: give the nn.Module that it "
            "was made of, or both models"
        )


def test_a_copy_of_an_exported_program_comes_without_warnings(programs: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = nnfuzz.diff(programs["by position"], seeds=(X, S), as_="bf16", max_inputs=16)
    assert run.stats.inputs == 16


def test_a_missing_input_of_a_script(scripted: Any, refused: Any) -> None:
    assert refused(read_seeds, {"image": X}, scripted) == (
        "the model takes the inputs image, scale but the seeds give image: give them all"
    )
