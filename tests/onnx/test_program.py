"""The interpreter as a torch module: its parts, its call, what a converted program means, what the probe sees of it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from graphs import BOOL, FLOAT, INT64, LOG_MODEL, by_runtime, constant, graph, model, node, value
from hypothesis import given
from hypothesis import strategies as st

import nnfuzz
from nnfuzz.callform import CallForm
from nnfuzz.errors import Unsupported
from nnfuzz.onnx.graph import read_graph
from nnfuzz.onnx.program import OnnxProgram, unsupported
from nnfuzz.probe import first_bad, observe
from nnfuzz.probe.sites import DOT
from nnfuzz.targets.taps import by_pattern, last_hidden
from onnx import TensorProto, helper

W = constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))


def branchy() -> OnnxProgram:
    """y = w·x + 1 where the sum of x is positive, else −(w·x); the weight is read in a branch only."""
    then = graph([node("Add", "p one", "a", "plus")], [], [value("a", 2)], [constant("one", np.ones(2, "f"))])
    other = graph([node("Neg", "p", "b")], [], [value("b", 2)])
    return OnnxProgram(
        model(
            [
                node("MatMul", "w x", "p", "proj"),
                node("ReduceSum", "x", "s", keepdims=0),
                node("Greater", "s zero", "c"),
                node("If", "c", "y", "choice", then_branch=then, else_branch=other),
            ],
            [value("x", 3)],
            [value("y", 2)],
            [W, constant("zero", np.float32(0))],
        )
    )


# ------------------------------------------------------------------------------------------------ modules


def test_nodes_are_modules_under_their_names() -> None:
    program = branchy()
    paths = [p for p, _ in program.named_modules() if p]
    assert paths == [
        "proj", "ReduceSum -> s", "Greater -> c", "choice", "choice.else_branch", "choice.else_branch.Neg -> b",
        "choice.then_branch", "choice.then_branch.plus",
    ]  # fmt: skip
    assert [n for n, _ in program.named_parameters()] == ["proj.w", "choice.then_branch.plus.one"]
    assert [n for n, _ in program.named_buffers()] == ["Greater -> c.zero"]


def test_awkward_names_become_legal_and_unique() -> None:
    names = ["a.b", "a_b", "a_b", "forward", "", "graph", "inputs", "training", "takes"]
    nodes = [node("Relu", f"t{i}", f"t{i + 1}", n) for i, n in enumerate(names)]
    program = OnnxProgram(model(nodes, [value("t0", 2)], [value(f"t{len(names)}", 2)]))
    modules = list(program._modules)
    assert modules == [
        f"a{DOT}b", "a_b", "a_b_2", "forward_2", "Relu -> t5", "graph_2", "inputs_2", "training_2", "takes_2",
    ]  # fmt: skip
    assert program(torch.tensor([-1.0, 2.0]))[f"t{len(names)}"].tolist() == [0, 2]


def test_a_constant_that_several_nodes_read_is_the_programs() -> None:
    nodes = [node("Mul", "x w", "a"), node("Add", "a w", "y")]
    program = OnnxProgram(model(nodes, [value("x", 2, 3)], [value("y", 2, 3)], [W]))
    assert [n for n, _ in program.named_parameters()] == ["w"]
    x = torch.randn(2, 3)
    assert torch.equal(program(x)["y"], x * program.w + program.w)


def test_settings_are_no_parameters() -> None:
    nodes = [node("Pow", "x e", "a"), node("Clip", "a low", "b"), node("Div", "b d", "y")]
    constants = [
        constant("e", np.array([2, 3, 4], "f")),
        constant("low", np.float32(-1)),
        constant("d", np.full(3, 2, "f")),
    ]
    program = OnnxProgram(model(nodes, [value("x", 3)], [value("y", 3)], constants))
    assert not list(program.parameters())
    assert program(torch.tensor([0.0, 1.0, 2.0]))["y"].tolist() == [0, 0.5, 8]


def test_taps_find_layers_by_pattern_and_the_last_hidden_one() -> None:
    program = branchy()
    assert list(by_pattern(program, ["choice.*.plus"])) == ["choice.then_branch.plus"]
    assert list(last_hidden(program, lambda: program(torch.ones(3)))) == ["choice.then_branch.plus:in"]
    assert list(last_hidden(program, lambda: program(-torch.ones(3)))) == ["proj:in"]


def test_a_copy_is_a_program_of_its_own() -> None:
    program = branchy()
    twin = copy.deepcopy(program)
    with torch.no_grad():
        twin.get_parameter("proj.w").zero_()
    x = torch.tensor([1.0, 2.0, 3.0])
    assert twin(x)["y"].tolist() == [1, 1]
    assert program(x)["y"].tolist() == [9, 27]


# ------------------------------------------------------------------------------------------------ calls


def test_inputs_by_order_and_by_name() -> None:
    program = OnnxProgram(model([node("Sub", "a b", "y")], [value("a", 2), value("b", 2)], [value("y", 2)]))
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0])
    for made in (program(a, b), program(b=b, a=a), program(a, b=b)):
        assert made["y"].tolist() == [2, 3]


def test_inputs_in_a_dict_of_another_order_go_to_their_names() -> None:
    program = OnnxProgram(
        model([node("Sub", "in.a /b", "y")], [value("in.a", "N", 2), value("/b", "N", 2)], [value("y", "N", 2)])
    )
    form = CallForm.of(program, {"/b": torch.ones(1, 2), "in.a": torch.zeros(1, 2)})
    made = form.call(program, {"/b": torch.ones(1, 2), "in.a": torch.zeros(1, 2)})
    assert made["y"].tolist() == [[-1, -1]]
    assert CallForm.of(program, (torch.ones(1, 2), torch.ones(1, 2))).names == ("in.a", "/b")


@pytest.mark.parametrize(
    ("args", "names", "said"),
    [
        ((torch.ones(2, 3).double(),), {}, "is float[N, 3], but was given a tensor of float64"),
        ((torch.ones(2, 4),), {}, "is float[N, 3], but was given a tensor of shape [2, 4]"),
        ((torch.ones(3),), {}, "is float[N, 3], but was given a tensor of shape [3]"),
        (([1.0],), {}, "is float[N, 3], but was given a list"),
        ((), {}, "takes 'x' (float[N, 3]), but 'x' was not given: give it"),
        ((torch.ones(2, 3),) * 2, {}, "was given 2 inputs, but takes 'x' (float[N, 3])"),
        ((torch.ones(2, 3),), {"x": 1}, "was given an input 'x', but takes 'x'"),
        ((torch.ones(2, 3),), {"z": 1}, "was given an input 'z', but takes 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_in_one_sentence(args: tuple, names: dict, said: str, refused: Callable[..., str]) -> None:
    heard = refused(OnnxProgram(LOG_MODEL), *args, **names)
    assert said in heard
    assert "\n" not in heard


def test_every_value_by_name() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]])
    values = OnnxProgram(LOG_MODEL).run_all({"x": x})
    assert list(values) == ["scaled", "y"]
    assert torch.equal(values["y"], values["scaled"].log())


def test_values_are_let_go_after_their_last_use() -> None:
    nodes = [node("Relu", f"t{i}", f"t{i + 1}") for i in range(9)]
    program = OnnxProgram(model(nodes, [value("t0", 2)], [value("t9", 2)]))
    scope = {"t0": torch.ones(2)}
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, len(scope))

    for module in program.children():
        module.register_forward_hook(count)
    program.execute(scope)
    assert most <= 2
    assert list(scope) == ["t9"]


def test_gradients_and_modes() -> None:
    program = OnnxProgram(LOG_MODEL)
    x = torch.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(program(x)["y"].sum(), x)
    assert slope.tolist() == [[1.0, 0.5, 0.25]]
    with torch.inference_mode():
        assert program(torch.ones(1, 3))["y"].is_inference()
    many = torch.rand(5, 2, 3)
    each = torch.func.vmap(lambda t: program(t)["y"])(many)
    assert torch.equal(each, torch.stack([program(t)["y"] for t in many]))


# ------------------------------------------------------------------------------------------------ other dtypes


def mixed() -> OnnxProgram:
    """Half-precision arithmetic between casts, with constants of three floating types."""
    return OnnxProgram(
        model(
            [
                node("Cast", "x", "h", to=TensorProto.FLOAT16),
                node("Add", "h half", "sum"),
                node("Cast", "sum", "d", to=TensorProto.DOUBLE),
                node("ConstantOfShape", "shape", "ones", value=helper.make_tensor("", FLOAT, [1], [1.0])),
                node("Cast", "ones", "wide", to=TensorProto.DOUBLE),
                node("Mul", "d wide", "scaled"),
                node("Cast", "scaled", "i", to=TensorProto.INT32),
                node("CastLike", "i x", "y"),
            ],
            [value("x", 3)],
            [value("y", 3)],
            [constant("half", np.array([0.5, 1.5, 2.5], np.float16)), constant("shape", np.array([3]))],
        )
    )


def test_as_read_a_program_computes_in_the_types_of_the_file() -> None:
    made = mixed().run_all({"x": torch.ones(3)})
    kinds = {n: str(t.dtype).removeprefix("torch.") for n, t in made.items()}
    assert kinds == {
        "h": "float16", "sum": "float16", "d": "float64", "ones": "float32", "wide": "float64", "scaled": "float64",
        "i": "int32", "y": "float32",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float32])
def test_a_converted_program_computes_in_that_dtype_throughout(dtype: torch.dtype) -> None:
    program = mixed().to(dtype)
    made = program.run_all({"x": torch.ones(3, dtype=dtype)})
    assert {t.dtype for n, t in made.items() if n != "i"} == {dtype}
    assert made["i"].dtype == torch.int32
    assert made["y"].tolist() == [1, 2, 3]


def test_a_converted_program_says_what_it_takes(refused: Callable[..., str]) -> None:
    said = refused(mixed().double(), torch.ones(3))
    assert said.endswith("is float[3], but was given a tensor of float32 (it was converted to float64)")


def test_a_float64_copy_rounds_nowhere_to_float32() -> None:
    program = OnnxProgram(LOG_MODEL).double()
    x = torch.tensor([[1 / 3, 1 / 7, 1 / 11]], dtype=torch.float64)
    assert torch.equal(program(x)["y"], (x * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).log())


# ------------------------------------------------------------------------------------------------ control flow


@given(st.integers(0, 6), st.floats(-2, 2, width=32))
def test_loops_are_those_of_the_runtime(trips: int, start: float) -> None:
    body = graph(
        [
            node("Mul", "s w", "a"),
            node("Cast", "turn", "t", to=FLOAT),
            node("Add", "a t", "next"),
            node("Less", "next limit", "again"),
            node("Identity", "next", "part"),
        ],
        [value("turn", dtype=INT64), value("goes", dtype=BOOL), value("s")],
        [value("again", dtype=BOOL), value("next"), value("part")],
        [constant("limit", np.float32(5))],
    )
    proto = model(
        [node("Loop", "n go s0", "last parts", "loop", body=body)],
        [value("n", dtype=INT64), value("s0"), value("w")],
        [value("last"), value("parts", "k")],
        [constant("go", np.array(True))],
    )
    inputs = {"n": torch.tensor(trips), "s0": torch.tensor(start), "w": torch.tensor(1.5)}
    made, expected = OnnxProgram(proto)(**inputs), by_runtime(proto, inputs)
    for name, want in expected.items():
        np.testing.assert_allclose(made[name].numpy(), want, rtol=1e-6, strict=True)


def test_while_loops_stop_where_the_runtime_stops() -> None:
    body = graph(
        [node("Add", "s s", "next"), node("Less", "next limit", "again")],
        [value("turn", dtype=INT64), value("goes", dtype=BOOL), value("s")],
        [value("again", dtype=BOOL), value("next")],
    )
    proto = model(
        [node("Loop", "- go s0", "last", body=body)],
        [value("go", dtype=BOOL), value("s0"), value("limit")],
        [value("last")],
    )
    for go in (True, False):
        inputs = {"go": torch.tensor(go), "s0": torch.tensor(1.0), "limit": torch.tensor(100.0)}
        assert OnnxProgram(proto)(**inputs)["last"].item() == by_runtime(proto, inputs)["last"] == (128 if go else 1)


def test_without_a_condition_only_the_number_of_turns_counts() -> None:
    body = graph([node("Add", "s s", "next"), node("Less", "next s", "again")],
                 [value("turn", dtype=INT64), value("goes", dtype=BOOL), value("s")],
                 [value("again", dtype=BOOL), value("next")])  # fmt: skip
    proto = model([node("Loop", "n - s0", "last", body=body)], [value("n", dtype=INT64), value("s0")], [value("last")])
    assert OnnxProgram(proto)(torch.tensor(5), torch.tensor(1.0))["last"].item() == 32


def test_a_loop_that_nothing_ends_is_refused() -> None:
    body = graph([node("Add", "s s", "next"), node("Identity", "goes", "again")],
                 [value("turn", dtype=INT64), value("goes", dtype=BOOL), value("s")],
                 [value("again", dtype=BOOL), value("next")])  # fmt: skip
    proto = model([node("Loop", "- - s0", "last", body=body)], [value("s0")], [value("last")])
    with pytest.raises(Unsupported, match="a loop that nothing ends"):
        OnnxProgram(proto)(torch.tensor(1.0))


def test_branches_give_back_outer_values_and_nest() -> None:
    """A branch without nodes, one inside a loop's body, and a constant of the main graph that only they read."""
    same = graph([], [], [value("s", 2)])
    moved = graph([node("Add", "s w", "m")], [], [value("m", 2)])
    given = graph([], [], [value("w", 2)])
    body = graph(
        [
            node("Mod", "turn two", "odd"),
            node("Cast", "odd", "is_odd", to=BOOL),
            node("If", "is_odd", "next", then_branch=same, else_branch=moved),
            node("Identity", "goes", "again"),
        ],
        [value("turn", dtype=INT64), value("goes", dtype=BOOL), value("s", 2)],
        [value("again", dtype=BOOL), value("next", 2)],
    )
    proto = model(
        [
            node("Loop", "n go x", "last", "loop", body=body),
            node("If", "go", "y", then_branch=given, else_branch=graph([], [], [value("last", 2)])),
        ],
        [value("x", 2), value("n", dtype=INT64)],
        [value("last", 2), value("y", 2)],
        [constant("w", np.ones(2, "f")), constant("go", np.array(True)), constant("two", np.int64(2))],
    )
    made = OnnxProgram(proto)(torch.zeros(2), torch.tensor(5))
    assert made["last"].tolist() == [3, 3]
    assert made["y"].tolist() == [1, 1]


