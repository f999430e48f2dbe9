"""The official cases of the onnx package, for every operator that is built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from onnx_conformance import Result, cases, run_case, whole_models

KNOWN = {
    # torch's inverse transform gives 0 where the reference gives 1.9e-7; the tolerance there is 1e-7.
    "test_dft_inverse",
    "test_dft_inverse_opset19",
    # The reference spreads the corners over a length that is not a whole number; ONNX Runtime agrees with us.
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
}
"""Cases that fail, and why."""


def _judge(results: list[Result]) -> None:
    failed = {r.name: r.why for r in results if r.outcome == "failed"}
    surprising = {name: why for name, why in failed.items() if name not in KNOWN}
    assert not surprising
    runnable = [r for r in results if r.outcome != "unsupported"]
    assert len(failed) <= 0.05 * len(runnable)


def test_cases_of_one_node() -> None:
    results = [run_case(case) for case in cases() if len(case.model.graph.node) == 1]
    _judge(results)
    assert sum(r.outcome == "passed" for r in results) > 1300


@pytest.mark.slow
def test_cases_of_several_nodes_and_whole_models() -> None:
    results = [run_case(case) for case in (*cases(), *whole_models()) if len(case.model.graph.node) > 1]
    _judge(results)
    assert sum(r.outcome == "passed" for r in results) > 400


def test_a_wrong_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnfuzz.onnx.ops import OPERATORS

    case = next(c for c in cases() if c.name == "test_relu")
    assert run_case(case).outcome == "passed"
    monkeypatch.setitem(OPERATORS, ("", "Relu"), lambda call, x: x)
    assert run_case(case).outcome == "failed"
