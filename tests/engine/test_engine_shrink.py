"""The shrinker: legal, never farther, still failing, within its budget."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.findings.shrink import Shrinker
from nnfuzz.space import InputSpace, InputSpec


@given(st.integers(0, 10_000), st.sampled_from(["real", "integer", "boxes"]), st.integers(1, 600), st.booleans())
def test_shrinking(seed: int, kind: str, budget: int, fixed: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(-4.0), torch.tensor(4.0)
    x = InputSpec("x", (2, 4), torch.float32, low, high, kind=kind)
    y = InputSpec("y", (3,), torch.float32, low, high, fixed=fixed)
    space = InputSpace({"x": x, "y": y})
    first = {"x": torch.rand(2, 2, 4, generator=g) * 8 - 4, "y": torch.rand(2, 3, generator=g) * 8 - 4}
    anchor = space.anchors({n: t[:1] for n, t in first.items()})
    start = space.project({n: t[1:].clone() for n, t in first.items()}, anchor)
    if fixed:
        start["y"] = anchor.values["y"].clone()
    legal_seed = space.project({n: t.clone() for n, t in anchor.values.items()}, anchor)
    anchor = space.anchors(legal_seed)
    level = float(start["x"].abs().sum()) * 0.8
    asked = 0

    def fails(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        nonlocal asked
        asked += len(batch["x"])
        assert bool(space.legal(batch, anchor.take(torch.zeros(len(batch["x"]), dtype=torch.long))).all())
        return batch["x"].flatten(1).abs().sum(1) >= level

    shrinker = Shrinker(space, anchor, fails, budget)
    small = shrinker.shrink({n: t.clone() for n, t in start.items()})
    assert asked == shrinker.tried <= budget
    assert float(small["x"].abs().sum()) >= level - 1e-4
    for n in start:
        assert (small[n] - anchor.values[n]).abs().max() <= (start[n] - anchor.values[n]).abs().max() + 1e-6
    if fixed:
        assert torch.equal(small["y"], anchor.values["y"])
