"""Fuzzing ONNX models: what runs where, what is a candidate, what a finding knows, black boxes, determinism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from target_zoo import FLOAT, black_box, classifier, guarded_by, log_of_softmax, model, node, recurrent, saved, weight
from torch import Tensor

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.jobs import NanJob
from nnfuzz.onnx.ops.registry import OPERATORS
from nnfuzz.onnx.target import OnnxTarget
from nnfuzz.settings import Settings
from nnfuzz.space import rows
from nnfuzz.targets import Want

WIDE = {"ranges": (-10, 10), "max_inputs": 800, "max_seconds": 20}


def prepared(made: onnx.ModelProto, seeds: Any, **settings: Any) -> NanJob:
    job = NanJob(Settings(**settings), nnfuzz.onnx.load(made), seeds)
    job.prepare()
    return job


def side_of(job: NanJob) -> OnnxTarget:
    assert isinstance(job.side, OnnxTarget)
    return job.side


def states(count: int) -> dict[str, Tensor]:
    return {
        "x": torch.randn(count, 1, 4), "state": torch.randn(count, 2, 1, 3), "rate": torch.tensor(16000),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------- candidates


def test_a_free_first_axis_is_one_of_rows() -> None:
    side = side_of(prepared(classifier(), torch.randn(6, 6)))
    assert (side.unit, side.drive) == ("sample", "rows")
    assert [t.value for t in side.layer_taps] == ["r"]  # what the last parametric node reads
    assert side.notes == []


def test_a_fixed_batch_of_one_works_without_any_option() -> None:
    run = nnfuzz.find_nans(log_of_softmax_of_one(), torch.rand(8, 6) * 2 - 1, **WIDE)
    (finding,) = run.findings
    assert finding.inputs["x"].shape == (1, 6)
    assert run.stats.unit == "batch"
    assert any("fixes its first axis to 1" in note for note in run.notes)


def log_of_softmax_of_one() -> onnx.ModelProto:
    made = log_of_softmax()
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return made


def test_candidates_with_other_batch_axes_run_together() -> None:
    job = prepared(recurrent(), states(5))
    side = side_of(job)
    assert side.axes is not None
    assert side.axes.inputs == {"x": 0, "state": 1, "rate": None}
    assert side.axes.outputs == {"y": 0, "next": 1}
    batch = {**job.seeds.groups[0].batch, "rate": torch.tensor([16000, 8000, 16000, 8000, 4000])}
    together = side.run(batch, Want(layers=False)).outputs
    for i in range(5):
        alone = side.onnx.run({n: t[i] for n, t in batch.items()})
        assert all(torch.allclose(together[n][i], t, atol=1e-6) for n, t in alone.items())
    calls = []
    real = side.onnx.run
    side.onnx.run = lambda inputs, extra=(): (calls.append(inputs["x"].shape), real(inputs, extra))[1]  # type: ignore
    side.run(batch, Want(layers=False))
    assert sorted(calls) == [(1, 4), (2, 4), (2, 4)]


def test_rows_that_depend_on_one_another_are_not_joined() -> None:
    """The mean over the batch axis: joined runs give something else than single ones."""
    nodes = [
        node("ReduceMean", ["s"], ["m"], axes=[1], keepdims=1),
        node("Sub", ["s", "m"], ["d"]),
        node("Add", ["d", "x"], ["y"]),
    ]
    made = model(nodes, [("x", FLOAT, ["b", 3]), ("s", FLOAT, [2, "b", 3])], [("y", FLOAT, [2, "b", 3])])
    side = side_of(prepared(made, {"x": torch.randn(4, 1, 3), "s": torch.randn(4, 2, 1, 3)}))
    assert side.axes is None
    assert side.drive in ("loop", "vmap")


@pytest.mark.parametrize("optimisation", ["none", "basic", "extended", "all"])
def test_taps_leave_the_outputs_as_they_are(optimisation: str) -> None:
    nodes = [
        node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["a"]),
        node("GlobalAveragePool", ["a"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w", "bias"], ["y"]),
    ]
    weights = {n: np.abs(weight(4, seed=i)) + 1 for i, n in enumerate("sbmv")}
    weights |= {"k": weight(4, 3, 3, 3), "w": weight(4, 3), "bias": weight(3)}
    made = model(nodes, [("x", FLOAT, ["n", 3, 8, 8])], [("y", FLOAT, ["n", 3])], weights)
    loaded = nnfuzz.onnx.load(made, optimisation=optimisation)
    job = NanJob(Settings(), loaded, torch.randn(6, 3, 8, 8))
    job.prepare()
    side = side_of(job)
    assert [t.value for t in side.layer_taps] == ["f"]
    batch = {"x": torch.randn(9, 3, 8, 8)}
    assert torch.equal(side.run(batch, Want()).outputs["y"], loaded(batch["x"])["y"])
    side.chunk = 2
    assert torch.allclose(side.run(batch, Want()).outputs["y"], loaded(batch["x"])["y"], atol=1e-6)


def test_parts_whose_results_do_not_fit_together_go_on_one_by_one() -> None:
    side = side_of(prepared(log_of_softmax(), torch.rand(6, 6)))
    batch = {"x": torch.rand(9, 6)}
    plain = side.run(batch, Want()).outputs
    side.chunk = 2
    fast = side.run(batch, Want()).outputs
    side.onnx.run_rows = lambda *_: None  # type: ignore[method-assign]
    slow = side.run(batch, Want()).outputs
    for name, t in plain.items():
        assert torch.allclose(fast[name], t, atol=1e-6)
        assert torch.equal(slow[name], fast[name])


def test_layers_by_node_and_by_value() -> None:
    for pattern, labels in (("fc*", ["fc1", "fc2"]), ("r", ["relu"]), ("relu,h", ["fc1", "relu"])):
        side = side_of(prepared(classifier(), torch.randn(6, 6), layers=pattern.split(",")))
        assert list(side.layer_shapes()) == [lab for lab in labels if lab != "fc2"] or pattern == "fc*"
        trace = side.run({"x": torch.randn(2, 6)}, Want())
        assert set(trace.layers) >= {lab for lab in labels if lab != "fc2"}
    with pytest.raises(UsageError, match=r"no node and no value of zoo matches --layers zz\*: the nodes are fc1, relu"):
        prepared(classifier(), torch.randn(6, 6), layers=["zz*"])


# --------------------------------------------------------------------------------------------------- findings


def test_a_finding_knows_its_node_and_onnx_runtime_has_the_last_word(tmp_path: Path) -> None:
    path = saved(log_of_softmax(), tmp_path / "m.onnx")
    run = nnfuzz.find_nans(str(path), torch.rand(8, 6) * 2 - 1, **WIDE)
    (finding,) = run.findings
    assert (finding.symptom, finding.phase, finding.status) == ("+inf", "forward", "confirmed")
    assert finding.site is not None
    assert (finding.site.op, finding.site.module, finding.site.source) == ("log", "take_log", "Log(p) -> lp")
    assert finding.details["node"] == {"name": "take_log", "operator": "Log", "reads": ["p"], "gives": ["lp"]}
    assert finding.details["run"]["model"] == str(path)
    assert nnfuzz.onnx.load(path)(finding.inputs["x"])["loss"].isinf().any()
    assert run.stats.inputs <= 800


def test_the_same_seed_gives_the_same_findings() -> None:
    def found() -> list[Any]:
        run = nnfuzz.find_nans(log_of_softmax(), torch.rand(8, 6) * 2 - 1, seed=3, **WIDE)
        return [(f.cause, f.inputs["x"].tolist(), f.inputs_tried) for f in run.findings]

    torch.manual_seed(1)
    first = found()
    torch.manual_seed(1)
    assert first == found()
    assert first


@pytest.mark.parametrize(("op", "low"), [("Log", 0.1), ("Div", 0.1), ("Sqrt", 0.1), ("Exp", 80.0), ("Pow", 0.1)])
def test_gradients_lead_to_the_edge_of_operators(op: str, low: float) -> None:
    seeds = torch.full((4, 4), low) + torch.rand(4, 4)
    ranges = (low - 2, low + 10)
    run = nnfuzz.find_nans(guarded_by(op), seeds, ranges=ranges, stop_on_first=True, max_inputs=3000, max_seconds=20)
    assert [f.details["node"]["operator"] for f in run.findings] == [op]


def test_gradients_are_nobodys_unless_asked_for() -> None:
    """sqrt(x²) is finite at 0, its gradient is not."""
    nodes = [node("Mul", ["x", "x"], ["sq"]), node("Sqrt", ["sq"], ["y"])]
    made = model(nodes, [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])
    seeds = torch.rand(4, 2) + 0.5
    assert not nnfuzz.find_nans(made, seeds, ranges=(-1, 2), max_inputs=600).findings
    (finding,) = nnfuzz.find_nans(made, seeds, ranges=(-1, 2), phase="backward", max_inputs=2000).findings
    assert (finding.phase, finding.site and finding.site.module) == ("backward", "y")


def test_watch_layers_sees_what_vanishes_again() -> None:
    """1 / exp(x): exp overflows, and its reciprocal is 0."""
    nodes = [node("Exp", ["x"], ["e"], "grow"), node("Reciprocal", ["e"], ["y"], "shrink")]
    made = model(nodes, [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])
    seeds = torch.rand(4, 2)
    quiet = {"ranges": (0, 100), "max_inputs": 400}
    assert not nnfuzz.find_nans(made, seeds, **quiet).findings
    for watch in ("layers", "internal"):
        (finding,) = nnfuzz.find_nans(made, seeds, watch=watch, **quiet).findings
        assert finding.symptom == "+inf"
        assert finding.details["node"]["name"] == "grow"
        assert finding.details["node"]["gives"] == ["e"]


def test_masks_by_design_are_none_inside() -> None:
    nodes = [
        node("Where", ["m", "x", "low"], ["masked"], "mask"),
        node("Softmax", ["masked"], ["y"], "soft", axis=1),
    ]
    inputs = [("x", FLOAT, ["n", 3]), ("m", onnx.TensorProto.BOOL, [1, 3])]
    made = model(nodes, inputs, [("y", FLOAT, ["n", 3])], {"low": np.array(-np.inf, np.float32)})
    seeds = {"x": torch.randn(6, 1, 3), "m": torch.tensor([[[True, True, False]]] * 6)}
    run = nnfuzz.find_nans(made, seeds, watch="internal", fixed=["m"], ranges={"x": (-5, 5)}, max_inputs=400)
    assert not run.findings


def test_a_model_that_refuses_a_mutant_is_a_finding() -> None:
    """ONNX Runtime refuses an index out of range; the message has no numbers in its cause."""
    nodes = [node("Gather", ["table", "i"], ["e"], "look_up"), node("ReduceSum", ["e"], ["y"], keepdims=0)]
    made = model(nodes, [("i", onnx.TensorProto.INT64, [2])], [("y", FLOAT, [])], {"table": weight(5, 2)})
    run = nnfuzz.find_nans(made, [torch.tensor([0, 1]), torch.tensor([4, 2])], ranges=(-9, 9), max_inputs=400)
    (finding,) = run.findings
    assert finding.symptom == "exception"
    assert "indices element out of data bounds" in finding.cause


# ------------------------------------------------------------------------------- the interpreter and the runtime


def test_a_black_box_is_fuzzed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPERATORS, ("com.microsoft", "BiasGelu"))
    run = nnfuzz.find_nans(black_box(), torch.rand(8, 6) * 2 - 1, **WIDE)
    (finding,) = run.findings
    assert finding.site is None
    assert finding.notes == ["no operation is named: the graph cannot be looked into"]
    assert "com.microsoft.BiasGelu of opset 1" in run.notes[0]
    assert "fuzzed as a black box, without gradients and places" in run.notes[0]
    assert "gradient" not in run.stats.yields
    with pytest.raises(Unsupported, match="--watch internal looks into the graph, and zoo cannot be looked into"):
        nnfuzz.find_nans(black_box(), torch.rand(8, 6), watch="internal", **WIDE)


def wrong_operator(monkeypatch: pytest.MonkeyPatch, op: str, function: Any) -> None:
    monkeypatch.setitem(OPERATORS, ("", op), function)


def test_an_interpreter_that_differs_on_the_seeds_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_operator(monkeypatch, "Relu", lambda call, x: x.clamp(min=0) * 1.1)
    notes = side_of(prepared(classifier(), torch.randn(6, 6))).notes
    assert len(notes) == 1
    assert notes[0].startswith("the interpreter and ONNX Runtime differ on the seeds (scores: by ")


def test_an_interpreter_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Any, x: Tensor) -> Tensor:
        raise ValueError("no relu today")

    wrong_operator(monkeypatch, "Relu", broken)
    side = side_of(prepared(classifier(), torch.randn(6, 6)))
    assert not side.sees_inside
    assert "the interpreter fails on its seeds (ValueError: no relu today)" in side.notes[0]
    assert side.layer_taps


def test_failures_of_the_interpreter_alone_are_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Log that gives NaN beyond 5 in the interpreter: ONNX Runtime knows better."""
    made = guarded_by("Log")
    wrong_operator(monkeypatch, "Log", lambda call, x: torch.where(x > 5, torch.nan, x.log()))
    seeds = torch.rand(4, 4) + 1
    for watch in ("outputs", "internal"):
        run = nnfuzz.find_nans(made, seeds, ranges=(1, 10), watch=watch, max_inputs=800, max_seconds=20)
        assert not run.findings
    assert any("for inputs on which ONNX Runtime gives finite numbers: these are not counted" in n for n in run.notes)


