"""MODEL: what is loaded, what is refused, and whose error it is."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.loading import load_model, load_object, rebuild

SOURCE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.fc = nn.Linear(4, width)
    def forward(self, x):
        return self.fc(x)

class Needs(nn.Module):
    def __init__(self, width, depth):
        super().__init__()

class Plain:
    pass

net = Net()
box = type("Box", (), {"net": net})()
number = 3

def f(x):
    return x * 2

def make():
    return Net(7)

def make_f():
    return f

def make_nothing():
    return {"a": torch.ones(1)}

def broken():
    raise RuntimeError("no weights here")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    modules, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo.py").write_text(SOURCE)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()


@pytest.mark.parametrize("name", ["net", "Net", "make", "box.net"])
def test_modules(project: Path, name: str) -> None:
    model = load_model(f"zoo.py:{name}")
    assert isinstance(model, nn.Module)
    assert model(torch.ones(2, 4)).shape[0] == 2


@pytest.mark.parametrize("name", ["f", "make_f"])
def test_functions(project: Path, name: str) -> None:
    assert load_model(f"zoo.py:{name}")(torch.tensor(3.0)) == 6


def test_modules_by_name(project: Path) -> None:
    assert load_model("zoo:f")(torch.tensor(3.0)) == 6
    assert load_model("torch.nn.functional:relu") is nn.functional.relu


def test_one_file_runs_once(project: Path) -> None:
    assert load_object("zoo.py:net") is load_object(f"{project}/zoo.py:net")


def test_random_weights_are_the_same_again(project: Path) -> None:
    torch.manual_seed(5)
    first = load_model("zoo.py:make")
    torch.manual_seed(6)
    assert torch.equal(first.fc.weight, load_model("zoo.py:make").fc.weight)


def test_loading_leaves_the_random_state(project: Path) -> None:
    before = torch.get_rng_state()
    load_model("zoo.py:make")
    assert torch.equal(before, torch.get_rng_state())


def test_neighbours_and_late_imports(project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "helper_of_zoo.py").write_text("late = 5\n")
    (project / "sub" / "main_zoo.py").write_text(
        "def f(x):\n    import helper_of_zoo\n    return x + helper_of_zoo.late\n"
    )
    assert load_model("sub/main_zoo.py:f")(torch.tensor(1)) == 6


def test_two_versions_of_one_project(project: Path) -> None:
    for version, factor in (("old", 2), ("new", 3)):
        (project / version).mkdir()
        (project / version / "zoo_layers.py").write_text(f"factor = {factor}\n")
        (project / version / "zoo_model.py").write_text(
            "import zoo_layers\ndef f(x):\n    return x * zoo_layers.factor\n"
        )
    old, new = load_model("old/zoo_model.py:f"), load_model("new/zoo_model.py:f")
    assert (old(torch.tensor(1)), new(torch.tensor(1))) == (2, 3)


def test_a_file_named_like_a_library_shadows_nothing(project: Path) -> None:
    (project / "json.py").write_text("def f(x):\n    return x\n")
    assert load_model("json.py:f")(1) == 1
    import json

    assert json.dumps(1) == "1"


def test_export_and_torchscript(project: Path) -> None:
    model, x = small(), torch.ones(2, 4)
    torch.export.save(torch.export.export(model, (x,)), project / "m.pt2")
    torch.jit.save(torch.jit.script(model), project / "m.pt")
    for name in ("m.pt2", "m.pt"):
        assert torch.equal(load_model(name)(x), model(x))


def test_pickle_needs_trust(project: Path) -> None:
    torch.save(small(), project / "m.pth")
    assert "runs whatever code it holds: give --trust" in _refused("m.pth")
    assert isinstance(load_model("m.pth", trust=True), nn.Sequential)


def test_no_code_runs_without_trust(project: Path) -> None:
    for old in (True, False):
        torch.save(_Evil(project), project / "evil.pth", _use_new_zipfile_serialization=not old)
        _refused("evil.pth")
    assert not (project / "ran").exists()


def test_no_code_hides_in_an_exported_program(project: Path) -> None:
    torch.export.save(torch.export.export(small(), (torch.ones(2, 4),)), project / "good.pt2")
    torch.save(_Evil(project), project / "evil.pt")
    with zipfile.ZipFile(project / "good.pt2") as good, zipfile.ZipFile(project / "bad.pt2", "w") as bad:
        for name in good.namelist():
            evil = "sample_inputs" in name
            bad.writestr(name, (project / "evil.pt").read_bytes() if evil else good.read(name))
    assert "cannot be loaded as an exported program" in _refused("bad.pt2")
    assert not (project / "ran").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


class _Evil:
    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.folder / "ran",))


def test_foreign_formats(project: Path) -> None:
    (project / "m.tflite").write_bytes(b"\x08\x07")
    with pytest.raises(Unsupported) as caught:
        load_model("m.tflite")
    assert str(caught.value) == "m.tflite is a LiteRT model, and this version of nnfuzz runs PyTorch and ONNX models"


def test_aotinductor_is_said(project: Path) -> None:
    with zipfile.ZipFile(project / "a.pt2", "w") as archive:
        archive.writestr("a/data/aotinductor/model/x.so", b"")
    with pytest.raises(Unsupported) as caught:
        load_model("a.pt2")
    assert "AOTInductor package: it holds machine code and no graph" in str(caught.value)


def test_weights_are_no_model(project: Path) -> None:
    torch.save(small().state_dict(), project / "w.pth")
    torch.save({"epoch": 3, "model": small().state_dict()}, project / "c.pt")
    for name in ("w.pth", "c.pt"):
        for trust in (False, True):
            with pytest.raises(UsageError) as caught:
                load_model(name, trust)
            assert str(caught.value) == (
                f"{name} holds weights and no model: give file.py:make_model, a function that builds the model and "
                "loads them"
            )


MESSAGES = {
    "zoo.py:nett": "zoo.py has no 'nett': did you mean 'net'?",
    "zoo.py:zzzzz": "zoo.py has no 'zzzzz'; it defines Net, Needs, Plain, net, box, number, f, make, …",
    "zoo.py": "'zoo.py' does not say which object is the model: write zoo.py:Net; it defines Net, Needs, Plain, net, "
    "box, number, f, make",
    "zoo.py:": "'zoo.py:' does not say which object is the model: write zoo.py:Net; it defines Net, Needs, Plain, "
    "net, box, number, f, make",
    "zoo.py:number": "zoo.py:number is an int, but a model is an nn.Module or a function of tensors",
    "zoo.py:Plain": "zoo.py:Plain is the class Plain, but a model is an nn.Module or a function of tensors",
    "zoo.py:Needs": "the class zoo.py:Needs needs width, depth to be built: name an instance, or a function that makes "
    "one",
    "zoo.py:make_nothing": "zoo.py:make_nothing() takes no inputs and gave a dict of tensors, but a factory makes an "
    "nn.Module or a function",
    "zoo.py:broken": "zoo.py:broken() failed: RuntimeError: no weights here (zoo.py:35: raise "
    'RuntimeError("no weights here"))',
    "zoo.py:a-b": "'a-b' in 'zoo.py:a-b' is not a name: write file.py:name or pkg.mod:name",
    "gone.py:net": "there is no file gone.py",
    "gone.pt2": "there is no file gone.pt2",
    "gone.onnx": "there is no file gone.onnx",
    "net": "'net' does not name the model: write file.py:name or pkg.mod:name",
    "bad one:net": "'bad one' is neither a file that ends in .py nor a module name",
    ".": ". is a folder, but a model is file.py:name, a .pt2, a TorchScript .pt or an .onnx file",
}  # fmt: skip


@pytest.mark.parametrize("spec", MESSAGES)
def test_messages(project: Path, spec: str) -> None:
    assert _refused(spec) == MESSAGES[spec]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero (mine.py:2: y = x / 0)"),
        ("def f(:\n", "SyntaxError: invalid syntax (mine.py:1)"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name' (mine.py:1: "
         "import nothing_of_this_name)"),
        ("raise SystemExit(4)\n", "SystemExit: 4 (mine.py:1: raise SystemExit(4))"),
        ("import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n", "RuntimeError: mat1 and mat2 shapes cannot be "
         "multiplied (2x3 and 2x3) (mine.py:2: torch.ones(2, 3) @ torch.ones(2, 3))"),
    ],
)  # fmt: skip
def test_the_users_own_errors(project: Path, source: str, told: str) -> None:
    (project / "mine.py").write_text(source)
    assert _refused("mine.py:net") == f"importing mine.py failed: {told}"
    assert "mine" not in sys.modules


def test_missing_module(project: Path) -> None:
    assert _refused("no_such_package.mod:net").startswith("there is no module 'no_such_package.mod' in ")


def test_damaged_files(project: Path) -> None:
    (project / "m.pt").write_bytes(b"PK\x03\x04 not really")
    assert _refused("m.pt") == "m.pt is neither .onnx, a .pt2, a TorchScript archive nor anything else that torch wrote"
    torch.jit.save(torch.jit.script(small()), project / "t.pt")
    whole = (project / "t.pt").read_bytes()
    (project / "t.pt").write_bytes(whole[: len(whole) // 2])
    assert "t.pt is neither" in _refused("t.pt")


def test_rebuild(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    context = {"model": "zoo.py:net", "model_b": "zoo.py:make", "objective": "zoo.py:f", "compare": "topk:5"}
    built = rebuild({**context, "cwd": str(project)})
    assert isinstance(built.model, nn.Module)
    assert built.model_b is not None
    assert built.objective is not None
    assert (built.compare, built.constraint) == ("topk:5", None)
    assert Path.cwd() == elsewhere


def test_rebuild_of_a_python_run() -> None:
    with pytest.raises(UsageError) as caught:
        rebuild({})
    assert str(caught.value) == "this run was started from Python, not from the command line: pass model="


@pytest.mark.parametrize("text", ["argmax", "argmax:1", "topk:5", "allclose:1e-3,1e-2", "threshold:0.5", "cosine:0.99"])
def test_comparisons_stay_words(text: str) -> None:
    from nnfuzz.loading import load_compare

    assert load_compare(text) == text


def test_comparisons_of_ones_own(project: Path) -> None:
    from nnfuzz.loading import load_compare

    assert callable(load_compare("zoo.py:f"))
    with pytest.raises(UsageError) as caught:
        load_compare("zoo.py:number")
    assert str(caught.value) == "zoo.py:number is a int, but the comparison is a function"


def _refused(spec: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_model(spec)
    return str(caught.value)
