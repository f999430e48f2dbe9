"""Repairs of a graph: each rule on the pattern it is for, beside ONNX Runtime; and explain, which writes the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from target_zoo import FLOAT, HALF, Array, log_of_softmax, model, node, saved, weight

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.advice.advise import Proposal
from nnfuzz.advice.patching import Repair
from nnfuzz.advice.remedy import REMEDIES
from nnfuzz.advice.verify import Check, Verification
from nnfuzz.onnx.fix import CannotFix, rewritten, write_fixed
from nnfuzz.onnx.rewrites import RULES
from nnfuzz.probe.sites import Site


def graph_of(*nodes: onnx.NodeProto, opset: int = 17, dtype: int = FLOAT, **weights: Array) -> onnx.ModelProto:
    """x [n, 4] → y, the last node's result."""
    shape = ["n", None] if nodes[-1].op_type in ("Log", "ReduceSum") else ["n", 4]
    return model(nodes, [("x", dtype, ["n", 4])], [("y", dtype, shape)], weights, opset)


def one(value: float = 1.0) -> Array:
    return np.array(value, np.float32)


AXES = np.array([1])
FINITE = np.array([[0.5, 1.5, 2.5, 0.75]], np.float32)


def exp_over_sum(opset: int) -> onnx.ModelProto:
    if opset >= 13:
        total, weights = node("ReduceSum", ["e", "axes"], ["s"], keepdims=1), {"axes": AXES}
    else:
        total, weights = node("ReduceSum", ["e"], ["s"], axes=[1], keepdims=1), {}
    return graph_of(node("Exp", ["x"], ["e"]), total, node("Div", ["e", "s"], ["y"]), opset=opset, **weights)


