"""ONNX Runtime as a callable of tensors: types, shapes, external weights, messages; and what seeds mean for a graph."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from target_zoo import BF16, BOOL, FLOAT, HALF, INT64, classifier, log_of_softmax, model, node, recurrent, saved, weight

import nnfuzz.onnx
import onnx
from nnfuzz.errors import MissingExtra, Unsupported, UsageError
from nnfuzz.loading.made import save_seeds
from nnfuzz.onnx.seeds import made_seeds
from onnx import helper


def test_it_answers_as_onnx_runtime(tmp_path: Path) -> None:
    path = saved(classifier(), tmp_path / "m.onnx")
    x = torch.randn(5, 6)
    theirs = onnxruntime.InferenceSession(str(path)).run(None, {"x": x.numpy()})[0]
    for source in (str(path), path, classifier()):
        mine = nnfuzz.onnx.load(source)(x)
        assert list(mine) == ["scores"]
        assert np.array_equal(mine["scores"].numpy(), theirs)


def test_gradients_and_strides_do_not_matter_to_a_call() -> None:
    loaded = nnfuzz.onnx.load(classifier())
    x = torch.randn(6, 5, requires_grad=True).t()
    with torch.inference_mode():
        plain = loaded(x.detach().contiguous().clone())["scores"]
    assert torch.equal(loaded(x=x)["scores"], plain)


TYPES = {BOOL: torch.bool, HALF: torch.float16, BF16: torch.bfloat16, INT64: torch.int64, FLOAT: torch.float32}


@pytest.mark.parametrize("code", TYPES)
def test_every_type_goes_in_and_out(code: int) -> None:
    made = model([node("Identity", ["x"], ["y"])], [("x", code, ["n"])], [("y", code, ["n"])])
    values = torch.tensor([0.0, 1.0, 3.0]).to(TYPES[code])
    assert torch.equal(nnfuzz.onnx.load(made)(values)["y"], values)


def test_scalars_sequences_and_absent_optionals() -> None:
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["k"]))
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    nodes = [
        node("SplitToSequence", ["x"], ["parts"], axis=0),
        node("OptionalHasElement", ["o"], ["has"]),
        node("Neg", ["s"], ["minus"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 2]), helper.make_tensor_value_info("s", INT64, []),
         helper.make_value_info("o", optional)],
        [helper.make_value_info("parts", sequence), helper.make_tensor_value_info("has", BOOL, []),
         helper.make_tensor_value_info("minus", INT64, [])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    loaded = nnfuzz.onnx.load(made)
    x = torch.randn(3, 2)
    found = loaded.run({"x": x, "s": torch.tensor(7), "o": None})
    assert torch.equal(torch.cat([found[f"parts.{i}"] for i in range(3)]), x)
    assert not found["has"]
    assert found["minus"] == -7
    assert loaded.run({"x": x, "s": torch.tensor(7), "o": torch.ones(2)})["has"]
    seeds = loaded.read_seeds({"x": x[None], "s": torch.tensor(7)})
    assert seeds.form.names == ("x", "s")
    assert "not searched: o (optional, and absent in the seeds)" in seeds.notes
    assert seeds.form.bind({"x": x, "s": torch.tensor(7)})[0][2] is None


def test_weights_in_other_files(tmp_path: Path) -> None:
    made = classifier()
    path = tmp_path / "big.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded, x = nnfuzz.onnx.load(path), torch.randn(2, 6)
    assert loaded.weight_files == ["weights.bin"]
    plain = nnfuzz.onnx.load(classifier())(x)["scores"]
    assert torch.equal(loaded(x)["scores"], plain)
    inside = loaded.run({"x": x}, ["h"])
    assert torch.equal(inside["scores"], plain)
    assert inside["h"].shape == (2, 8)
    digest = hashlib.sha256(path.read_bytes() + (tmp_path / "weights.bin").read_bytes()).hexdigest()
    assert loaded.sha256 == digest


def test_no_optimisation_changes_no_value_inside() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    ones = {n: np.ones(4, np.float32) for n in "sbmv"}
    made = model(
        nodes, [("x", FLOAT, ["n", 3, 8, 8])], [("y", FLOAT, ["n", 4, 6, 6])], {"w": weight(4, 3, 3, 3), **ones}
    )
    assert not nnfuzz.onnx.load(made).optimised & {"c", "n"}  # the three are one node then
    assert {"c", "n"} <= nnfuzz.onnx.load(made, optimisation="none").optimised


def text_input() -> onnx.ModelProto:
    graph = helper.make_graph(
        [node("StringNormalizer", ["t"], ["u"])], "g",
        [helper.make_tensor_value_info("t", onnx.TensorProto.STRING, [1])],
        [helper.make_tensor_value_info("u", onnx.TensorProto.STRING, [1])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = nnfuzz.onnx.load
    with pytest.raises(Unsupported, match="the input 't' of g holds text, and nnfuzz mutates numbers only"):
        load(text_input())
    with pytest.raises(UsageError, match=r"ONNX Runtime has no provider 'tpu' here, only .*CPUExecutionProvider"):
        load(classifier(), provider="tpu")
    with pytest.raises(UsageError, match="the optimisation level 'most' is not known: choose one of none, basic"):
        load(classifier(), optimisation="most")
    assert load(classifier(), provider="cpu").provider == "CPUExecutionProvider"
    with pytest.raises(UsageError, match=r"there is no file gone\.onnx"):
        load("gone.onnx")
    (tmp_path / "cut.onnx").write_bytes(classifier().SerializeToString()[:40])
    with pytest.raises(UsageError, match=r"cut\.onnx (is not an ONNX model|holds no graph|does not say which opset)"):
        load(tmp_path / "cut.onnx")
    broken = classifier()
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(UsageError, match=r"^zoo cannot be run: ONNX Runtime \S+ does not know the operator NoSuch"):
        load(broken)(torch.zeros(1, 6))
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(MissingExtra) as caught:
                load(tmp_path / "cut.onnx")
        assert str(caught.value) == f"an ONNX model needs the package '{package}': pip install 'nnfuzz[onnx]'"


# ------------------------------------------------------------------------------------------------------ seeds


def test_rows_and_whole_candidates() -> None:
    loaded = nnfuzz.onnx.load(classifier())
    rows = loaded.read_seeds(torch.randn(5, 6))
    assert rows.stacked
    assert rows.groups[0].batch["x"].shape == (5, 6)
    whole = loaded.read_seeds({"x": torch.randn(5, 2, 6)})
    assert not whole.stacked
    assert whole.groups[0].batch["x"].shape == (5, 2, 6)
    listed = loaded.read_seeds([torch.randn(2, 6), torch.randn(3, 6), torch.randn(2, 6)])
    assert [g.index for g in listed.groups] == [[0, 2], [1]]


@given(count=st.integers(1, 9), k=st.integers(1, 4))
def test_a_fixed_first_axis_cuts_the_rows(count: int, k: int) -> None:
    loaded = nnfuzz.onnx.load(classifier(batch=k))
    x = torch.arange(count * 6.0).reshape(count, 6)
    if count < k:
        with pytest.raises(UsageError, match=rf"the input 'x' of zoo is float\[{k}, 6\], but the seeds give it"):
            loaded.read_seeds(x)
        return
    seeds = loaded.read_seeds(x)
    candidates = seeds.groups[0].batch["x"]
    assert candidates.shape == (-(-count // k), k, 6)
    assert torch.equal(candidates[: count // k].reshape(-1, 6), x[: count // k * k])
    assert torch.equal(candidates[-1], x[count - k :])  # no row is lost


def test_scalars_stand_beside_every_candidate() -> None:
    loaded = nnfuzz.onnx.load(recurrent())
    x, state = torch.randn(4, 1, 4), torch.randn(4, 2, 1, 3)
    for rate in (torch.tensor(16000), torch.full((4,), 16000), np.int64(16000)):
        found = loaded.read_seeds({"x": x, "state": state, "rate": rate})
        (group,) = found.groups
        assert not found.stacked
        assert group.batch["rate"].tolist() == [16000] * 4
    one = loaded.read_seeds({"x": x[0], "state": state[0], "rate": 8000})
    assert [tuple(t.shape) for t in one.groups[0].batch.values()] == [(1, 1, 4), (1, 2, 1, 3), (1,)]


@given(count=st.integers(1, 5), once=st.booleans())
def test_a_model_of_scalars_alone(count: int, once: bool) -> None:
    made = model([node("Add", ["a", "b"], ["y"])], [("a", FLOAT, []), ("b", FLOAT, [])], [("y", FLOAT, [])])
    a, b = torch.arange(float(count)), torch.full((1 if once else count,), 2.0)
    for given_b in (b, b[0]):
        (group,) = nnfuzz.onnx.load(made).read_seeds({"a": a, "b": given_b}).groups
        assert torch.equal(group.batch["a"], a)
        assert torch.equal(group.batch["b"], torch.full((count,), 2.0))
        assert group.index == list(range(count))


def test_scalars_of_seeds_that_no_other_input_counts() -> None:
    inputs = [("x", FLOAT, ["n"]), ("z", FLOAT, ["m"]), ("t", FLOAT, [])]
    made = model([node("Add", ["x", "t"], ["y"]), node("Add", ["z", "t"], ["w"])], inputs,
                 [("y", FLOAT, ["n"]), ("w", FLOAT, ["m"])])  # fmt: skip
    loaded = nnfuzz.onnx.load(made)
    (group,) = loaded.read_seeds({"x": torch.ones(3), "z": torch.ones(2), "t": torch.ones(1)}).groups
    assert [tuple(t.shape) for t in group.batch.values()] == [(1, 3), (1, 2), (1,)]
    with pytest.raises(UsageError, match="give 4 values of 't' for one candidate, since the other inputs have no axis"):
        loaded.read_seeds({"x": torch.ones(3), "z": torch.ones(2), "t": torch.ones(4)})


def test_complex_seeds_of_a_real_input() -> None:
    with pytest.raises(UsageError, match="the seeds give it complex64 values that this type cannot hold"):
        nnfuzz.onnx.load(classifier()).read_seeds(torch.ones(4, 6, dtype=torch.complex64))


def test_unequal_numbers_of_rows() -> None:
    def adding(first: str, second: str) -> nnfuzz.onnx.OnnxModel:
        inputs = [("x", FLOAT, [first, 2]), ("m", FLOAT, [second, 2])]
        return nnfuzz.onnx.load(model([node("Add", ["x", "m"], ["y"])], inputs, [("y", FLOAT, ["k", 2])]))

    four, three = {"x": torch.ones(4, 2), "m": torch.ones(3, 2)}, {"x": torch.ones(3, 2), "m": torch.ones(1, 2)}
    with pytest.raises(UsageError, match=r"give 4 rows of 'x' and 3 of 'm', but zoo takes as many of each \(n\)"):
        nnfuzz.find_nans(adding("n", "n"), four)
    with pytest.raises(UsageError, match=r"different lengths \('x' has 4, 'm' has 3\), .* the model fails on it"):
        nnfuzz.find_nans(adding("a", "b"), four)
    assert not nnfuzz.find_nans(adding("a", "b"), three, ranges=(-1, 1), max_inputs=64).findings


def test_names_types_and_strangers() -> None:
    made = model(
        [node("Add", ["input.1", "/b:0"], ["y"])], [("input.1", FLOAT, ["n"]), ("/b:0", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
    )  # fmt: skip
    loaded = nnfuzz.onnx.load(made)
    two = torch.arange(3)
    for given_seeds in (
        {"input.1": two, "/b:0": two}, {"input_1": two, "_b_0": two}, {"0": two, "1": two},
        {"arr_0": two, "arr_1": two}, (two, two), (two, two, two),
    ):  # fmt: skip
        seeds = loaded.read_seeds(given_seeds)
        assert seeds.form.names == ("input.1", "/b:0")
        assert all(t.dtype == torch.float32 for t in seeds.groups[0].batch.values())
        assert seeds.form.resolve("input_1", "ranges") == "input.1"
        assert seeds.form.resolve("1", "ranges") == "/b:0"
    assert "converted to float32" in loaded.read_seeds((two, two)).notes[0]
    for wrong in ({"p": two, "q": two}, {"input.1": two, "q": two}):
        with pytest.raises(
            UsageError, match=r"takes input\.1 \(float\[n\]\), /b:0 .*, but the seeds give '.*', 'q': call"
        ):
            loaded.read_seeds(wrong)


def test_a_lone_array_of_another_name_is_taken_and_said() -> None:
    loaded = nnfuzz.onnx.load(classifier())
    found = loaded.read_seeds({"foo": torch.zeros(3, 6)})
    assert found.form.names == ("x",)
    assert found.notes == ["the array 'foo' of the seeds is taken for the input 'x'"]
    assert loaded.read_seeds({"x": torch.zeros(3, 6), "foo": torch.zeros(2)}).notes == [
        "the model takes x: 'foo' in the seeds is left out"
    ]
    with pytest.raises(UsageError, match=r"zoo takes x \(float\[n, 6\]\), but the seeds give 'foo', 'bar': call them"):
        loaded.read_seeds({"foo": torch.zeros(3, 6), "bar": torch.zeros(2)})


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ({"x": torch.zeros(3, 1, 4)}, r"takes x \(float\[batch, 4\]\), state .*: give 'state', 'rate' too"),
        (
            {"x": torch.zeros(3, 1, 5), "state": torch.zeros(3, 2, 1, 3), "rate": 1},
            r"the input 'x' of zoo is float\[batch, 4\], but the seeds give it the shape \[3, 1, 5\]",
        ),
        (
            {"x": torch.zeros(3, 1, 4), "state": torch.zeros(2, 2, 1, 3), "rate": 1},
            "different numbers of candidates .*x has 3, state has 2",
        ),
        (
            {"x": torch.zeros(3, 1, 4), "state": torch.zeros(3, 2, 1, 3), "rate": torch.tensor(0.5)},
            r"the input 'rate' is int64\[\], but the seeds give it float32 values that this type cannot hold",
        ),
        ([], "the list of seeds is empty"),
        ({"x": "text", "state": 1, "rate": 1}, "the seeds give the input 'x' a str, but a tensor is needed"),
    ],
)
def test_seeds_that_do_not_fit(seeds: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        nnfuzz.onnx.load(recurrent()).read_seeds(seeds)


# ------------------------------------------------------------------------------------------------- made seeds


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_made_seeds_are_taken_by_the_model(tmp_path: Path, ending: str) -> None:
    from nnfuzz.loading import load_seeds

    for i, made in enumerate((recurrent(), classifier(), log_of_softmax(), classifier(batch=1))):
        loaded = nnfuzz.onnx.load(made)
        found = made_seeds(loaded, 6)
        path = tmp_path / f"{i}.{ending}"
        save_seeds(path, found.batch)
        seeds = loaded.read_seeds(load_seeds(str(path), loaded))
        assert len(seeds) == 6
        again = made_seeds(loaded, 6)
        assert all(torch.equal(again.batch[n], t) for n, t in found.batch.items())


def test_what_the_graph_tells_of_values() -> None:
    nodes = [
        node("Cast", ["ids"], ["whole"], to=INT64),
        node("Gather", ["table", "whole"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["y"], keepdims=0),
        node("Mul", ["y", "h0"], ["z"]),
        node("And", ["flag", "flag"], ["f"]),
    ]
    inputs = [
        ("ids", onnx.TensorProto.INT32, ["batch", "words"]), ("h0", FLOAT, ["batch"]), ("flag", BOOL, ["batch"]),
    ]  # fmt: skip
    weights = {"table": weight(11, 2), "axes": np.array([1, 2])}
    made = model(nodes, inputs, [("z", FLOAT, ["batch"]), ("f", BOOL, ["batch"])], weights)
    found = made_seeds(nnfuzz.onnx.load(made), 40, dims={"words": 5})
    ids = found.batch["ids"]
    assert ids.shape == (40, 5)
    assert ids.dtype == torch.int32
    assert sorted(ids.unique().tolist()) == list(range(11))
    assert found.batch["h0"].abs().max() <= 1
    assert found.batch["flag"].any()
    assert any("it looks up a table of 11 rows" in line for line in found.lines())
    ranged = made_seeds(nnfuzz.onnx.load(made), 40, ranges={"h0": (5, 6), "ids": [3, 4]}).batch
    assert 5 <= ranged["h0"].min() <= ranged["h0"].max() <= 6
    assert set(ranged["ids"].unique().tolist()) == {3, 4}


def test_sizes_are_found_by_trying() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    made = model(nodes, [("x", FLOAT, ["batch", "width"])], [("y", FLOAT, ["batch", 2])], {"w": weight(48, 2)})
    found = made_seeds(nnfuzz.onnx.load(made), 3)
    assert found.batch["x"].shape == (3, 48)
    assert "found by trying: width = 48" in "\n".join(found.lines())
    for dims, said in (
        ({"width": 7}, "refuses the inputs that were tried"),
        ({"depth": 7}, "--dim names 'depth', but the free dimensions are batch, width"),
    ):
        with pytest.raises(UsageError, match=said):
            made_seeds(nnfuzz.onnx.load(made), 3, dims=dims)
    with pytest.raises(UsageError, match="--range names the input 'z', but the inputs are x"):
        made_seeds(nnfuzz.onnx.load(made), 3, ranges={"z": (0, 1)})


def test_the_package_brings_it_along() -> None:
    code = "import sys, nnfuzz; assert 'torch' not in sys.modules; nnfuzz.onnx.load; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
