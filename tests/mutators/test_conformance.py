"""Every registered mutator keeps the contract on every space of the zoo; and the check does fail when it should."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from nnfuzz.mutators import MUTATORS, Context, Mutator, check_mutator
from nnfuzz.mutators.zoo import sample, space, spec, zoo
from nnfuzz.space import Batch, InputSpec

OWN = sorted(n for n in MUTATORS if MUTATORS[n].__module__.startswith("nnfuzz."))


@pytest.mark.parametrize("name", OWN)
def test_contract(name: str) -> None:
    assert check_mutator(name, groups=6), "there is no space it can do anything in"


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_contract_for_longer(name: str) -> None:
    assert check_mutator(name, groups=40)


def test_every_space_has_several_mutators() -> None:
    for name, where in zoo():
        if where.mutable:
            usable = [m for m in OWN if MUTATORS[m]().targets(where)]
            assert len(usable) >= 4, (name, usable)


def test_names_are_documented_classes() -> None:
    for name in OWN:
        assert MUTATORS[name].__doc__, name
        assert name == name.lower()


def test_zoo_seeds_are_legal() -> None:
    for name, where in zoo():
        seeds = sample(where, 5)
        assert where.legal(seeds, where.anchors(seeds)).all(), name


# ---------------------------------------------------------------------- the check itself


class Broken(Mutator):
    """Adds 1/8, and does one thing that is forbidden."""

    name: ClassVar[str] = "broken"
    sin: ClassVar[str] = ""

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        x = batch["x"]
        if self.sin == "nothing":
            return
        x.add_(0.125)
        if self.sin == "torch":
            x.add_(torch.rand(()))
        elif self.sin == "numpy":
            x.add_(float(np.random.rand()))
        elif self.sin == "shape":
            batch["x"] = x[:, :2].contiguous()
        elif self.sin == "rows":
            batch["x"] = x[:1].clone()
        elif self.sin == "fixed":
            batch["y"].add_(1)
        elif self.sin == "nan":
            x[0, 0] = float("nan")
        elif self.sin == "memory":
            Broken.calls += 1
            x.sub_(0.01 * Broken.calls)
        elif self.sin == "pool":
            ctx.pool.normal((8,), torch.float32, np.random.default_rng(0)).mul_(0)

    calls: ClassVar[int] = 0
    keeps_finite: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("sin", "said"),
    [
        ("nothing", "changed nothing"),
        ("torch", "global generator"),
        ("numpy", "global generator"),
        ("shape", "became"),
        ("rows", "rows instead of"),
        ("fixed", "fixed input y"),
        ("nan", "NaN in x"),
        ("memory", "differs between two runs"),
        ("pool", "noise pool"),
    ],
)
def test_broken_mutators_are_caught(sin: str, said: str) -> None:
    broken = type("Broken", (Broken,), {"sin": sin})
    where = space(spec("x", 4), spec("y", 3, fixed=True))
    with pytest.raises(AssertionError, match=said):
        check_mutator(broken, where)


def test_a_good_one_passes_unregistered() -> None:
    assert check_mutator(Broken, space(spec("x", 4))) == ["the given space"]
    assert "broken" not in MUTATORS