CASES: dict[str, tuple[str, Callable[[], onnx.ModelProto], str, list[float]]] = {
    "log.clamp": ("log.clamp", lambda: graph_of(node("Log", ["x"], ["y"])), "y", [0, 1, 2, 3]),
    "softmax": (
        "log.softmax",
        lambda: graph_of(node("Softmax", ["x"], ["p"], axis=1), node("Log", ["p"], ["y"])), "y", [0, 500, 0, 0],
    ),
    "old softmax": (
        "log.softmax",
        lambda: graph_of(node("Softmax", ["x"], ["p"], axis=1), node("Log", ["p"], ["y"]), opset=11),
        "y", [0, 500, 0, 0],
    ),
    "sigmoid": (
        "log.softmax",
        lambda: graph_of(node("Sigmoid", ["x"], ["p"]), node("Log", ["p"], ["y"])), "y", [-200, 0, 1, 2],
    ),
    "exp minus max": ("exp.softmax", lambda: exp_over_sum(17), "e", [0, 500, 0, 0]),
    "exp minus max, 18": ("exp.softmax", lambda: exp_over_sum(18), "e", [0, 500, 0, 0]),
    "exp minus max, 11": ("exp.softmax", lambda: exp_over_sum(11), "e", [0, 500, 0, 0]),
    "logsumexp": (
        "exp.logsumexp",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("ReduceSum", ["e", "axes"], ["s"], keepdims=1),
                         node("Log", ["s"], ["y"]), axes=AXES), "e", [0, 500, 0, 0],
    ),
    "logsumexp, 18": (
        "exp.logsumexp",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("ReduceSum", ["e", "axes"], ["s"], keepdims=1),
                         node("Log", ["s"], ["y"]), axes=AXES, opset=18), "e", [0, 500, 0, 0],
    ),
    "softplus": (
        "exp.softplus",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("Add", ["e", "one"], ["a"]), node("Log", ["a"], ["y"]),
                         one=one()), "e", [0, 500, 0, 0],
    ),
    "sigmoid of minus": (
        "exp.sigmoid",
        lambda: graph_of(node("Neg", ["x"], ["m"]), node("Exp", ["m"], ["e"]), node("Add", ["one", "e"], ["a"]),
                         node("Div", ["one", "a"], ["y"]), one=one()), "e", [-500, 1, 2, 3],
    ),
    "sigmoid by reciprocal": (
        "exp.sigmoid",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("Add", ["one", "e"], ["a"]), node("Reciprocal", ["a"], ["y"]),
                         one=one()), "e", [500, 1, 2, 3],
    ),
    "sigmoid of exp": (
        "exp.sigmoid",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("Add", ["e", "one"], ["a"]), node("Div", ["e", "a"], ["y"]),
                         one=one()), "e", [0, 500, 0, 0],
    ),
    "tanh": (
        "exp.tanh",
        lambda: graph_of(node("Exp", ["x"], ["e"]), node("Neg", ["x"], ["m"]), node("Exp", ["m"], ["f"]),
                         node("Sub", ["e", "f"], ["u"]), node("Add", ["e", "f"], ["d"]),
                         node("Div", ["u", "d"], ["y"])),
        "e", [0, 500, 0, 0],
    ),
    "exp.clamp": ("exp.clamp", lambda: graph_of(node("Exp", ["x"], ["y"])), "y", [0, 500, 0, 0]),
    "sinh.clamp": ("sinh.clamp", lambda: graph_of(node("Sinh", ["x"], ["y"])), "y", [0, -500, 0, 0]),
    "div.guard": ("div.guard", lambda: graph_of(node("Div", ["one", "x"], ["y"]), one=one()), "y", [0, 1, 1, 1]),
    "reciprocal": ("div.guard", lambda: graph_of(node("Reciprocal", ["x"], ["y"])), "y", [0, 1, 1, 1]),
    "div.signed": ("div.signed", lambda: graph_of(node("Div", ["one", "x"], ["y"]), one=one()), "y", [0, -1, 1, 1]),
    "sqrt.floor": ("sqrt.floor", lambda: graph_of(node("Sqrt", ["x"], ["y"])), "y", [-1, 0, 1, 1]),
    "sqrt.inside": ("sqrt.inside", lambda: graph_of(node("Sqrt", ["x"], ["y"])), "y", [-1, 0, 1, 1]),
    "variance": (
        "sqrt.variance",
        lambda: graph_of(node("Sub", ["x", "one"], ["d"]), node("Add", ["d", "two"], ["s"]), node("Sqrt", ["s"], ["y"]),
                         one=one(0.25), two=one(1e-3)), "y", [-1, 1, 2, 3],
    ),
    "sqrt.exp": (
        "sqrt.exp", lambda: graph_of(node("Exp", ["x"], ["e"]), node("Sqrt", ["e"], ["y"])), "y", [0, 100, 0, 0],
    ),
    "pow.clamp": ("pow.clamp", lambda: graph_of(node("Pow", ["x", "h"], ["y"]), h=one(0.5)), "y", [-1, 0, 1, 1]),
    "bound.one": (
        "bound.one",
        lambda: graph_of(node("Mul", ["x", "s"], ["t"]), node("Atanh", ["t"], ["y"]), s=one(0.3)), "y", [5, -5, 0, 1],
    ),
    "bound.acosh": (
        "bound.acosh",
        lambda: graph_of(node("Add", ["x", "s"], ["t"]), node("Acosh", ["t"], ["y"]), s=one(1.0)), "y", [-3, 0, 1, 1],
    ),
    "saturate": (
        "saturate", lambda: graph_of(node("Mul", ["x", "x"], ["y"])), "y", [1e30, 1, 1, 1],
    ),
}  # fmt: skip
EPS = dict.fromkeys(("div.guard", "div.signed", "bound.one", "bound.acosh"), 1e-6)
VANISHES = ("sigmoid of minus", "sigmoid by reciprocal")
"""Where the infinity is gone again in the output, though the operation that made it is repaired."""


def proposal(remedy: str, path: str) -> Proposal:
    found = next(r for r in REMEDIES if r.id == remedy)
    site = Site("?", path, None, None, None, "forward")
    repair = Repair(site, found, EPS.get(remedy, 1e-8))
    passed = Verification([Check("inputs", True, ""), Check("seeds", True, "")])
    return Proposal(found, [repair], "", "", passed)


def answer(made: onnx.ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str) -> None:
    remedy, make, path, values = CASES[case]
    made, bad = make(), np.array([values], np.float32)
    assert np.isfinite(answer(made, bad)).all() == (case in VANISHES)
    fixed = rewritten(nnfuzz.onnx.load(made), proposal(remedy, path), torch.float32)
    assert fixed.changes
    onnx.checker.check_model(fixed.proto, full_check=True)
    assert np.isfinite(answer(fixed.proto, bad)).all()
    assert np.allclose(answer(fixed.proto, FINITE), answer(made, FINITE), rtol=1e-4, atol=1e-6)


def test_every_rule_is_a_remedy_and_has_a_case() -> None:
    assert set(RULES) <= {r.id for r in REMEDIES}
    apart = {"div.integer"}  # in test_integer_division
    assert {remedy for remedy, *_ in CASES.values()} | apart == set(RULES)


