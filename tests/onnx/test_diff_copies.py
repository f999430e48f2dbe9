"""Copies of ONNX models as onnxruntime makes them, and what a diff finds and says of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import BOOL, INT64, constant, graph, model, node, value

import nnfuzz
import onnx
from nnfuzz.cli import main
from nnfuzz.divergence.begins import Parting
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.gradient import ScoreGuide
from nnfuzz.jobs import DiffJob, make_job
from nnfuzz.objectives import Disagreement
from nnfuzz.onnx import load
from nnfuzz.onnx.copies import Maker, Way, with_initializers, with_names
from nnfuzz.onnx.order import in_order
from nnfuzz.onnx.processor import saturates, saturating
from nnfuzz.onnx.program import OnnxProgram
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.settings import Settings
from nnfuzz.targets import Want

WAYS = ("int8-dynamic", "int8-static", "fp16")


def mlp(opset: int = 17, named: bool = True, scale: float = 1.0) -> onnx.ModelProto:
    """4 → 8 → 3 with ReLU."""
    draw = np.random.default_rng(0)
    first, second = (draw.normal(size=s).astype(np.float32) for s in ((4, 8), (8, 3)))
    first[:, 0] *= scale
    names = ("first", "bend", "second", "add") if named else (None, None, None, None)
    return model(
        [
            node("MatMul", "x w1", "h", names[0]),
            node("Relu", "h", "r", names[1]),
            node("MatMul", "r w2", "s", names[2]),
            node("Add", "s b", "y", names[3]),
        ],
        [value("x", "n", 4)],
        [value("y", "n", 3)],
        [constant("w1", first), constant("w2", second), constant("b", np.zeros(3, np.float32))],
        opset=opset,
    )


def conv(opset: int = 11) -> onnx.ModelProto:
    """A convolution with its weights in a Constant node, batch normalisation, and a linear layer."""
    draw = np.random.default_rng(1)
    held = {"w": (4, 2, 3, 3), "m": (4, 3)}
    weights = {n: draw.normal(size=s).astype(np.float32) for n, s in held.items()}
    ones = np.ones(4, np.float32)
    return model(
        [
            node("Constant", "", "w", value=constant("", weights["w"])),
            node("Conv", "x w", "c"),
            node("BatchNormalization", "c one zero zero one", "n"),
            node("Relu", "n", "r"),
            node("GlobalAveragePool", "r", "g"),
            node("Flatten", "g", "f"),
            node("MatMul", "f m", "y"),
        ],
        [value("x", "n", 2, 6, 6)],
        [value("y", "n", 3)],
        [constant("m", weights["m"]), constant("one", ones), constant("zero", 0 * ones)],
        opset=opset,
    )


SEEDS = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(8, 2, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("proto", "seeds"), [(mlp(), SEEDS), (mlp(11, named=False), SEEDS), (conv(), IMAGES)])
def test_copies_are_near_the_model_and_run_in_both_runtimes(way: str, proto: onnx.ModelProto, seeds: Any) -> None:
    whole = load(proto)
    copies = Maker(whole, Way.of(way), [{"x": seeds}])
    made = copies.model()
    mine, theirs = whole(seeds)["y"], made(seeds)["y"]
    assert theirs.dtype == torch.float32
    gap = float((mine - theirs).abs().max())
    assert 0 < gap < 0.1 * float(mine.abs().max())
    inside = OnnxProgram(made.proto)(seeds)["y"]
    torch.testing.assert_close(inside, theirs, rtol=0.05, atol=0.05)
    assert [s.dtype for s in made.inputs] == [torch.float32]


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_may_stay_as_it_was(way: str) -> None:
    copies = Maker(load(mlp()), Way.of(way), [{"x": SEEDS}])
    layers = copies.layers()
    assert layers["first"] == "MatMul"
    assert any(name.startswith("second") for name in layers)
    whole, kept = copies.make(), copies.make(["first"])
    plain = {t.name: t.data_type for t in kept.graph.initializer}
    assert plain["w1"] == onnx.TensorProto.FLOAT
    assert {t.name: t.data_type for t in whole.graph.initializer}.get("w1") != onnx.TensorProto.FLOAT
    assert copies.make().SerializeToString() == whole.SerializeToString()


def test_weights_have_a_scale_for_each_channel() -> None:
    made = Maker(load(conv(11)), Way.of("int8-static"), [{"x": IMAGES}]).make()
    scales = [t for t in made.graph.initializer if t.name.endswith("_scale") and len(t.dims) == 1 and t.dims[0] > 1]
    assert any(t.dims[0] == 4 for t in scales)
    assert Counter(n.op_type for n in made.graph.node)["BatchNormalization"] == 0  # folded before quantization


def test_element_types_can_be_named() -> None:
    made = Maker(load(mlp()), Way.of("int8-static:int8,int8"), [{"x": SEEDS}]).make()
    kinds = {t.name: t.data_type for t in made.graph.initializer}
    assert kinds["x_zero_point"] == onnx.TensorProto.INT8
    with pytest.raises(Unsupported, match="no int8-static copy of g can be made: ValueError"):
        Maker(load(mlp()), Way.of("int8-static:int8,uint8"), [{"x": SEEDS}]).make()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("int4", "the copy 'int4' of an ONNX model is not known: choose one of int8-dynamic, int8-static, fp16"),
        ("bf16", "the copy 'bf16' of an ONNX model is not known"),
        ("fp16:int8", "does not say which element types"),
        ("int8-static:float", "does not say which element types"),
        ("int8-dynamic:uint8,int8", "int8-dynamic quantizes activations to uint8 always"),
    ],
)
def test_words(word: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        nnfuzz.diff(mlp(), None, SEEDS, as_=word)


def test_what_cannot_be_copied_is_said() -> None:
    quantized = Maker(load(mlp()), Way.of("int8-static"), [{"x": SEEDS}]).make()
    with pytest.raises(Unsupported, match="is quantized already"):
        nnfuzz.diff(quantized, None, SEEDS, as_="int8-static")
    plain = model([node("Floor", "x", "y")], [value("x", "n", 4)], [value("y", "n", 4)])
    with pytest.raises(Unsupported, match="is the model itself: it holds no operator that onnxruntime converts"):
        nnfuzz.diff(plain, None, SEEDS, as_="int8-dynamic")
    with pytest.raises(Unsupported, match="--as int8-static makes copies of ONNX models, but the model is a Linear"):
        nnfuzz.diff(torch.nn.Linear(4, 3), None, SEEDS, as_="int8-static")


def test_nodes_come_after_what_they_read() -> None:
    proto = mlp()
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(proto.graph.node)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert [n.op_type for n in in_order(proto).graph.node] == ["MatMul", "Relu", "MatMul", "Add"]


def test_names_and_constants_are_prepared() -> None:
    made = with_names(with_initializers(conv()))
    assert "Constant" not in {n.op_type for n in made.graph.node}
    assert "w" in {t.name for t in made.graph.initializer}
    names = [n.name for n in made.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------------------ of a run


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that goes far beyond what the seeds of calibration showed."""
    place: Path = tmp_path_factory.mktemp("copies")
    onnx.save(mlp(), place / "net.onnx")
    np.savez(place / "seeds.npz", x=SEEDS.numpy())
    run = nnfuzz.diff(
        place / "net.onnx", None, SEEDS, as_="int8-static", ranges=(-4, 4), max_inputs=4000, max_seconds=20,
        out=place / "run",
    )  # fmt: skip
    assert run.findings
    return place


