"""What the documents tell a reader to type is typed here, in a folder with the files that a reader would have."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnfuzz.cli import main
from nnfuzz.mutators import MUTATORS, check_mutator

ROOT = Path(__file__).parent.parent
SEARCHES = ("nan", "diff", "fuzz", "rows")

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Linear(6, 3)
    def forward(self, image):
        return self.layers(image)

net = Net()

def loss_fn(image, label):
    return -(label * torch.log(torch.softmax(200 * net(image), 1))).sum(1)

def make():
    return lambda x: torch.log(torch.softmax(60 * x, -1))
"""


CHARS = """
import torch

class Chars(torch.nn.Module):
    alphabet = "abcdefghijklmnopqrstuvwxyz .,"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(29, 8), torch.nn.Linear(16, 29)
        self.cell = torch.nn.GRU(8, 16, batch_first=True)
    def logits(self, ids, state=None):
        seen, state = self.cell(self.embedding(ids), state)
        return self.head(seen), state

make = Chars
"""


def graph(path: Path, layers: Any, x: str, width: int) -> None:
    """A graph of one matrix product, with or without an unsafe loss."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights, nodes = layers
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        [helper.make_node(op, i, o, name=o[0]) for op, i, o in nodes], "g",
        [value(x, TensorProto.FLOAT, ["n", width])], [value(nodes[-1][2][0], TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(document: str) -> list[str]:
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [line[2:].split("#")[0].strip() for line in lines if line.startswith("$ nnfuzz ")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the documents assume it."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "model.py").write_text(MODEL)
    (desk / "my_model.py").write_text(MODEL)
    (desk / "chars.py").write_text(CHARS)
    (desk / "prompts.txt").write_text("a few real prompts\none a line\n")
    (desk / "words.txt").write_text("# one a line\nforbidden\n")
    rng = np.random.default_rng(0)
    steep = {"w": (60 * np.eye(3)).astype(np.float32)}
    loss = [("MatMul", ["x", "w"], ["logits"]), ("Softmax", ["logits"], ["p"]), ("Log", ["p"], ["y"])]
    graph(desk / "model.onnx", (steep, loss), "x", 3)
    linear = {"w": rng.normal(size=(6, 3)).astype(np.float32)}
    graph(desk / "net.onnx", (linear, [("MatMul", ["pixels", "w"], ["y"])]), "pixels", 6)
    image = rng.uniform(-1, 1, (8, 6)).astype(np.float32)
    np.savez(desk / "seeds.npz", image=image, label=np.eye(3, dtype=np.float32)[rng.integers(0, 3, 8)])
    np.savez(desk / "my_inputs.npz", x=image[:, :3])
    return desk


def saved_as(block: str) -> str:
    """The name of the file that a block is, "" for one that is run as it stands."""
    named = re.match(r"# (\w+\.py)\n", block)
    return named[1] if named else ""


def typed_in(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """``(exit status, stdout, stderr)`` of one command of the tool, in this process: importing torch takes seconds."""
    status = main(words)
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("document", ["README.md", "docs/USAGE.md"])
def test_commands_do_what_they_say(
    document: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "path", list(sys.path))
    typed = commands(document)
    assert typed, "the document shows no command"
    for block in blocks(document, "python"):
        if name := saved_as(block):
            (desk / name).write_text(block)
    if document != "README.md":  # its examples look at the run that the README makes
        make = "nan my_model.py:make --seeds my_inputs.npz --out runs/first --max-inputs 2000"
        if not (desk / "runs" / "first").exists():
            assert typed_in(shlex.split(make), capsys)[0] == 1
    for command in typed:
        words = shlex.split(command)[1:]
        if words[0] in SEARCHES:
            words += ["--max-inputs", "1000"]
        status, out, err = typed_in(words, capsys)
        assert status in (0, 1), f"{command}\n{out}\n{err}"
        assert out.strip(), f"{command} said nothing"


@pytest.mark.parametrize("document", ["README.md", "docs/USAGE.md"])
def test_python_blocks_run(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = [block for block in blocks(document, "python") if not saved_as(block)]
    assert run
    for block in run:
        shorter = re.sub(r"max_seconds=\d+", "max_inputs=2000", block)
        exec(compile(shorter, document, "exec"), {"__name__": "__main__"})
        said = capsys.readouterr().out
        assert "nan" in said or "inf" in said


def test_the_example_mutator_conforms() -> None:
    (block,) = (b for b in blocks("CONTRIBUTING.md", "python") if "class Negate" in b)
    made: dict[str, Any] = {"__name__": "example"}
    try:
        exec(compile(block, "CONTRIBUTING.md", "exec"), made)
        check_mutator(made["Negate"])
    finally:
        for name in [n for n, m in MUTATORS._items.items() if m is made.get("Negate")]:
            del MUTATORS._items[name]


def test_links_lead_somewhere() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"
