"""Names with escape bytes and line breaks never reach the terminal as they are."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import FLOAT, model, node, value
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.cli import main
from nnfuzz.onnx.naming import label, visible
from nnfuzz.report.harmless import harmless
from nnfuzz.report.jsonl import dumps
from nnfuzz.report.printing import command, labelled, put
from nnfuzz.report.telling import where
from nnfuzz.report.terminal import Terminal
from onnx import helper

NAME = "n\x1b[31mam\ne"


@pytest.mark.parametrize(
    ("name", "shown"), [("a.b/c é", "a.b/c é"), (NAME, r"n\x1b[31mam\ne"), ("\u202ex\x00", r"\u202ex\x00")]
)
def test_what_cannot_be_seen_is_escaped(name: str, shown: str) -> None:
    assert visible(name) == shown
    assert label(name, "Log", ["y"]) == shown


def test_a_finding_names_its_node_in_one_line(tmp_path: Path) -> None:
    made = model([node("Log", "x", "y", NAME)], [value("x", "n", 4)], [value("y", "n", 4)])
    graph = nnfuzz.onnx.load(made)
    run = nnfuzz.find_nans(graph, 0.5 + torch.rand(4, 4), ranges=(-1, 2), max_inputs=200, max_seconds=None)
    (finding,) = run.findings
    place = finding.save(tmp_path / "f")
    told = [nnfuzz.explain(place, model=graph), where(finding), (place / "README.md").read_text()]
    told += nnfuzz.repro(place, model=graph).lines
    assert not any("\x1b" in text or "am\ne" in text for text in told)
    assert r"node n\x1b[31mam\ne" in told[0]


OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize("style", [["--plain"], ["--quiet"], ["--json"], []])
def test_names_of_inputs_and_outputs_never_reach_the_terminal_raw(
    style: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    read, told = "x\x1b]0;title\x07", "y\x1b[2J\u202e"
    made = helper.make_graph(
        [helper.make_node("Log", [read], [told])],
        "g",
        [helper.make_tensor_value_info(read, FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(told, FLOAT, ["n", 4])],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    np.save("seeds.npy", 0.5 + np.random.default_rng(0).random((6, 4), np.float32))
    words = ["m.onnx", "--seeds", "seeds.npy", "--range", "-1:2", "--max-inputs", "300"]
    assert main(["nan", *words, "--out", "run", *style]) == 1
    assert main(["nan", *words[:1], "--seeds", "seeds.npy", "--range", "zz\x1b[1m=-1:2"]) == 2
    for again in (["show", "run"], ["show", "run/findings/F0001"], ["explain", "run/findings/F0001"]):
        assert main(again) in (0, 1)
    main(["repro", "run/findings/F0001"])
    main(["resume", "run", "--max-inputs", "350", "--plain"])
    out = capsys.readouterr()
    assert OBEYED.findall(out.out + out.err) == []
    assert r"x\x1b]0;title\x07" in out.out.replace("\n", "").replace("\\\\", "\\") or style == ["--quiet"]


def test_a_terminal_gets_its_own_codes_and_no_others() -> None:
    shown = io.StringIO()
    console = Terminal(file=shown, force_terminal=True, color_system="truecolor", width=200)
    put(console, [labelled([("input\x1b[5m", Text("a\x9bb\rc", style="red"))]), command("rerun", "nnfuzz \x07")])
    rest = shown.getvalue().replace("\x1b[", "<").replace("\n", "")
    assert "<31m" in rest
    assert OBEYED.findall(rest) == []
    assert r"\x1b[5m" in rest
    assert r"a\x9bb" in rest


@given(st.text())
def test_harmless_text_is_obeyed_by_nobody_and_keeps_its_lines(text: str) -> None:
    shown = harmless(text)
    assert OBEYED.findall(shown) == []
    assert shown.count("\n") == text.count("\n")
    assert harmless(shown) == shown


@given(st.text() | st.text('\x7f\x9b\u202e\x1b\\"u'))
def test_json_on_a_terminal_is_harmless_and_means_the_same(text: str) -> None:
    shown = dumps({"name": text})
    assert OBEYED.findall(shown) == []
    assert json.loads(shown) == {"name": text}
