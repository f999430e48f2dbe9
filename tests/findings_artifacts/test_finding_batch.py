"""What fails in its batch only is saved with that batch, and rerun with it: by nnfuzz, and by the script alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.errors import StoreError
from nnfuzz.findings.batch import InBatch, Way
from nnfuzz.findings.finding import NO_BATCH, Finding
from nnfuzz.findings.parts.in_batch import joined, taken_together
from nnfuzz.findings.parts.in_numpy_batch import joined as joined_in_numpy
from nnfuzz.findings.save import load_finding, save_finding

MODELS = """\
import torch

def crowd(x):  # no single row reaches 9
    return torch.where(x.sum() > 9, torch.log(1 - x[..., 0]), x.sum(-1))

def calm(x):
    return x.sum(-1)

def always(x):
    return torch.log(x[..., 0] - 3)

def steep(x):
    return x.sum(-1) + (torch.sqrt(0 * x[..., 0]) if x.sum() > 9 else 0)

def shifted(x):
    return x.sum(-1) + (x.sum() > 9)

def high(outputs, inputs):  # a property of all rows together
    return (outputs > 3) & (outputs.sum() > 20)

def unlike(a, b):
    return (a - b).abs() > 0.5

def folded(x):
    return torch.where(x.sum() > 60, torch.log(1 - x), x)

class Inside(torch.nn.Module):
    def forward(self, x):
        return (torch.log(1 - x[..., 0]) if x.sum() > 9 else x.sum(-1)).nan_to_num(0.0)

class Centred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x - x.mean(0))

class Loud(Centred):
    def forward(self, x):
        return self.fc(x) + 0 * (6000 * x.sum())  # beyond float16 from 11 on

