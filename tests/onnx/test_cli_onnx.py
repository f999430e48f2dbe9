"""ONNX files on the command line: from seeds to a finding and back, and what is said to those who err."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from target_zoo import FLOAT, classifier, log_of_softmax, model, node, recurrent, saved

import onnx
from nnfuzz.cli import main

QUICK = ["--plain", "--max-inputs", "800"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models and seeds, in which commands are typed."""
    monkeypatch.chdir(tmp_path)
    saved(log_of_softmax(), tmp_path / "loss.onnx")
    saved(classifier(), tmp_path / "a.onnx")
    saved(classifier(1.05, x="input.1", y="out/scores"), tmp_path / "b.onnx")
    saved(recurrent(), tmp_path / "stream.onnx")
    wide = model([node("Abs", ["x"], ["y"])], [("x", FLOAT, ["n", "k"])], [("y", FLOAT, ["n", "k"])])
    saved(wide, tmp_path / "ab.onnx")
    (tmp_path / "sum.py").write_text("def total(x):\n    return x.sum(1)\n")
    np.savez(tmp_path / "seeds.npz", x=np.random.default_rng(0).uniform(-1, 1, (8, 6)).astype(np.float32))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
    """Output of one command with this exit status; of an error, its one line."""
    found = main(list(words))
    out = capsys.readouterr()
    assert found == status, out.out + out.err
    if status == 2:
        assert out.err.startswith("nnfuzz: error: ")
        assert out.err.count("\n") == 1
        return out.err.removeprefix("nnfuzz: error: ").strip()
    return out.out


@pytest.mark.parametrize(
    ("code", "name", "wider"),
    [
        (onnx.TensorProto.FLOAT8E4M3FN, "float8e4m3fn", "float"),
        (onnx.TensorProto.UINT64, "uint64", "int64"),
        (onnx.TensorProto.UINT16, "uint16", "int64"),
        (onnx.TensorProto.INT4, "int4", "int64"),
    ],
)
def test_types_that_cannot_be_mutated_are_refused(
    desk: Path, capsys: pytest.CaptureFixture[str], code: int, name: str, wider: str
) -> None:
    cast = onnx.helper.make_node("Cast", ["x"], ["y"], to=FLOAT)
    saved(model([cast], [("x", code, ["n", 3])], [("y", FLOAT, ["n", 3])], opset=21), desk / "odd.onnx")
    for words in (["seeds", "odd.onnx", "--n", "4", "-o", "odd.npz"], ["nan", "odd.onnx", "--seeds", "seeds.npz"]):
        sentence = said(capsys, *words, status=2)
        assert f"the input 'x' of odd.onnx is of type {name}, in which torch does not compute" in sentence
        assert f"declare it as {wider}" in sentence


