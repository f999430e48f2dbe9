"""Names of nodes with escape bytes and line breaks never reach the terminal as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graphs import model, node, value

import nnfuzz
import nnfuzz.onnx
from nnfuzz.onnx.naming import label, visible
from nnfuzz.report.telling import where

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
