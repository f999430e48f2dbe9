"""Reading ONNX files: what is in them, and what is said of those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import BOOL, FLOAT, INT64, LOG_MODEL, constant, graph, model, node, value
from hypothesis import given
from hypothesis import strategies as st

import onnx
from nnfuzz.errors import UsageError
from nnfuzz.onnx.attributes import decode_tensor
from nnfuzz.onnx.dtypes import SMALL, TORCH
from nnfuzz.onnx.graph import read_graph
from nnfuzz.onnx.program import OnnxProgram
from onnx import TensorProto, helper, numpy_helper

Refused = Callable[..., str]


def test_specs_opsets_and_nodes() -> None:
    read = read_graph(LOG_MODEL)
    (x,), (y,) = read.inputs, read.outputs
    assert (x.name, x.dtype, x.shape, x.kind, x.optional) == ("x", torch.float32, ("N", 3), "tensor", False)
    assert str(y) == "float[N, 3]"
    assert read.opsets == {"": 17}
    assert [str(n) for n in read.nodes] == ["Mul(x, w) -> scaled", "Log(scaled) -> y"]
    assert list(read.initializers) == ["w"]


def test_path_bytes_and_proto_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(LOG_MODEL, path)
    for source in (path, str(path), path.read_bytes(), LOG_MODEL):
        assert torch.equal(read_graph(source).initializers["w"], torch.tensor([1.0, 2.0, 3.0]))


def test_an_input_with_an_initializer_is_no_input() -> None:
    proto = model(
        [node("Add", "x b", "y")], [value("x", 2), value("b", 2)], [value("y", 2)], [constant("b", np.ones(2, "f"))]
    )
    program = OnnxProgram(proto)
    assert [s.name for s in program.inputs] == ["x"]
    assert torch.equal(program(torch.zeros(2))["y"], torch.ones(2))


def test_weights_in_another_file(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "m.onnx"
    proto = model(
        [node("Add", "x b", "y")], [value("x", 64)], [value("y", 64)], [constant("b", np.arange(64.0).astype("f"))]
    )
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert torch.equal(read_graph(path).initializers["b"], torch.arange(64.0))
    assert "which only its path can tell" in refused(read_graph, path.read_bytes())
    (tmp_path / "weights.bin").write_bytes(b"short")
    assert "'weights.bin', which is too short or cannot be read (5 bytes)" in refused(read_graph, path)
    (tmp_path / "weights.bin").unlink()
    said = refused(read_graph, path)
    assert "m.onnx keeps the weights 'b' in 'weights.bin', which is not beside it" in said


def test_what_is_not_onnx(tmp_path: Path, refused: Refused) -> None:
    said = {}
    for name, held in (("text", b"import torch\n" * 9), ("empty", b""), ("zip", b"PK\x03\x04" + bytes(60))):
        (tmp_path / name).write_bytes(held)
        said[name] = refused(read_graph, tmp_path / name)
    assert "text is a text file (it begins with 'import torch'), and not an ONNX model" in said["text"]
    assert "empty holds no graph" in said["empty"]
    assert "zip" in said["zip"]
    assert "there is no file" in refused(read_graph, tmp_path / "none.onnx")
    assert "is a folder" in refused(read_graph, tmp_path)


@given(st.floats(0, 0.999))
def test_a_file_cut_short_anywhere_is_refused_or_lacks_only_what_follows_the_graph(share: float) -> None:
    held = LOG_MODEL.SerializeToString()
    program = said = None
    try:
        program = OnnxProgram(held[: int(len(held) * share)])
    except UsageError as error:
        said = str(error)
    if program is None:
        assert "the ONNX model" in said
        assert "\n" not in said
    else:
        assert torch.equal(program(torch.ones(1, 3))["y"], torch.tensor([[1.0, 2.0, 3.0]]).log())


def test_a_graph_that_does_not_hold_together(refused: Refused) -> None:
    def of(nodes: list[onnx.NodeProto], out: str = "y") -> onnx.ModelProto:
        return model(nodes, [value("x", 2)], [value(out, 2)])

    assert "reads 'nowhere', which nothing before it makes" in refused(read_graph, of([node("Relu", "nowhere", "y")]))
    assert "nothing makes the output 'z'" in refused(read_graph, of([node("Relu", "x", "y")], "z"))
    short = numpy_helper.from_array(np.ones(4, np.float32), "w")
    short.raw_data = short.raw_data[:7]
    broken = model([node("Add", "x w", "y")], [value("x", 4)], [value("y", 4)], [short])
    assert "the constant 'w' of shape [4] does not hold as many values" in refused(read_graph, broken)


@pytest.mark.parametrize("code", sorted(TORCH))
def test_every_element_type_is_decoded(code: int) -> None:
    numbers = [0, 1, 3, 1] if code != TensorProto.INT2 else [0, 1, -2, 1]
    if code == TensorProto.FLOAT8E8M0:
        numbers = [1, 2, 4, 1]
    dtype = helper.tensor_dtype_to_np_dtype(code)
    decoded = decode_tensor(numpy_helper.from_array(np.array(numbers).astype(dtype)))
    assert decoded.dtype == TORCH[code]
    as_numbers = decoded.real if decoded.is_complex() else decoded
    assert as_numbers.float().tolist() == [float(bool(n)) if code == TensorProto.BOOL else n for n in numbers]
    if code in SMALL:
        assert SMALL[code][0] <= min(numbers) <= max(numbers) <= SMALL[code][1]


def test_constants_of_nodes_branches_and_sparse_tensors() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("s", FLOAT, [2], [5.0, 7.0]), helper.make_tensor("i", INT64, [2], [1, 3]), [2, 2]
    )
    proto = model(
        [
            node("Constant", "", "a", sparse_value=sparse),
            node("Constant", "", "b", value_floats=[1.0, 2.0]),
            node("Add", "a b", "ab"),
            node("Add", "ab x", "y"),
        ],
        [value("x", 2, 2)],
        [value("y", 2, 2)],
    )
    program = OnnxProgram(proto)
    assert program(torch.zeros(2, 2))["y"].tolist() == [[1.0, 7.0], [1.0, 9.0]]
    assert len(program.graph.nodes) == 2


def test_functions_are_inlined() -> None:
    square = helper.make_function(
        "own", "Square", ["v"], ["w"], [node("Mul", "v v", "w")], [helper.make_opsetid("", 17)]
    )
    used = helper.make_node("Square", ["x"], ["y"], "square", domain="own")
    proto = helper.make_model(
        graph([used], [value("x", 3)], [value("y", 3)]),
        functions=[square],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )
    assert OnnxProgram(proto)(torch.tensor([1.0, -2.0, 3.0]))["y"].tolist() == [1, 4, 9]


def test_models_of_opset_6_mean_what_they_meant() -> None:
    add = node("Add", "x b", "y", axis=0, broadcast=1)  # b goes along the first axis
    proto = model([add], [value("x", 2, 3)], [value("y", 2, 3)], [constant("b", np.array([1, 2], "f"))], opset=6)
    assert OnnxProgram(proto)(torch.zeros(2, 3))["y"].tolist() == [[1, 1, 1], [2, 2, 2]]


def test_strings_are_held_and_refused_where_numbers_are_needed() -> None:
    names = helper.make_tensor("names", TensorProto.STRING, [2], ["a", "b"])
    proto = model(
        [node("Equal", "names s", "y"), node("Identity", "names", "z")],
        [value("s", 2, dtype=TensorProto.STRING)],
        [value("y", 2, dtype=BOOL), value("z", 2, dtype=TensorProto.STRING)],
        [names],
        opset=19,
    )
    made = OnnxProgram(proto)(np.array(["a", "c"], dtype=object))
    assert made["y"].tolist() == [True, False]
    assert list(made["z"]) == ["a", "b"]
    adds = model([node("Add", "names names", "y")], [], [value("y", 2, dtype=TensorProto.STRING)], [names])
    with pytest.raises(UsageError, match=r"Add of opset 17 \(node 'Add -> y'\): computing with strings"):
        OnnxProgram(adds)()