def test_scans_run_both_ways_and_along_any_axis() -> None:
    body = graph([node("Add", "s v", "next"), node("Mul", "next v", "part")],
                 [value("s", 2), value("v", 2)], [value("next", 2), value("part", 2)])  # fmt: skip
    scan = node("Scan", "s0 x", "last parts", body=body, num_scan_inputs=1, scan_input_axes=[1],
                scan_input_directions=[1], scan_output_axes=[1], scan_output_directions=[1])  # fmt: skip
    proto = model([scan], [value("s0", 2), value("x", 2, 4)], [value("last", 2), value("parts", 2, 4)])
    inputs = {"s0": torch.randn(2), "x": torch.randn(2, 4)}
    made, expected = OnnxProgram(proto)(**inputs), by_runtime(proto, inputs)
    for name, want in expected.items():
        np.testing.assert_allclose(made[name].numpy(), want, rtol=1e-6, strict=True)


def test_sequences() -> None:
    proto = model(
        [
            node("SplitToSequence", "x", "s", axis=0),
            node("SequenceErase", "s first", "rest"),
            node("SequenceInsert", "rest x first", "more"),
            node("SequenceLength", "more", "n"),
            node("SequenceAt", "more last", "tail"),
            node("ConcatFromSequence", "more", "y", axis=0),
        ],
        [value("x", 3, 2)],
        [value("n", dtype=INT64), value("tail", 1, 2), value("y", "k", 2)],
        [constant("first", np.int64(0)), constant("last", np.int64(-1))],
    )
    x = {"x": torch.randn(3, 2)}
    made, expected = OnnxProgram(proto)(**x), by_runtime(proto, x)
    for name, want in expected.items():
        np.testing.assert_array_equal(made[name].numpy(), want)
    assert made["n"].item() == 3