def test_the_copy_lies_in_the_run_and_reruns(found: Path) -> None:
    assert (found / "run" / "copy.onnx").is_file()
    finding = found / "run" / "findings" / "F0001"
    assert nnfuzz.repro(finding).reproduced
    moved = found / "elsewhere"
    finding.rename(moved)
    assert nnfuzz.repro(moved).reproduced
    moved.rename(finding)
    script = subprocess.run([sys.executable, str(finding / "repro.py")], capture_output=True, text=True, check=False)
    assert script.returncode == 1, script.stderr
    assert "REPRODUCED: disagreement" in script.stdout


def test_clipping_is_named(found: Path) -> None:
    assert "relative difference layer by layer (matched by name)" in nnfuzz.explain(found / "run/findings/F0001")
    place = found / "far"
    run = nnfuzz.diff(
        mlp(), None, SEEDS, as_="int8-static", ranges=(-4, 4), compare="allclose:2", max_inputs=2000, out=place,
        stop_on_first=True,
    )  # fmt: skip
    assert run.findings
    text = nnfuzz.explain(place / "findings" / "F0001", mlp())
    assert "clipped" in text
    assert "it begins at x (input)" in text
    assert "lie beyond the quantized range" in (place / "findings" / "F0001" / "README.md").read_text()