inside = Inside()
loud = Loud()
centred = Centred()
whole = [torch.full((2, 3), 0.1), torch.full((2, 3), 0.2), torch.full((2, 3), 0.3)]
seeds = torch.linspace(0, 0.3, 24).view(8, 3)
"""
SEARCH = ["--seeds", "models.py:seeds", "--range", "0:2", "--plain", "--no-gradients", "-n", "160", "--out", "RUN"]
PLACE = "RUN/findings/F0001"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
    found = main(list(words))
    out = capsys.readouterr()
    assert found == status, out.out + out.err
    return " ".join((out.out + out.err).split())


def scripted(place: str | Path) -> ModuleType:
    """A finding's script, imported."""
    spec = importlib.util.spec_from_file_location("repro", Path(place, "repro.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(place: str | Path, *words: str) -> tuple[int, str]:
    """A finding's script in a process of its own, in which nothing of nnfuzz can be imported."""
    bare = "import sys, runpy; sys.modules['nnfuzz'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
    code = bare + "run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, f"{place}/repro.py", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def document(place: str = PLACE) -> dict[str, Any]:
    return dict(json.loads(Path(place, "finding.json").read_text()))


RUNS = {
    "forward": ["nan", "models.py:crowd", *SEARCH, "--unit", "sample", "--phase", "forward"],
    "layers": ["nan", "models.py:inside", *SEARCH, "--unit", "sample", "--watch", "internal", "--phase", "forward"],
    "backward": ["nan", "models.py:steep", *SEARCH, "--unit", "sample", "--phase", "backward"],
    "pair": ["diff", "models.py:calm", "models.py:shifted", *SEARCH, "--unit", "sample", "--compare", "allclose:0.5"],
    "custom": [
        "diff", "models.py:calm", "models.py:shifted", *SEARCH, "--unit", "sample", "--compare", "models.py:unlike",
    ],
    "copy in half precision": ["diff", "models.py:loud", "--as", "fp16", *SEARCH, "--unit", "sample"],
    "copy in int8": ["diff", "models.py:centred", "--as", "int8", *SEARCH, "--unit", "sample"],
    "property": ["fuzz", "models.py:calm", "--objective", "models.py:high", *SEARCH, "--unit", "sample"],
    "fold": ["nan", "models.py:folded", *SEARCH, "--seeds", "models.py:whole", "--phase", "forward"],
}  # fmt: skip


SLOW = ("custom", "property", "copy in int8")
"""Kinds that others show the most of."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in RUNS])
def test_it_is_rerun_with_its_batch(desk: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    text = said(capsys, *RUNS[kind], status=1)
    assert "batch-only" in text
    about = document()
    assert about["status"] == "batch-only"
    row, count = about["batch"]["row"], about["batch"]["count"]
    assert 1 < count <= 64
    kept = load_finding(PLACE)
    assert kept.batch is not None
    assert {n: t.shape for n, t in kept.batch.inputs.items()} == {n: (count, *t.shape) for n, t in kept.inputs.items()}
    assert all(torch.equal(t[row], kept.inputs[n]) for n, t in kept.batch.inputs.items())
    told = said(capsys, "repro", PLACE, status=1)
    assert f"row {row} (counted from 0) of the {count} candidates in batch.safetensors" in told
    assert told.endswith(", batch-only reproduced")
    assert "run alone it fails" not in told
    again = scripted(PLACE)
    assert again.still_fails() is True
    assert f"row {row} (counted from 0) of the {count} candidates" in again.FINDING


def test_the_script_needs_no_nnfuzz(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a process of its own, in which nothing of nnfuzz can be imported."""
    said(capsys, *RUNS["forward"], status=1)
    status, told = script(PLACE)
    assert status == 1, told
    assert "(counted from 0) of the" in told
    assert "REPRODUCED: nan" in told
    assert scripted(PLACE).still_fails("models.py:calm") is False


def test_the_batch_is_small_and_told_of(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *RUNS["forward"], status=1)
    about = document()
    assert about["batch"]["count"] <= 8
    assert about["batch"]["ways"] == [{"unit": "sample", "drive": "rows", "chunk": 0, "inputs": {}, "outputs": {}}]
    it_is = f"it is row {about['batch']['row']} (counted from 0) of the {about['batch']['count']} candidates in"
    assert it_is in said(capsys, "show", PLACE, status=0)
    assert it_is in " ".join(Path(PLACE, "README.md").read_text().split())
    shown = json.loads(said(capsys, "show", PLACE, "--json", status=0))
    assert shown["batch"] == {"row": about["batch"]["row"], "count": about["batch"]["count"]}
    explained = said(capsys, "explain", PLACE, status=0)
    assert it_is in explained
    assert "first bad operation: log" in explained
    assert "what helps" in explained
    assert list(load_finding(PLACE).outputs) == ["output"]
    assert bool(load_finding(PLACE).outputs["output"].isnan().all())


def test_a_mended_model_no_longer_fails_with_its_batch(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *RUNS["forward"], status=1)
    told = said(capsys, "repro", PLACE, "--model", "models.py:calm", status=0)
    assert "run again with its batch it does not fail: the model is not deterministic, or has been mended" in told
    assert told.endswith("not reproduced")
    assert scripted(PLACE).still_fails("models.py:calm") is False
    told = said(capsys, "repro", PLACE, "--model", "models.py:always", status=1)
    assert "run alone it fails: nan (nan in output), confirmed" in told


def test_a_finding_without_its_batch_says_so(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As an older version saved it."""
    said(capsys, *RUNS["forward"], status=1)
    kept = load_finding(PLACE)
    kept.batch = None
    save_finding(kept, Path(PLACE))
    assert "batch" not in document()
    assert not Path(PLACE, "batch.safetensors").exists()
    told = said(capsys, "repro", PLACE, status=0)
    assert f"{NO_BATCH}, so it is run alone" in told
    assert told.endswith("not reproduced")
    assert scripted(PLACE).still_fails() is False
    assert f"{NO_BATCH}, so it is run alone" in scripted(PLACE).FINDING
    for words, status in ((["show", PLACE], 0), (["explain", PLACE], 0), (["shrink", PLACE], 2)):
        assert NO_BATCH in said(capsys, *words, status=status)
    assert "That batch was not saved with it" in Path(PLACE, "README.md").read_text()
    # the same failure found again, with its batch, takes its place
    said(capsys, "resume", "RUN", "--max-inputs", "1200", "--plain", status=1)
    assert document()["batch"]["count"] > 1
    assert said(capsys, "repro", PLACE, status=1).endswith("reproduced")


def test_it_is_shrunk_within_its_batch(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *RUNS["forward"], status=1)
    before = load_finding(PLACE)
    said(capsys, "shrink", PLACE, "-n", "600", status=0)
    after = load_finding(PLACE)
    assert before.batch is not None
    assert after.batch is not None
    assert after.distance["linf"] < before.distance["linf"]
    assert torch.equal(after.batch.inputs["x"][after.batch.row], after.inputs["x"])
    others = [i for i in range(before.batch.count) if i != before.batch.row]
    assert torch.equal(after.batch.inputs["x"][others], before.batch.inputs["x"][others])
    assert said(capsys, "repro", PLACE, status=1).endswith("reproduced")
    assert scripted(PLACE).still_fails() is True


def test_runs_go_on_and_merge_with_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *RUNS["pair"], status=1)
    said(capsys, "resume", "RUN", "--max-inputs", "500", "--plain", status=1)
    assert document()["batch"]["count"] > 1
    said(capsys, "corpus", "merge", "MERGED", "RUN", status=0)
    assert said(capsys, "repro", PLACE, status=1).endswith("reproduced")


def search_once(model: Callable[[Tensor], Tensor]) -> list[Finding]:
    found = nnfuzz.find_nans(
        model, torch.rand(6, 3), unit="sample", max_inputs=1000, ranges=(0, 2), phase="forward", gradients=False
    )
    return found.findings


def test_what_did_not_fail_again_has_no_batch() -> None:
    seen: list[int] = []

    def moody(x: Tensor) -> Tensor:
        bad = (x.amax(-1) > 1.5) & (not seen)
        seen.extend([1] * bool(bad.any()))
        return torch.where(bad, torch.nan, x.sum(-1))

    (finding,) = search_once(moody)
    assert finding.lacks_batch
    assert any("did not fail, so the batch is not saved: the model is not deterministic" in n for n in finding.notes)


def test_a_model_that_raised_once_is_said_to_have_raised() -> None:
    seen: list[int] = []

    def moody(x: Tensor) -> Tensor:
        if x.amax() > 1.5 and not seen:
            seen.extend([1] * (len(x) == 1))
            raise ArithmeticError("a bad day")
        return x.sum(-1)

    (finding,) = search_once(moody)
    assert finding.status == "batch-only"
    assert "it raised once, and not when it was run again: the model is not deterministic" in finding.notes
    assert not any("run again with its batch" in note for note in finding.notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"row": 9}, "its 'batch' cannot be read"),
        ({"row": "1"}, "its 'batch' cannot be read"),
        ({"count": 2}, "its 'batch' cannot be read"),
        ({"ways": []}, "its 'batch' cannot be read"),
        ({"ways": [{"drive": "os.system", "unit": "sample"}]}, "its 'batch' cannot be read"),
        ({"ways": [{**Way().to_json(), "inputs": {"x": "0"}}]}, "its 'batch' cannot be read"),
        (None, "cannot read .*batch.safetensors"),
    ],
)
def test_damaged_batches(tmp_path: Path, finding: Any, change: dict[str, Any] | None, says: str) -> None:
    place = save_finding(lone(finding), tmp_path / "F0001")
    document = json.loads((place / "finding.json").read_text())
    if change is None:
        (place / "batch.safetensors").unlink()
    else:
        (place / "finding.json").write_text(json.dumps({**document, "batch": {**document["batch"], **change}}))
    with pytest.raises(StoreError, match=says) as caught:
        load_finding(place)
    assert "\n" not in str(caught.value)
    damaged: list[str] = []
    assert load_finding(place, damaged).batch is None
    assert len(damaged) == 1


def lone(finding: Any, **way: Any) -> Any:
    """A finding whose second of three candidates fails in each way, since it fails alone, too."""
    made = finding("nan", model="log")
    rows = torch.stack([torch.ones(1, 4), -torch.ones(1, 4), torch.ones(1, 4)])
    made.status, made.batch = "batch-only", InBatch({"x": rows}, 1, [Way(**way)])
    return made


@pytest.mark.parametrize(
    "way",
    [
        {"drive": "rows"}, {"drive": "rows", "chunk": 2}, {"unit": "batch", "drive": "fold"},
        {"unit": "batch", "drive": "vmap"}, {"unit": "batch", "drive": "loop"},
        {"unit": "batch", "drive": "axes", "inputs": {"x": 0}},
    ],
    ids=str,
)  # fmt: skip
def test_the_script_judges_one_row_in_every_way(finding: Any, repro: Any, way: dict[str, Any]) -> None:
    made = lone(finding, **way)
    assert repro(made).still_fails() is True
    made.batch.row = 2
    made.inputs = {"x": torch.ones(1, 4)}
    assert repro(made).still_fails() is False


def test_an_int8_copy_is_rerun_with_the_ranges_of_its_run(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of its findings, since each has but one of the seeds that the copy was calibrated on."""
    said(capsys, *RUNS["copy in int8"], status=1)
    places = sorted(p.parent for p in Path("RUN/findings").glob("*/finding.json"))
    assert len(places) > 1
    for place in places:
        assert said(capsys, "repro", str(place), status=1).endswith("reproduced")


def test_what_a_script_cannot_judge_is_said(finding: Any, repro: Any) -> None:
    for symptom, run in (("rows", {"model": "centred"}), ("nan", {"model": "root"})):
        made = finding(symptom, **run)
        made.phase = "backward" if symptom == "nan" else "forward"
        made.status = "batch-only"
        made.batch = InBatch({"x": torch.ones(2, 1, 4)}, 0, [Way("batch", "loop")])
        script = repro(made)
        with pytest.raises(script.CannotRun, match="in its batch only, which `nnfuzz repro` on this folder runs"):
            script.still_fails()


@settings(max_examples=15)
@given(st.data())
def test_candidates_come_apart_as_they_were_joined(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    batch = {"x": torch.randn(count, *shape), "shared": torch.full((count, 2), 7.0)}
    axes: dict[str, int | None] = {"x": axis, "shared": None}
    way = {"how": "joined", "chunk": 0, "inputs": axes, "outputs": {"y": axis}}
    model = lambda inputs: {"y": inputs["x"] + inputs["shared"][0]}  # noqa: E731
    for how in ("joined", "vmap", "loop"):
        each = taken_together(model, batch, lambda m, inputs: m(inputs), {**way, "how": how})
        assert [torch.equal(one["y"], batch["x"][i] + 7.0) for i, one in enumerate(each)] == [True] * count
    together = Way("batch", "axes", 0, axes, {"y": axis}).joined(batch)
    assert together is not None
    of_numpy = joined_in_numpy({n: t.numpy() for n, t in batch.items()}, way)
    for name, t in joined(batch, way).items():
        assert torch.equal(t, together[name])
        np.testing.assert_array_equal(of_numpy[name], t.numpy())