@pytest.mark.parametrize("remedy", sorted(set(RULES) - {"saturate"}))  # every node has a result that may be bounded
def test_rules_leave_other_surroundings_alone(remedy: str) -> None:
    made = graph_of(node("Mul", ["x", "x"], ["s"]), node("Relu", ["s"], ["y"]))
    with pytest.raises(CannotFix, match="is a Mul whose surroundings have another form than it needs"):
        rewritten(nnfuzz.onnx.load(made), proposal(remedy, "s"), torch.float32)


def test_half_precision_numbers_are_half() -> None:
    made = graph_of(node("Log", ["x"], ["y"]), dtype=HALF)
    found = proposal("log.clamp", "y")
    found.repairs[0].eps = 6.2e-5
    fixed = rewritten(nnfuzz.onnx.load(made), found, torch.float16)
    assert np.isfinite(answer(fixed.proto, np.zeros((1, 4), np.float16))).all()


def test_a_node_inside_a_branch() -> None:
    branch = onnx.helper.make_graph(
        [node("Log", ["x"], ["l"])], "then", [], [onnx.helper.make_tensor_value_info("l", FLOAT, ["n", 4])]
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["x"], ["m"])], "else", [], [onnx.helper.make_tensor_value_info("m", FLOAT, ["n", 4])]
    )
    nodes = [node("If", ["yes"], ["y"], "choose", then_branch=branch, else_branch=other)]
    made = model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], {"yes": np.array(True)})
    fixed = rewritten(nnfuzz.onnx.load(made), proposal("log.clamp", "choose.then_branch.l"), torch.float32)
    assert np.isfinite(answer(fixed.proto, np.zeros((1, 4), np.float32))).all()


def test_why_none_was_written(tmp_path: Path) -> None:
    loaded = nnfuzz.onnx.load(log_of_softmax())
    failing, seed = {"x": torch.full((1, 6), 10.0)}, {"x": torch.zeros(1, 6)}

    def told(*proposals: Proposal, seeds: Any = (seed,)) -> list[str]:
        return write_fixed(loaded, proposals, torch.float32, failing, list(seeds), tmp_path)

    assert told() == []
    assert told(proposal("half.island", "take_log")) == [
        "no fixed.onnx was written:", "  half.island: a graph cannot hold it"
    ]  # fmt: skip
    elsewhere = told(proposal("exp.clamp", "fc"), proposal("sqrt.floor", ""))
    assert elsewhere[1].startswith("  exp.clamp: the node fc is a MatMul whose surroundings")
    assert elsewhere[2] == "  sqrt.floor: it acts on no node of its own"
    harmless = proposal("saturate", "fc")
    assert "in ONNX Runtime the failing inputs still give non-finite numbers (loss)" in told(harmless)[1]
    rough = proposal("log.clamp", "take_log")
    rough.repairs[0].eps = 0.4
    assert "in ONNX Runtime it changes loss on the seeds by" in told(rough)[1]
    assert not (tmp_path / "fixed.onnx").exists()
    written = told(rough, proposal("log.softmax", "take_log"))
    assert written[:2] == [
        "written: fixed.onnx, with log.softmax:", "  node take_log: Log(p) of Softmax(logits) is LogSoftmax(logits)"
    ]  # fmt: skip
    assert (tmp_path / "fixed.onnx").exists()


def test_a_stable_form_may_differ_where_the_other_has_lost_its_digits(tmp_path: Path) -> None:
    """log of a probability of 1e-41, a subnormal number: of its logarithm hardly four digits are right."""
    made = graph_of(node("Softmax", ["x"], ["p"], axis=1), node("Log", ["p"], ["y"]))
    failing, seed = {"x": torch.tensor([[0.0, 500, 0, 0]])}, {"x": torch.tensor([[0.0, 102.6, 0, 0]])}
    loaded = nnfuzz.onnx.load(made)
    said = write_fixed(loaded, [proposal("log.softmax", "y")], torch.float32, failing, [seed], tmp_path)
    assert said[-1].endswith("1 differ more, and are nearer to float64 than before")


