"""Where the classes of an output lie: in a run, in words, and in a finding's script; and words that do not fit."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.loading.comparisons import check_comparison, is_function
from nnfuzz.objectives.compare import COMPARISONS, EXAMPLES, comparison
from nnfuzz.report.base import SilentReporter


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


SHAPES = [((5,), 0), ((4, 5), 1), ((4, 2, 5), 2), ((2, 5, 4, 3), 1), ((2, 5, 4, 3, 2), 1), ((2, 3, 2, 3, 2, 5), 5)]
"""Shapes of a model's own output, and where its classes lie."""


@pytest.mark.parametrize(("own", "axis"), SHAPES)
@pytest.mark.parametrize("unit", ["sample", "batch"])
@pytest.mark.parametrize("spec", ["argmax", "argmax:{}", "topk:2"])
def test_classes_lie_where_the_models_own_output_has_them(
    own: tuple[int, ...], axis: int, unit: str, spec: str
) -> None:
    if unit == "sample" and len(own) == 1:
        return
    a = torch.rand(own) if unit == "sample" else torch.rand(3, *own)
    at = axis + (unit == "batch")
    b = a.clone()
    first, third = a.argmax(at, keepdim=True), a.topk(3, at).indices.select(at, 2).unsqueeze(at)
    row = (0,) * a.dim()
    place = tuple(slice(None) if d == at else 0 for d in range(a.dim()))
    b[place][first[row]], b[place][third[row]] = a[place][third[row]], a[place][first[row]]
    compared = comparison(spec.format(axis), unit)({"output": a}, {"output": b})
    assert compared.differ.tolist() == [True] + [False] * (len(a) - 1)
    if spec != "topk:2":
        assert (int(compared.answer_a[0]), int(compared.answer_b[0])) == (int(first[row]), int(third[row]))


def test_the_axis_of_the_classes_is_said_where_it_is_a_guess() -> None:
    def volumes(x: Tensor) -> Tensor:
        return torch.stack([x, 1 - x], 1) + x.mean()

    notes = Notes()
    seeds = torch.rand(3, 2, 2, 2)
    nnfuzz.diff(volumes, volumes, seeds, reporter=notes, max_inputs=8)
    assert notes.told == [
        "classes are taken to lie on axis 1 of the output, whose shape is (3, 2, 2, 2, 2): --compare argmax:AXIS names "
        "another"
    ]
    nnfuzz.diff(volumes, volumes, seeds, compare="argmax:1", reporter=notes, max_inputs=8)
    nnfuzz.diff(lambda x: x, lambda x: x, torch.rand(3, 4), reporter=notes, max_inputs=8)
    assert len(notes.told) == 1


@pytest.mark.parametrize("compare", ["argmax", "argmax:1", "topk:1"])
def test_a_script_takes_the_same_axis(compare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["repro.py"])
    (tmp_path / "compare_nets.py").write_text(
        "import torch\n"
        "def a(x): return torch.stack([x, 1 - x, 0 * x], 1) + 0 * x.mean()\n"
        "def b(x): return torch.stack([x, 1.2 - x, 0 * x], 1) + 0 * x.mean()\n"
    )
    words = ["diff", "compare_nets.py:a", "compare_nets.py:b", "--input", "x=float32[3,2,2,2]:0..1", "--unit", "batch"]
    assert main([*words, "--compare", compare, "-n", "200", "--stop-on-first", "-q", "--out", "RUN"]) == 1
    with pytest.raises(SystemExit) as done:
        runpy.run_path("RUN/findings/F0001/repro.py", run_name="__main__")
    assert done.value.code == 1


@pytest.mark.parametrize("text", [*(e.partition(" ")[0] for e in EXAMPLES), *COMPARISONS, "argmax:-1", "allclose:0"])
def test_what_is_known_is_taken(text: str) -> None:
    assert check_comparison(text) == text
    assert not is_function(text)
    comparison(text)


@pytest.mark.parametrize("text", ["pkg.mod:fn", "file.py:fn", "mod:fn", "some/file.py:a.b", "mod:Class.fn"])
def test_functions_are_known(text: str) -> None:
    assert is_function(text)


@pytest.mark.parametrize("name", ["argmax", "topk", "threshold", "allclose", "cosine", "ctc", "detection"])
def test_words_that_do_not_fit_are_refused_before_anything_is_loaded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["diff", "no_such_file.py:a", "no_such_file.py:b", "--seeds", "none.npz", "--compare", f"{name}:x"]) == 2
    )
    told = capsys.readouterr().err
    assert told.startswith(f"nnfuzz: error: --compare: the comparison '{name}:x' does not fit: {name} takes ")
    assert f": {name}:" in told
