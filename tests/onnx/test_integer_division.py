"""A division of integers by zero: the remedy is one that integers can hold, and the repaired graph runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from graphs import INT64, model, node, value
from torch import Tensor

import nnfuzz
import nnfuzz.onnx
from onnx import ModelProto, TensorProto, save

INT32 = TensorProto.INT32
LIMITS: dict[str, Any] = {"max_inputs": 400, "max_seconds": None}


def divider(dtype: int) -> ModelProto:
    inputs = [value(n, "n", 3, dtype=dtype) for n in "ab"]
    return model([node("Div", "a b", "y", "d")], inputs, [value("y", "n", 3, dtype=dtype)])


def seeds(dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {n: torch.randint(1, 9, (4, 3), generator=g).to(dtype) for n in "ab"}


def explained(of: Any, dtype: torch.dtype, low: int, place: Path) -> tuple[str, Any]:
    run = nnfuzz.find_nans(of, seeds(dtype), ranges={"a": (0, 9), "b": (low, 9)}, **LIMITS)
    (finding,) = run.findings
    return nnfuzz.explain(finding.save(place), model=of), finding


@pytest.mark.parametrize(("code", "dtype", "low"), [(INT32, torch.int32, 0), (INT64, torch.int64, -5)])
def test_of_a_graph(code: int, dtype: torch.dtype, low: int, tmp_path: Path) -> None:
    save(divider(code), str(tmp_path / "m.onnx"))
    said, finding = explained(nnfuzz.onnx.load(tmp_path / "m.onnx"), dtype, low, tmp_path / "f")
    assert "divide by 1 where the denominator, an integer, is 0" in said
    assert "1e-12" not in said
    assert "written: fixed.onnx, with div.integer" in said
    session = onnxruntime.InferenceSession(str(tmp_path / "f/fixed.onnx"), providers=["CPUExecutionProvider"])
    a, b = (finding.inputs[n] for n in "ab")
    expected = torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc")
    (y,) = session.run(None, {"a": a.numpy(), "b": b.numpy()})
    assert torch.equal(torch.from_numpy(y), expected.to(dtype))


def truncated(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def floored(a: Tensor, b: Tensor) -> Tensor:
    return a // b


@pytest.mark.parametrize("of", [truncated, floored])
def test_of_code(of: Any, tmp_path: Path) -> None:
    said, _ = explained(of, torch.int32, 0, tmp_path / "f")
    assert "1. divide by 1 where the denominator, an integer, is 0" in said
    assert "in place of the denominator" in said
    assert "1e-12" not in said
