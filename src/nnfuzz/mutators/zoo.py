"""Small input spaces of every sort, for checking mutators, and legal seeds for any space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nnfuzz.kinds import KINDS
from nnfuzz.space import Batch, FreeDim, InputSpace, InputSpec

WHOLE = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8


def spec(
    name: str,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    low: Any = -1.0,
    high: Any = 1.0,
    **more: Any,
) -> InputSpec:
    """An ``InputSpec`` with bounds given as numbers or lists."""
    if "choices" in more:
        more["choices"] = torch.tensor(more["choices"], dtype=dtype)
        low, high = more["choices"].amin().item(), more["choices"].amax().item()
    low, high = torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype)
    return InputSpec(name, shape, dtype, low, high, **more)


def space(*specs: InputSpec, **more: Any) -> InputSpace:
    return InputSpace({s.name: s for s in specs}, **more)


def sample(spaces: InputSpace, rows: int, seed: int = 0) -> Batch:
    """Legal candidates, uniform in their ranges: ``(rows, *shape)`` each."""
    generator = torch.Generator().manual_seed(seed)
    batch = {s.name: _sample(s, rows, generator) for s in spaces}
    return batch if spaces.constraint is None else spaces.constraint(batch)


def _sample(spec: InputSpec, rows: int, generator: torch.Generator) -> Tensor:
    share = torch.rand(rows, *spec.shape, generator=generator, dtype=torch.float64)
    if spec.dtype == torch.bool:
        return share < 0.5
    low, high = spec.low.double(), spec.high.double()
    value = low * (1 - share) + high * share  # as high − low may overflow
    value = value.round() if not spec.dtype.is_floating_point else value
    return KINDS[spec.kind].project(value.clamp(low, high).to(spec.dtype), spec)


def zoo() -> Iterator[tuple[str, InputSpace]]:
    """(description, space) pairs: dtypes, ranges, kinds, eps-balls, images, free dimensions, several inputs."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        top = torch.finfo(dtype).max
        yield f"{kind} vector", space(spec("x", 5, dtype=dtype))
        yield f"{kind} whole range", space(spec("x", 3, 4, dtype=dtype, low=-top, high=top))
        yield f"{kind} eps", space(spec("x", 4, 6, dtype=dtype, eps=0.1))
        yield f"{kind} per element", space(spec("x", 2, 3, dtype=dtype, low=[-1, 0, 5], high=[1, 0, 500]))
    for dtype in WHOLE:
        info = torch.iinfo(dtype)
        yield f"{dtype} few", space(spec("x", 6, dtype=dtype, low=0, high=9, kind="integer"))
        yield f"{dtype} whole range", space(spec("x", 2, 3, dtype=dtype, low=info.min, high=info.max))
    yield "integer eps", space(spec("x", 3, 4, dtype=torch.uint8, low=0, high=255, kind="integer", eps=3))
    yield "whole numbers in float", space(spec("x", 3, 4, low=-9, high=9, kind="integer"))
    yield "non-negative", space(spec("x", 3, 3, low=0.0, high=10.0))
    yield "negative", space(spec("x", 3, 3, low=-10.0, high=-0.5))
    yield "tiny range", space(spec("x", 4, low=1.0, high=1.0 + 2**-20))
    whole = spec("n", dtype=torch.int64, low=0, high=7, kind="integer")
    yield "scalar", space(spec("x"), whole, spec("b", dtype=torch.bool))
    yield "one element", space(spec("x", 1), spec("y", 1, 1))
    yield "empty axis", space(spec("x", 3, 0), spec("y", 2))
    yield "bool", space(spec("x", 4, 5, dtype=torch.bool, kind="bool"))
    yield (
        "choices",
        space(
            spec("x", 4, dtype=torch.int64, choices=[-100, 0, 1, 2, 3], kind="choice"),
            spec("m", 2, 3, choices=[0.0, 1.0], kind="mask"),
            spec("h", 3, dtype=torch.float16, choices=[-65504.0, 0.0], kind="mask"),
        ),
    )
    yield "one choice", space(spec("x", 4, choices=[2.0], kind="choice"), spec("y", 3))
    yield (
        "one-hot",
        space(
            spec("y", 5, kind="onehot", low=0, high=1),
            spec("z", 3, 4, kind="onehot", low=0, high=1, dtype=torch.int64),
            spec("x", 5),
        ),
    )
    yield "simplex", space(spec("p", 4, kind="simplex", low=0, high=1), spec("q", 3, 6, kind="simplex", low=0, high=1))
    yield "simplex half eps", space(spec("p", 9, kind="simplex", low=0, high=1, dtype=torch.float16, eps=0.05))
    yield "unit", space(spec("u", 4, kind="unit"), spec("v", 5, 3, kind="unit", dtype=torch.float64))
    yield "unit bfloat16", space(spec("u", 2, 3, kind="unit", dtype=torch.bfloat16))
    yield (
        "boxes",
        space(spec("a", 3, 4, kind="boxes", low=0.0, high=10.0), spec("b", 3, 4, kind="boxes", low=0.0, high=10.0)),
    )
    yield "boxes per element", space(spec("a", 4, kind="boxes", low=[5, 0, 0, 0], high=[20, 9, 30, 9]))
    yield "boxes eps", space(spec("a", 2, 4, kind="boxes", low=0.0, high=10.0, eps=0.5))
    yield "image HW", space(spec("x", 8, 9, low=0.0, high=1.0))
    yield "image CHW half", space(spec("x", 3, 8, 8, low=0.0, high=255.0, dtype=torch.float16))
    yield "image HWC", space(spec("x", 6, 7, 3, low=[0, 0, 0], high=[1, 2, 3]))
    yield "image batch eps", space(spec("x", 2, 1, 6, 6, low=0.0, high=1.0, eps=0.3))
    yield "matrix", space(spec("a", 3, 3, low=-5, high=5), spec("b", 2, 3, 5, dtype=torch.float64))
    yield (
        "several",
        space(
            spec("x", 4, 3, low=-8, high=8, dtype=torch.float16),
            spec("y", 4, 3, low=0, high=1),
            spec("w", 3, low=0.0, high=2.0),
            spec("label", 4, dtype=torch.int64, low=0, high=2, kind="integer"),
            spec("mask", 4, dtype=torch.bool),
            spec("t", 4, 3, fixed=True),
        ),
    )
    n, m = FreeDim("n", 0, 12), FreeDim("m", 1)
    yield "free", space(spec("x", 5, 3, dims=(n, 3)))
    yield (
        "free shared",
        space(
            spec("x", 4, 3, dims=(n, 3)),
            spec("a", 4, 4, dims=(n, n)),
            spec("label", 4, dtype=torch.int64, low=0, high=2, kind="integer", dims=(n,)),
            spec("keep", 4, fixed=True, dims=(n,)),
            spec("p", 2, 6, kind="simplex", low=0, high=1, dims=(2, m)),
        ),
    )
    yield "free per element", space(spec("x", 3, low=[0, 0, 0], high=[1, 2, 3], dims=(m,)), spec("y", 4, dims=(n,)))
    yield "constraint", space(spec("x", 6), spec("y", 3, 2), constraint=_centred)


def _centred(batch: Batch) -> Batch:
    """A user's own rule: the mean of x is zero."""
    x = batch["x"]
    half = x[:, :3]
    return {**batch, "x": torch.cat([half, -half.flip(1)], 1)}
