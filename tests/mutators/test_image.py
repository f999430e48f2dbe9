"""Image mutators see the same picture in every layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nnfuzz.mutators import MUTATORS
from nnfuzz.mutators.zoo import space, spec
from nnfuzz.space import Batch

Grow = Callable[..., list[Batch]]
IMAGE = [n for n in MUTATORS if n.startswith("image-")]


@pytest.mark.parametrize("name", ["image-blur", "image-shift", "image-rotate", "image-tone"])
def test_layouts_agree(name: str, grow: Grow) -> None:
    """A one-channel picture as HW, CHW, HWC and in a batch of its own: one result, four shapes."""
    picture = torch.rand(4, 9, 8)
    shapes = {"HW": (9, 8), "CHW": (1, 9, 8), "HWC": (9, 8, 1), "NCHW": (1, 1, 9, 8)}
    results = {}
    for layout, shape in shapes.items():
        where = space(spec("x", *shape, low=0.0, high=1.0))
        batches = grow(name, where, 6, parents={"x": picture.reshape(4, *shape)})
        results[layout] = torch.stack([b["x"].reshape(4, 9, 8) for b in batches])
    for layout in shapes:
        assert torch.allclose(results[layout], results["HW"]), layout


def test_a_shift_moves_values_and_makes_none(grow: Grow) -> None:
    where = space(spec("x", 1, 8, 8, low=0.0, high=1.0))
    parents = {"x": torch.rand(2, 1, 8, 8)}
    for b in grow("image-shift", where, 20, parents=parents):
        for row in range(2):
            assert torch.isin(b["x"][row], parents["x"][row]).all()


def test_a_patch_is_a_rectangle(grow: Grow) -> None:
    where = space(spec("x", 10, 10, low=-1.0, high=1.0))
    parents = {"x": torch.full((8, 10, 10), 0.3)}
    changed = 0
    for b in grow("image-patch", where, 20, parents=parents):
        for at in b["x"] != 0.3:
            if at.any():
                box = at.any(1)[:, None] & at.any(0)[None]
                changed += 1
                assert (at == box).double().mean() > 0.98  # noise may hit the old value
    assert changed > 80


def test_blur_keeps_flat_pictures_and_smooths_others(grow: Grow) -> None:
    where = space(spec("x", 8, 8, low=0.0, high=1.0))
    for b in grow("image-blur", where, 5, parents={"x": torch.full((4, 8, 8), 0.5)}):
        assert torch.allclose(b["x"], torch.tensor(0.5))
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2 * 1.0
    spread = torch.cat(
        [b["x"].flatten(1).std(1) for b in grow("image-blur", where, 20, parents={"x": board.expand(4, 8, 8)})]
    )
    assert spread.min() < 0.3


@pytest.mark.parametrize("name", IMAGE)
def test_vectors_are_no_pictures(name: str) -> None:
    assert MUTATORS[name]().targets(space(spec("x", 784))) == []
    assert MUTATORS[name]().targets(space(spec("x", 28, 28, dtype=torch.int64, low=0, high=9, kind="integer"))) == []