def test_random_numbers_follow_the_seed_of_the_node() -> None:
    def drawn(**seed: float) -> Callable[[], torch.Tensor]:
        program = OnnxProgram(model([node("RandomNormalLike", "x", "y", **seed)], [value("x", 5)], [value("y", 5)]))
        return lambda: program(torch.zeros(5))["y"]

    seeded, free = drawn(seed=3.0), drawn()
    assert torch.equal(seeded(), seeded())
    assert not torch.equal(free(), free())


def test_nodes_that_draw_without_a_seed_are_known() -> None:
    nodes = [node("RandomUniformLike", "x", "u", "free"), node("Bernoulli", "u", "y", "kept", seed=1.0)]
    assert OnnxProgram(model(nodes, [value("x", 5)], [value("y", 5)])).draws == ["free"]


# ------------------------------------------------------------------------------------------------ unsupported


def test_operators_that_are_not_built_are_named(refused: Callable[..., str]) -> None:
    inner = graph([helper.make_node("Odd", ["x"], ["a"], "odd", domain="acme")], [], [value("a", 2)])
    plain = graph([node("Relu", "x", "b")], [], [value("b", 2)])
    proto = model(
        [node("If", "c", "t", then_branch=inner, else_branch=plain), node("StringConcat", "t t", "y", "glue")],
        [value("x", 2), value("c", dtype=BOOL)],
        [value("y", 2)],
        opset=20,
    )
    proto.opset_import.append(helper.make_opsetid("acme", 3))
    missing = unsupported(read_graph(proto))
    assert missing == [("acme", "Odd", 3, "odd"), ("", "StringConcat", 20, "glue")]
    said = refused(OnnxProgram, proto)
    assert "acme.Odd of opset 3 (node 'odd'), StringConcat of opset 20 (node 'glue')" in said