def test_failures_that_the_interpreter_does_not_show_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_operator(monkeypatch, "Log", lambda call, x: x.clamp(min=1e-3).log())
    run = nnfuzz.find_nans(log_of_softmax(), torch.rand(8, 6) * 2 - 1, **WIDE)
    (finding,) = run.findings
    assert finding.site is None
    assert finding.notes == [
        "the interpreter gives finite numbers here, where ONNX Runtime does not: no operation can be named"
    ]


def test_options_that_make_no_sense() -> None:
    for more, said in (
        ({"train": True}, "which has no training mode"),
        ({"device": "meta"}, "an ONNX model runs where its provider does, not on meta: give --provider instead"),
    ):
        with pytest.raises(UsageError, match=said):
            nnfuzz.find_nans(classifier(), torch.randn(3, 6), **more)


def test_subnormals_can_be_flushed_inside_the_runtime() -> None:
    made = model(
        [node("Mul", ["x", "c"], ["y"]), node("Mul", ["y", "d"], ["z"])], [("x", FLOAT, ["n"])], [("z", FLOAT, ["n"])],
        {"c": np.array(1e-39, np.float32), "d": np.array(1e38, np.float32)},
    )  # fmt: skip
    loaded = nnfuzz.onnx.load(made)
    x = torch.ones(3)
    assert loaded(x)["z"].abs().min() > 0
    run = nnfuzz.fuzz(loaded, torch.rand(4) + 0.5, objective=lambda z, x: z == 0, flush_denormal=True, max_inputs=64)
    assert run.findings
    assert not nnfuzz.fuzz(loaded, torch.rand(4) + 0.5, objective=lambda z, x: z == 0, max_inputs=64).findings


def test_rows_and_properties() -> None:
    seeds = torch.rand(8, 6) * 2 - 1
    assert not nnfuzz.check_rows(classifier(), seeds, max_inputs=60).findings
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), node("Sub", ["x", "m"], ["y"])]
    mixing = model(nodes, [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])])
    assert nnfuzz.check_rows(mixing, seeds, max_inputs=60).findings

    def too_sure(outputs: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.amax(1) > 25, outputs.amax(1)

    (finding,) = nnfuzz.fuzz(classifier(), seeds, objective=too_sure, ranges=(-10, 10), max_inputs=2000).findings
    assert nnfuzz.onnx.load(classifier())(finding.inputs["x"])["scores"].max() > 25


def test_rows_of_a_trace_are_those_of_the_batch() -> None:
    side = side_of(prepared(classifier(), torch.randn(6, 6)))
    batch = {"x": torch.randn(7, 6)}
    whole = side.run(batch, Want())
    some = side.run(rows(batch, slice(2, 5)), Want())
    assert torch.allclose(whole.rows(slice(2, 5)).outputs["scores"], some.outputs["scores"], atol=1e-6)
    assert torch.allclose(whole.layers["relu"][2:5], some.layers["relu"], atol=1e-6)
