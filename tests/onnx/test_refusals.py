"""Every way in which a file fails to load is one sentence that names the file, and exit status 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import BOOL, INT64, LOG_MODEL, constant, graph, model, node, value
from hypothesis import given, settings
from hypothesis import strategies as st

import nnfuzz.onnx
import onnx
from nnfuzz.cli import main
from nnfuzz.errors import UsageError
from onnx import ModelProto, NodeProto, TensorProto, helper

W = constant("w", np.array([1, 2, 3], np.float32))
GRAPH = "m.onnx is not a valid ONNX graph: "
CPP = re.compile(r"onnxruntime_src|\.cc\b|::|ONNXRuntimeError|const &")


def of(*nodes: NodeProto, out: int = TensorProto.FLOAT, opset: int = 17) -> ModelProto:
    return model(nodes, [value("x", "N", 3)], [value("y", "N", 3, dtype=out)], [W], opset)


def imports(**versions: int) -> Callable[[ModelProto], None]:
    def change(proto: ModelProto) -> None:
        del proto.opset_import[:]
        proto.opset_import.extend(helper.make_opsetid(d.replace("_", "."), v) for d, v in versions.items())

    return change


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    proto = of(node("Mul", "x w", "s", "scale"), node("Log", "s", "y", "log"))
    change(proto)
    return proto


def of_domain(domain: str) -> NodeProto:
    return helper.make_node("Frob", ["x"], ["y"], domain=domain)


def cast(to: int, name: str = "cast") -> NodeProto:
    return node("Cast", "x", "s", name, to=to)


def outside(place: str) -> Callable[[ModelProto], None]:
    def change(proto: ModelProto) -> None:
        t = proto.graph.initializer[0]
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        t.external_data.add(key="location", value=place)

    return change


def first(proto: ModelProto) -> Any:
    return proto.graph.initializer[0]


BRANCH = graph([node("Log", "nowhere", "t")], [], [value("t", "N", 3)])
LATE = graph([node("Log", "u", "t"), node("Abs", "x", "u")], [], [value("t", "N", 3)])


def branching(then: onnx.GraphProto) -> ModelProto:
    return of(cast(BOOL, ""), node("If", "s", "y", "choose", then_branch=then, else_branch=then))


REFUSED = {
    "a newer format": (
        changed(lambda p: setattr(p, "ir_version", 99)),
        r"version 99 of the file format .* up to \d+: "
        "export it with an older onnx, or install a newer onnxruntime",
    ),
    "a newer opset": (
        changed(imports(ai_onnx=99)),
        r"m\.onnx uses opset 99 of the domain 'ai\.onnx', and ONNX Runtime "
        r"[\d.]+ has this domain up to \d+: export it for opset \d+ or older, or install a newer",
    ),
    "a newer opset of another domain": (
        changed(lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx.ml", 77))),
        r"uses opset 77 of the domain 'ai\.onnx\.ml', .* up to \d+",
    ),
    "opset 0": (changed(imports(ai_onnx=0)), "uses opset 0, but the first is 1"),
    "an old opset": (
        of(node("Mul", "x w", "y", "scale"), opset=6),
        r"has no implementation of Mul of opset 6 \(the "
        r"node 'scale'\): export it with opset 7 or newer",
    ),
    "no own opset": (changed(imports(com_foo=3)), r"does not say which opset of them \(it imports com\.foo 3\)"),
    "no opset": (changed(imports()), "does not say which opset it uses"),
    "a domain not imported": (
        of(of_domain("com.foo")),
        r"uses the operator Frob \(the node 'Frob -> y'\) of the domain "
        r"'com\.foo', but does not say which version of that domain \(it imports ai\.onnx 17\)",
    ),
    "no operator": (
        of(node("Frob", "x", "y", "odd")),
        r"m\.onnx cannot be run: ONNX Runtime [\d.]+ does not know the "
        r"operator Frob of domain 'ai\.onnx', version 17 \(the node 'odd'\)",
    ),
    "no kernel": (
        of(cast(TensorProto.BFLOAT16), node("Log", "s", "l"), node("Cast", "l", "y", to=1)),
        "no implementation of Log of opset 13 for the element types at the node 'Log -> l': put a Cast to float32",
    ),
    "an empty graph": (changed(lambda p: p.graph.Clear()), r"has no inputs, so there is nothing to search \(its graph"),
    "no nodes": (changed(lambda p: p.graph.ClearField("node")), GRAPH + "nothing makes the output 'y'"),
    "two types": (
        of(cast(INT64), node("Add", "s w", "y", "add")),
        GRAPH + "the Add node 'add' is given both int64 and float, but needs one type: put a Cast there",
    ),
    "two types at a node without a name": (
        of(cast(INT64, ""), node("Add", "s w", "y")),
        GRAPH + "the node 'Add -> y' is given both int64 and float",
    ),
    "a type it does not take": (
        of(cast(TensorProto.STRING), node("Log", "s", "y", "log")),
        GRAPH + "the Log node 'log' reads 's' of type string, which it does not take",
    ),
    "another type of output": (
        of(node("Log", "x", "y"), out=INT64),
        GRAPH + "the value 'y' that the node 'Log -> y' makes is declared int64, but is float",
    ),
    "shapes": (
        of(node("Reshape", "w shape", "s", "r"), node("MatMul", "x s", "y")),
        GRAPH + "the Reshape node 'r' reads 'shape', which nothing before it makes",
    ),
    "matrices": (
        model(
            [node("MatMul", "x w", "y")],
            [value("x", "N", 3)],
            [value("y", "N", 2)],
            [constant("w", np.ones((5, 2), np.float32))],
        ),
        GRAPH + r"the shapes at the node 'MatMul -> y' do "
        r"not fit \(Incompatible dimensions for matrix multiplication\)",
    ),
    "too many inputs": (
        of(node("Log", "x x", "y", "log")),
        GRAPH + r"the Log node 'log': it has input size 2 not in "
        r"range \[min=1, max=1\]",
    ),
    "an attribute": (
        of(node("Log", "x", "y", "log", base=2)),
        GRAPH + "the Log node 'log': Unrecognized attribute: base",
    ),
    "a value made twice": (of(node("Log", "x", "y"), node("Exp", "x", "y")), GRAPH + "two nodes or constants make 'y'"),
    "a circle": (of(node("Mul", "y w", "s"), node("Log", "s", "y")), GRAPH + "the node 'Mul -> s' reads 'y', which"),
    "a branch": (branching(BRANCH), GRAPH + "the node 'Log -> t' reads 'nowhere', which nothing before it makes"),
    "the order in a branch": (branching(LATE), GRAPH + "inside the If node 'choose' a Log reads 'u', which nothing"),
    "a constant cut short": (
        changed(lambda p: setattr(first(p), "raw_data", bytes(5))),
        GRAPH + r"the constant 'w' of "
        r"shape \[3\] does not hold as many values as that",
    ),
    "an element type": (
        changed(lambda p: setattr(first(p), "data_type", 99)),
        GRAPH + "the constant 'w' has the element type 99, which ONNX does not define",
    ),
    "an input without a type": (
        changed(lambda p: p.graph.input[0].ClearField("type")),
        "the input 'x' of .*m.onnx has no element type that ONNX defines",
    ),
    "weights that are not there": (
        changed(outside("w.bin")),
        "keeps the weights 'w' in 'w.bin', which is not beside it",
    ),
    "weights cut short": (
        changed(outside("short.bin")),
        r"in 'short\.bin', which is too short or cannot be read \(4 b",
    ),
    "weights elsewhere": (changed(outside("../w.bin")), r"in '\.\./w\.bin', which is not in the folder of the model"),
    "weights nowhere": (changed(outside("")), "in another file, but does not say in which"),
    "text": (b"<!DOCTYPE html>\n", "m.onnx is a text file .it begins with '<!DOCTYPE html>'., and not an ONNX model"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "Git LFS's pointer to a model"),
    "an archive": (b"PK\x03\x04" + bytes(60), "is a zip archive"),
    "a compressed file": (b"\x1f\x8b\x08\x00" + bytes(60), "is compressed by gzip"),
    "an empty file": (b"", "holds no graph: it is empty, cut short"),
    "half a file": (LOG_MODEL.SerializeToString()[:60], "was cut short: it cannot be parsed"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_every_kind_of_broken_file_is_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made, told = REFUSED[kind]
    Path("m.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    Path("short.bin").write_bytes(b"1234")
    assert main(["nan", "m.onnx", "--input", "x=float32[2,3]:0..1", "--out", "run"]) == 2
    said = capsys.readouterr()
    assert re.search(told, said.err), said.err
    assert "m.onnx" in said.err
    assert said.err.startswith("nnfuzz: error: ")
    assert said.err.count("\n") == 1
    assert len(said.err) < 400
    assert not CPP.search(said.err)
    assert not Path("run").exists()


def test_the_second_model_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(LOG_MODEL, "a.onnx")
    onnx.save(changed(imports(ai_onnx=99)), "b.onnx")
    assert main(["diff", "a.onnx", "b.onnx", "--input", "x=float32[2,3]:0..1"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("nnfuzz: error: b.onnx uses opset 99 of the domain 'ai.onnx'")
    assert said.out == ""


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_a_file_with_wrong_bytes_loads_or_is_refused_in_one_sentence(
    changes: list[tuple[int, int]], branched: bool
) -> None:
    held = bytearray((branching(graph([node("Log", "x", "t")], [], [value("t", "N", 3)])) if branched else LOG_MODEL)
                     .SerializeToString())  # fmt: skip
    for at, byte in changes:
        held[at % len(held)] = byte
    try:
        proto = ModelProto.FromString(bytes(held))
    except Exception:  # the file cannot be parsed: a case of its own above
        return
    said = ""
    try:
        nnfuzz.onnx.load(proto)
    except UsageError as error:
        said = str(error)
    assert said.isprintable()
    assert not CPP.search(said)


def test_nodes_may_stand_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime runs such graphs, so the interpreter does."""
    proto = of(node("Log", "s", "y", "log"), node("Mul", "x w", "s", "scale"))
    given = proto.SerializeToString()
    loaded = nnfuzz.onnx.load(proto)
    assert proto.SerializeToString() == given
    assert [n.name for n in loaded.program.graph.nodes] == ["scale", "log"]
    onnx.save(proto, tmp_path / "m.onnx")
    words = ["nan", str(tmp_path / "m.onnx"), "--input", "x=float32[2,3]:-1..1", "--out", str(tmp_path / "run")]
    assert main([*words, "--max-inputs", "200"]) == 1
    assert "log" in capsys.readouterr().out


def test_a_node_without_a_name_is_told_by_what_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shapes = [constant("same", np.array([-1, 3])), constant("other", np.array([7, 3]))]
    nodes = [node("Reshape", "x same", "s"), node("Log", "s", "l"), node("Reshape", "l other", "y")]
    onnx.save(model(nodes, [value("x", "N", 3)], [value("y", 7, 3)], shapes), "m.onnx")
    words = ["nan", "m.onnx", "--input", "x=float32[2,3]:-1..1", "--max-inputs", "300"]
    assert main(words) == 3
    said = capsys.readouterr().err
    assert "node 'Reshape -> y': The input tensor cannot be reshaped to the requested shape" in said
    assert "''" not in said
    onnx.save(model([node("Log", "x", "y")], [value("x", "N", 3)], [value("y", "N", 3)]), "log.onnx")
    assert main(["nan", "log.onnx", *words[2:], "--out", "run"]) == 1
    assert "Log (Log -> y)" in capsys.readouterr().out
    assert "goes wrong: `Log -> y` (`Log`)" in Path("run/findings/F0001/README.md").read_text()
    assert main(["nan", "log.onnx", *words[2:], "--layers", "none"]) == 2
    assert capsys.readouterr().err.endswith("the nodes are Log -> y\n")