def test_the_layer_to_blame_is_told_on_the_command_line(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", str(found / "run")]) == 0
    said = capsys.readouterr().out
    assert "disagreeing inputs rerun with one layer left as in A, all layers tried" in said
    assert "agree again" in said
    assert (found / "run" / "sensitivity.json").is_file()


def test_resumed_runs_take_the_copy_that_they_made(found: Path) -> None:
    before = (found / "run" / "copy.onnx").read_bytes()
    run = nnfuzz.resume(found / "run", max_inputs=5000, max_seconds=60)
    assert run.stats.inputs >= 4000
    assert (found / "run" / "copy.onnx").read_bytes() == before


def test_the_command_line_makes_copies(
    found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["diff", str(found / "net.onnx"), "--seeds", str(found / "seeds.npz"), "--out", "run", "-n", "3000"]
    assert main([*words, "--as", "fp16", "--compare", "allclose:1e-4", "--least", "--coverage-of", "both"]) == 1
    said = capsys.readouterr().out
    assert "least disturbance: " in said
    assert main([*words, "--sensitivity"]) == 2
    assert main([*words, "--as", "fp8"]) == 2
    assert "choose one of fp16, bf16, int8, int8-dynamic, int8-static" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ inside


def prepared(a: Any, b: Any, seeds: torch.Tensor = SEEDS, **more: Any) -> DiffJob:
    job = make_job(Settings(job="diff", **more), a, b, seeds)
    assert isinstance(job, DiffJob)
    job.prepare()
    return job


def test_gradients_lead_with_the_values_of_the_real_runtime() -> None:
    job = prepared(load(mlp()), None, as_="int8-static")
    assert job.pair is not None
    assert job.pair.b.quantized
    guide = ScoreGuide(job.pair, Disagreement("argmax"))
    leaves = {"x": SEEDS[:3].clone().requires_grad_()}
    seen = guide.look(leaves, lambda key: False)
    assert set(seen[0]) == {"score", "difference"}
    (slope,) = torch.autograd.grad(torch.stack([s["score"] for s in seen]).sum(), leaves["x"])
    assert bool((slope != 0).any())
    a, b = job.pair.a.onnx(SEEDS[:3])["y"], job.pair.b.onnx(SEEDS[:3])["y"]  # type: ignore[attr-defined]
    margins = []
    for t in (a, b):
        top = t.topk(2, 1).values
        margins.append((top[:, 0] - top[:, 1]) / top.abs().amax(1))
    told = torch.stack([s["score"].detach() for s in seen])
    torch.testing.assert_close(told, torch.minimum(*margins), rtol=1e-4, atol=1e-5)


def test_a_wrong_node_is_named() -> None:
    """Torch against ONNX: one row of the second weight is wrong, behind a unit that is silent on the seeds."""
    proto = mlp()
    weights = {t.name: onnx.numpy_helper.to_array(t).copy() for t in proto.graph.initializer}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 3)
            with torch.no_grad():
                self.first.weight.copy_(torch.from_numpy(weights["w1"].T))
                self.second.weight.copy_(torch.from_numpy(weights["w2"].T))
                self.second.bias.zero_()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]

    net = Net().eval()
    active = torch.relu(SEEDS @ torch.from_numpy(weights["w1"])).sum(0)
    silent = int(active.argmin())
    seeds = SEEDS[(SEEDS @ torch.from_numpy(weights["w1"]))[:, silent] <= 0]
    assert len(seeds) >= 4
    wrong = weights["w2"].copy()
    wrong[silent] = wrong[silent][::-1] + 2
    proto.graph.initializer[1].CopyFrom(constant("w2", wrong))
    job = prepared(net, OnnxModel(proto), seeds)
    assert job.pair is not None
    parting = Parting(job.pair, [g.batch for g in job.seeds.groups])
    direction = torch.from_numpy(weights["w1"][:, silent])
    begins = parting.begins({"x": (5 * direction / direction.norm())[None]})
    assert begins.by == "correlation"
    assert begins.first is not None
    assert begins.first.name == "second"
    assert begins.layers[0].here < 1e-5


def test_coverage_may_see_either_side() -> None:
    for covered, names in (("a", 1), ("b", 1), ("both", 2)):
        job = prepared(load(mlp()), load(mlp(scale=1.5)), covered=covered)
        layers = job.target.run({"x": SEEDS[:2]}, Want()).layers
        assert len(layers) == names, layers
        assert any(n.startswith("b.") for n in layers) == (covered != "a")