def test_a_model_that_is_gone_is_asked_for(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nan", "loss.onnx", "--seeds", "seeds.npz", "--range", "-10:10", "--out", "run", *QUICK]
    said(capsys, *words, status=1)
    (desk / "loss.onnx").rename(desk / "moved.onnx")
    for again in (["repro", "run/findings/F0001"], ["explain", "run/findings/F0001"], ["resume", "run"]):
        sentence = said(capsys, *again, status=2)
        assert "names its model loss.onnx" in sentence
        assert "say where it is now with --model" in sentence
    said(capsys, "repro", "run/findings/F0001", "--model", "moved.onnx", status=1)


def test_from_seeds_to_a_repaired_model(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = said(capsys, "seeds", "loss.onnx", "--n", "12", "-o", "made.npz", "--range", "x=-1:1", status=0)
    assert made.splitlines() == ["x  float32[12, 6]  -1..1, as given", "saved in made.npz"]
    text = said(
        capsys, "nan", "loss.onnx", "--seeds", "made.npz", "--range", "-10:10", "--out", "run", *QUICK, status=1
    )
    assert "loss.onnx (ONNX opset 17, 4 nodes; ONNX Runtime " in text
    assert "looks for NaN and Inf in outputs\n" in text
    assert "found F0001  +Inf at Log (take_log)" in text
    assert "Log(p) -> lp" in text
    finding = "run/findings/F0001"
    readme = Path(finding, "README.md").read_text()
    assert "First node that goes wrong: `take_log` (`Log`), which makes `lp` from `p`" in readme
    assert "needs onnxruntime, numpy and safetensors alone" in readme
    assert said(capsys, "repro", finding, status=1).endswith("reproduced\n")
    assert "written: fixed.onnx" in said(capsys, "explain", finding, status=0)
    assert "not reproduced" in said(capsys, "repro", finding, "--model", f"{finding}/fixed.onnx", status=0)
    for again in (["repro", finding], ["resume", "run", "--max-inputs", "900"]):
        assert said(capsys, *again, "--model", "stream.onnx", status=2) == (
            "stream.onnx takes x float32[batch, 4], state float32[2, batch, 3], rate int64[], but the seeds of the run "
            "are x float32[1, 6]: give the model that it was made with, or another that takes the same"
        )
    assert "Log, node take_log" in said(capsys, "show", finding, status=0)
    assert "loss.onnx" in said(capsys, "show", "run", status=0)
    told = said(capsys, "shrink", finding, "--max-inputs", "200", status=0)
    assert ("it stays as it was" in told) == Path(finding, "fixed.onnx").is_file()
    assert ("it stays as it was" in told) != ("fixed.onnx was verified on the input as it was" in told)
    assert "1 finding in 1,000 inputs" in said(capsys, "resume", "run", "--max-inputs", "1000", "--plain", status=1)


def test_seeds_may_be_drawn_from_a_declaration(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "nan", "loss.onnx", "--input", "x=float32[1,6]:-10..10", *QUICK, status=1)


def test_streaming_models_from_made_seeds(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "seeds", "stream.onnx", "-n", "6", "-o", "s.safetensors", "--range", "rate={8000,16000}", status=0)
    text = said(capsys, "nan", "stream.onnx", "--seeds", "s.safetensors", "--fix", "rate", *QUICK, status=0)
    assert "state  float32[2, 1, 3]" in text
    assert "rate   int64[]" in text


def test_pairs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "diff", "a.onnx", "b.onnx", "--seeds", "seeds.npz", "--range", "-10:10", *QUICK, status=1)
    assert "inputs matched (A = B): x = input.1; outputs: scores = out/scores" in text
    both = ["diff", "a.onnx", "a.onnx", "--seeds", "seeds.npz", "--compare", "allclose:1e-3"]
    text = said(capsys, *both, "--ort-opt", "none", "--ort-opt-b", "all", *QUICK, "--out", "levels", status=0)
    assert "optimisation none); B = a.onnx" in text
    context = json.loads((desk / "levels" / "run.json").read_text())["context"]
    assert context["onnx"] == {"model": {"optimisation": "none"}}  # the others are what they are without a word
    text = said(capsys, *both, "--ort-opt", "basic", "--map", "scores=scores", *QUICK, status=0)
    assert text.count("optimisation basic") == 2  # B as A, unless it is told otherwise


def test_layers_are_nodes(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "nan", "a.onnx", "--seeds", "seeds.npz", "--layers", "relu,h", *QUICK, status=0)
    text = said(capsys, "nan", "a.onnx", "--seeds", "seeds.npz", "--layers", "conv*", *QUICK, status=2)
    assert text == "no node and no value of a.onnx matches --layers conv*: the nodes are fc1, relu, fc2"


MESSAGES = {
    "nan a.onnx": "there are no seeds: give --seeds SEEDS, or make some with nnfuzz seeds a.onnx -o seeds.npz",
    "nan gone.onnx --seeds seeds.npz": "there is no file gone.onnx",
    "nan a.onnx --seeds seeds.npz --ort-opt best": "--ort-opt: 'best' is not known: choose one of none, basic, "
    "extended, all",
    "nan a.onnx --seeds seeds.npz --train": "--train is asked for, but a.onnx is an ONNX model, which has no training "
    "mode",
    "diff a.onnx b.onnx --seeds seeds.npz --map scores": "--map: 'scores' does not name two: write A_NAME=B_NAME",
    "diff a.onnx b.onnx --seeds seeds.npz --map p=q": "--map p=q: A has no input or output 'p', its input is x, its "
    "output "
    "is scores: use one of these",
    "diff a.onnx b.onnx --seeds seeds.npz --map x=q": "--map x=q: B has no input 'q', its input is input.1: use one of "
    "these",
    "diff a.onnx b.onnx --seeds seeds.npz --map scores=q": "--map scores=q: B has no output 'q', its output is "
    "out/scores: "
    "use one of these",
    "diff a.onnx stream.onnx --seeds seeds.npz": "B takes the inputs x float32[batch, 4], state float32[2, batch, "
    "3], rate "
    "int64[] and A takes x float32[n, 6]: nothing of A fits 'state', 'rate'; say what does with --map A_NAME=B_NAME",
    "diff a.onnx --as fp16 --seeds seeds.npz --ort-opt-b none": "--ort-opt-b speaks of MODEL_B, but --as derives a "
    "copy, which runs as MODEL_A does: leave it out, use --ort-opt or --provider for both, or give the copy as MODEL_B",
    "seeds a.onnx -o seeds.txt": "seeds.txt is neither .npz nor .safetensors: seeds are saved as one of these",
    "seeds a.onnx": "seeds.npz already exists: choose another place with -o, or delete it",
    "seeds a.onnx -o .": ". is a directory, but seeds are a file: name one in it, -o seeds.npz",
    "seeds a.onnx -o new.npz --n 1000000000": "1,000,000,000 seeds of 24 bytes (22.4 GiB) cannot be made, at most "
    "1,000,000 seeds: give a smaller --n (a search uses at most 10,000)",
    "seeds ab.onnx -o new.npz --n 1 --dim k=1000000000": "1 seed of 4,000,000,000 bytes (3.7 GiB) cannot be made, at "
    "most 2 GiB: give smaller sizes with --dim",
    "seeds ab.onnx -o new.npz --n 1000 --dim k=1000000": "1,000 seeds of 4,000,000 bytes (3.7 GiB) cannot be made, at "
    "most 2 GiB: give a smaller --n (a search uses at most 10,000) or smaller sizes with --dim",
    "seeds sum.py:total -o new.npz --n 100 --input x=float32[1,16000000]:0..1": "100 seeds of 64,000,000 bytes (6.0 "
    "GiB) cannot be made, at most 2 GiB: give a smaller --n (a search uses at most 10,000) or smaller inputs with "
    "--input",
    "seeds a.onnx --dim 3": "--dim: '3' does not say which dimension: write batch=1, or x.2=48 for the axis 2 of x",
    "seeds a.onnx -o new.npz --dim k=3": "--dim names 'k', but the free dimensions are n: use these",
    "nan stream.onnx --seeds seeds.npz": "stream.onnx takes x (float[batch, 4]), state (float[2, batch, 3]), rate "
    "(int64[]), but the seeds give 'x': give 'state', 'rate' too",
}


@pytest.mark.parametrize("command", MESSAGES)
def test_messages(desk: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert said(capsys, *command.split(), status=2) == MESSAGES[command]


def test_a_provider_that_is_not_there(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "nan", "a.onnx", "--seeds", "seeds.npz", "--provider", "tpu", status=2)
    assert text.startswith("ONNX Runtime has no provider 'tpu' here, only ")
    (desk / "net.py").write_text("import torch\nnet = torch.nn.Linear(6, 3)\n")
    text = said(capsys, "nan", "net.py:net", "--seeds", "seeds.npz", "--provider", "cpu", status=2)
    assert text == "--provider and --ort-opt speak of ONNX models, but net.py:net is none"


def test_a_graph_that_leaves_its_rank_open(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_rank = saved(classifier(), desk / "open.onnx")
    proto = onnx.load(open_rank)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, open_rank)
    assert said(capsys, "seeds", "open.onnx", "-o", "new.npz", status=2) == (
        "the graph does not say how many axes 'x' has, so no seeds can be made for it: declare them where they are "
        "used, "
        "for instance by --input x=float32[1,3,32,32]:0..1"
    )
    said(capsys, "nan", "open.onnx", "--input", "x=float32[4,6]:-1..1", *QUICK, status=0)