def test_explain_writes_the_repaired_graph_beside_the_finding(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(log_of_softmax(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    seeds = torch.rand(8, 6) * 2 - 1
    run = nnfuzz.find_nans(str(path), seeds, ranges=(-10, 10), max_inputs=1500, out=tmp_path / "run")
    place = tmp_path / "run" / "findings" / "F0001"
    said = nnfuzz.explain(place, inputs=200, seconds=0.5)
    assert "first bad node: Log in node take_log, -inf at" in said
    assert "written: fixed.onnx, with log.softmax:" in said
    assert "; 8 seeds and " in said  # one of them is the finding's own
    assert "torch.log_softmax(logits, dim)" not in said  # no line of Python is to be changed
    fixed = nnfuzz.onnx.load(place / "fixed.onnx")
    assert fixed(run.findings[0].inputs["x"])["loss"].isfinite().all()
    assert torch.allclose(fixed(seeds)["loss"], nnfuzz.onnx.load(path)(seeds)["loss"], rtol=1e-4)
    assert not nnfuzz.find_nans(fixed, seeds, ranges=(-10, 10), max_inputs=1500).findings


def test_a_black_box_is_explained_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from target_zoo import black_box

    from nnfuzz.onnx.ops.registry import OPERATORS

    monkeypatch.delitem(OPERATORS, ("com.microsoft", "BiasGelu"))
    path = saved(black_box(), tmp_path / "m.onnx")
    nnfuzz.find_nans(str(path), torch.rand(8, 6), ranges=(-10, 10), max_inputs=1500, out=tmp_path / "run")
    said = nnfuzz.explain(tmp_path / "run" / "findings" / "F0001")
    assert "is fuzzed as a black box" in said


def test_weights_stay_as_they_are() -> None:
    made = model(
        [node("MatMul", ["x", "w"], ["l"]), node("Log", ["l"], ["y"])], [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 2])], {"w": np.abs(weight(4, 2))},
    )  # fmt: skip
    fixed = rewritten(nnfuzz.onnx.load(made), proposal("log.clamp", "y"), torch.float32)
    assert [t.raw_data for t in made.graph.initializer] == [t.raw_data for t in fixed.proto.graph.initializer][:1]
    assert len(made.graph.node) == 2  # the model that was given is not changed


@pytest.mark.parametrize("readers", [1, 2])
def test_an_initializer_that_is_not_a_number_is_named_with_its_readers(tmp_path: Path, readers: int) -> None:
    twice = [node("Mul", ["x", "w.a"], ["h"], name="first"), node("Add", ["h", "w.a"], ["y"], name="second")]
    nodes = twice if readers == 2 else [node("Mul", ["x", "w.a"], ["y"], name="first")]
    path = saved(graph_of(*nodes, **{"w.a": np.array([1, np.nan, 2, 3], np.float32)}), tmp_path / "w.onnx")
    run = nnfuzz.find_nans(path, FINITE, max_inputs=8, out=tmp_path / "run")
    place = tmp_path / "run" / "findings" / run.findings[0].id
    read = "node first" if readers == 1 else "nodes first, second"
    said = f"the initializer 'w.a', read by {read}, holds NaN (1 of 4 values, the first at [1])"
    text = nnfuzz.explain(place)
    assert text.count(said) == 1, text
    assert "does not show" not in text
    assert said in (place / "README.md").read_text()


def test_a_graph_of_an_old_ir_version_is_repaired(tmp_path: Path) -> None:
    made = graph_of(node("Log", ["x"], ["y"]), opset=7)
    made.ir_version = 3
    fixed = rewritten(nnfuzz.onnx.load(saved(made, tmp_path / "old.onnx")), proposal("log.clamp", "y"), torch.float32)
    x = np.array([[0, 1, 2, 3]], np.float32)
    assert np.isfinite(answer(fixed.proto, x)).all()


def test_operands_of_an_exception_are_those_of_the_shrunk_input(tmp_path: Path) -> None:
    whole = onnx.TensorProto.INT64
    made = model(
        [node("Div", ["a", "x"], ["y"])], [("x", whole, ["n", 3])], [("y", whole, ["n", 3])], {"a": np.array([-6])}, 17
    )
    path = saved(made, tmp_path / "div.onnx")
    seeds = np.arange(1, 10, dtype=np.int64).reshape(3, 3)
    run = nnfuzz.find_nans(path, seeds, ranges=(-9, 9), max_inputs=2000, out=tmp_path / "run", seed=1)
    (finding,) = [f for f in run.findings if f.symptom == "exception"]
    kept = finding.inputs["x"]
    assert f"x: int64[1, 3] in [{int(kept.min())}, {int(kept.max())}]" in finding.details["bad_op"]
    assert "initializer a: int64[1] in [-6, -6]" in finding.details["bad_op"]