def test_a_layer_whose_numbers_half_precision_cannot_hold_is_named_though_every_seed_fails() -> None:
    """Variances beyond 65504, as a text detector has them: the copy answers otherwise on all inputs."""
    draw = np.random.default_rng(0)
    names = ("scale", "shift", "mean", "variance")
    held = dict(zip(names, (np.ones(4), np.zeros(4), np.zeros(4), np.full(4, 3e7)), strict=True))
    made = model(
        [
            node("Conv", "x w", "c", "conv", kernel_shape=[1, 1]),
            node("Mul", "c thousand", "m", "grow"),
            node("BatchNormalization", "m scale shift mean variance", "n", "norm"),
            node("GlobalAveragePool", "n", "g", "pool"),
            node("Flatten", "g", "f", "flat"),
            node("MatMul", "f v", "y", "head"),
        ],
        [value("x", "n", 2, 3, 3)],
        [value("y", "n", 3)],
        [
            constant("w", draw.normal(size=(4, 2, 1, 1)).astype(np.float32)),
            constant("v", draw.normal(size=(4, 3)).astype(np.float32)),
            constant("thousand", np.float32(3000)),
            *(constant(n, a.astype(np.float32)) for n, a in held.items()),
        ],
    )
    seeds = torch.rand(8, 2, 3, 3, generator=torch.Generator().manual_seed(0)) + 0.5
    run = nnfuzz.diff(load(made), None, seeds, as_="fp16", compare="allclose:0.05,0.05", max_inputs=100)
    told = run.findings[0].details["begins at"]
    assert told.startswith("norm (BatchNormalization)")
    assert told.endswith("far more than any layer before it")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("sse4_1 avx2 fma", True),
        ("avx2 avx512f avx512bw", True),
        ("avx2 avx512f avx512_vnni", False),
        ("avx2 avx_vnni", False),
        ("sse4_1", False),
    ],
)
def test_which_processors_saturate(flags: str, told: bool) -> None:
    lines = f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\n"
    assert saturating(lines + lines.replace(": 0", ": 1")) == told
    assert not saturating("processor\t: 0\nFeatures\t: asimd asimddp\n")  # ARM


@pytest.mark.parametrize(
    ("way", "instead"),
    [
        ("int8-static", "int8-static:uint8,uint8"),
        ("int8-dynamic", "int8-dynamic:uint8"),
        ("int8-static:uint8,uint8", ""),
        ("int8-static:int8,int8", ""),
        ("int8-dynamic:uint8", ""),
        ("fp16", ""),
    ],
)
def test_a_copy_that_saturates_here_is_said(
    way: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: sse4_1 avx2 fma\n")
    monkeypatch.setattr("nnfuzz.onnx.processor.PLACE", tmp_path / "cpuinfo")
    saturates.cache_clear()
    try:
        maker = Maker(load(mlp()), Way.of(way), [{"x": torch.randn(16, 4)}])
        maker.make()
        maker.make(["first"])
    finally:
        saturates.cache_clear()
    said = [n for n in maker.notes if "VNNI" in n]
    assert len(said) == bool(instead)
    if instead:
        assert f"; --as {instead} does not saturate anywhere" in said[0]
        assert load(Maker(load(mlp()), Way.of(instead), maker.parts).make())(torch.zeros(1, 4))  # and it runs


def test_a_machine_that_cannot_be_asked_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnfuzz.onnx.processor.PLACE", tmp_path / "none")
    saturates.cache_clear()
    assert not saturates()
    saturates.cache_clear()


def test_a_loop_without_weights_has_no_int8_copy() -> None:
    """The converter rewrites its body and changes nothing in it."""
    body = graph(
        [node("Sqrt", "v", "r"), node("Identity", "go", "on")],
        [value("i", dtype=INT64), value("go", dtype=BOOL), value("v", "n", 4)],
        [value("on", dtype=BOOL), value("r", "n", 4)],
    )
    constants = [constant("trip", np.array(2)), constant("yes", np.array(True))]
    looped = model([node("Loop", "trip yes x", "y", body=body)], [value("x", "n", 4)], [value("y", "n", 4)], constants)
    with pytest.raises(Unsupported, match=r"the int8-dynamic copy of .* is the model itself"):
        Maker(load(looped), Way.of("int8")).make()


def test_an_output_that_is_clipped_to_levels_is_in_the_table() -> None:
    """The last tensor of a copy is rounded under another name than the original's output: only there A's −inf ends."""
    made = model(
        [node("Relu", "x", "r", "bend"), node("Log", "r", "l", "log"), node("MatMul", "l w", "y", "head")],
        [value("x", "n", 1)],
        [value("y", "n", 2)],
        [constant("w", np.array([[1.0, 2.0]], np.float32))],
    )
    seeds = torch.linspace(0.5, 3, 8)[:, None]
    job = prepared(load(made), None, seeds, as_="int8-static", compare="allclose:0.5")
    found = Parting(job.target, [g.batch for g in job.seeds.groups], derived=True).begins({"x": torch.tensor([[-1.0]])})
    layers = {x.name: x for x in found.layers}
    assert layers["head"].here == float("inf")
    assert found.first is not None
    assert found.first.here == float("inf")