def test_opsets_beyond_those_built_are_told() -> None:
    proto = model([node("Relu", "x", "y", "r")], [value("x", 2)], [value("y", 2)], opset=99)
    assert unsupported(read_graph(proto)) == [("", "Relu", 99, "r")]


# ------------------------------------------------------------------------------------------------ the probe


def test_an_operation_stands_at_its_node_whoever_calls_the_program() -> None:
    program = OnnxProgram(LOG_MODEL)
    x = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    for called in (program, lambda t: program(t)["y"] * 2):
        readings = [r for r in observe(called, [x]).readings if r.hazard.id == "log.zero"]
        (site,) = {r.site for r in readings}
        assert (site.op, site.file, site.line) == ("log", None, None)
        assert site.module.endswith("/net/Log")
        assert site.source == "Log(scaled) -> y"
    bad = first_bad(program, [torch.tensor([[1.0, -2.0, 3.0]])])
    assert bad is not None
    assert (bad.site.op, bad.site.module, bad.symptom) == ("log", "/net/Log", "nan")


def test_find_nans_names_the_node() -> None:
    run = nnfuzz.find_nans(OnnxProgram(LOG_MODEL), torch.rand(8, 3) + 0.5, ranges=(-1, 2), max_inputs=500)
    finding = next(f for f in run.findings if f.phase == "forward")
    assert finding.site is not None
    assert (finding.site.module, finding.site.source) == ("/net/Log", "Log(scaled) -> y")
    assert "/net/Log" in str(finding.site)
