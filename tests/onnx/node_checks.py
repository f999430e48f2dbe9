"""What the tests of convolutions, pools, recurrent nodes and their like share: official cases, draws, gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from ops_harness import official_cases, ours, to_numpy, to_torch

import onnx

Array = np.ndarray[Any, Any]
Case = tuple[dict[str, Array | None], dict[str, Any]]
"""Inputs and attributes of a node."""


def check_official(op: str, besides: Iterable[str] = ()) -> None:
    """Every official one-node case of an operator but those named: shape, element type and values."""
    cases = [case for case in official_cases(op) if case.name not in set(besides)]
    assert cases
    for case in cases:
        names = case.model.graph.node[0].output
        for inputs, wanted in case.data_sets:
            feeds = {i.name: to_torch(a) for i, a in zip(case.model.graph.input, inputs, strict=True)}
            found = [value for value, name in zip(ours(case.model, feeds), names, strict=False) if name]
            for value, want in zip(found, map(to_torch, wanted), strict=True):
                assert value.dtype == want.dtype, case.name
                # Results in half precision differ by how often the way to them was rounded.
                narrow = value.dtype in (torch.float16, torch.bfloat16)
                rtol = 2 * torch.finfo(value.dtype).eps if narrow else case.rtol
                np.testing.assert_allclose(
                    to_numpy(value), to_numpy(want), rtol=rtol, atol=case.atol, strict=True, err_msg=case.name
                )


def numbers(draw: Any, *shape: int, scale: float = 1.0) -> Array:
    """A drawn array of normal float32 numbers."""
    return (np.random.default_rng(draw(st.integers(0, 2**16))).normal(size=shape) * scale).astype(np.float32)


def each(draw: Any, n: int, low: int, high: int) -> list[int]:
    """One drawn number an axis."""
    return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))


def check_gradient(model: onnx.ModelProto, **inputs: Array | torch.Tensor) -> None:
    """First output's gradients with respect to floating inputs are those of finite differences, in float64."""
    given = {name: torch.as_tensor(a) for name, a in inputs.items()}
    wide = {n: t.double().clone().requires_grad_() if t.is_floating_point() else t for n, t in given.items()}
    names = [n for n, t in wide.items() if t.requires_grad]

    def run(*values: torch.Tensor) -> torch.Tensor:
        found = ours(model, {**wide, **dict(zip(names, values, strict=True))})
        assert isinstance(found[0], torch.Tensor)
        return found[0]

    assert torch.autograd.gradcheck(run, [wide[n] for n in names], fast_mode=True)
