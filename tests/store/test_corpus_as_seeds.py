"""What ``corpus merge`` and ``min`` write, and any run, starts another run; ``resume`` says with which command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.callform import CallForm
from nnfuzz.cli import main
from nnfuzz.corpus_tools import as_seeds, merge
from nnfuzz.errors import StoreError, UsageError
from nnfuzz.loading import load_seeds
from nnfuzz.loading.corpora import load_corpus
from nnfuzz.seeds import read_seeds
from nnfuzz.store import RunStore

SOURCE = """\
import torch

seeds = torch.rand(6, 4)
others = torch.rand(5, 4)

def net(x):
    return torch.log(x.abs() + 0.5)

def loss(x, y):
    return (x.tanh() - y).square().mean()

pairs = {"x": torch.rand(6, 4), "y": torch.rand(6, 4)}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "seed_nets.py").write_text(SOURCE)
    return tmp_path


def corpus_size(path: str) -> int:
    with RunStore.open(path, writable=False) as store:
        return sum(1 for _ in store.records())


def test_merge_min_and_on_as_resume_says(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, out in (("seeds", "A"), ("others", "B")):
        words = ["nan", "seed_nets.py:net", "-s", f"seed_nets.py:{name}", "--range=-9:9", "-n", "300", "--out", out]
        assert main([*words, "-q"]) == 0
    capsys.readouterr()
    assert main(["corpus", "merge", "C", "A", "B"]) == 0
    command = "nnfuzz nan seed_nets.py:net --range=-9:9 -n 300 -q --seeds"
    assert f"use it with  {command} C\n" in capsys.readouterr().out
    assert main(["resume", "C"]) == 2
    told = capsys.readouterr().err
    assert "C is a corpus that nnfuzz corpus merge wrote and not a run that could go on" in told
    assert told.rstrip().endswith(f"with {command} C")
    assert main(["corpus", "min", "A", "a small one"]) == 0
    assert f"use it with  {command} 'a small one'\n" in capsys.readouterr().out
    assert main(["show", "C"]) == 0
    told = capsys.readouterr().out
    assert "made by   nnfuzz corpus merge from A, B" in told
    assert f"use it    {command} C" in told

    words = shlex.split(f"{command} C")[1:]
    assert main([*(w for w in words if w != "-q"), "--plain", "--out", "D"]) == 0
    told = capsys.readouterr().out
    size = corpus_size("C")
    assert f"note: the seeds are {size:,} entries of the corpus of C (11 of them its own seeds)" in told
    assert corpus_size("D") >= size
    assert main(["corpus", "info", "D"]) == 0
    assert "x[4]" in capsys.readouterr().out


def test_whole_candidates_stay_whole(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nan", "seed_nets.py:loss", "--range=-9:9", "-n", "300", "-q"]
    assert main([*words, "--seeds", "seed_nets.py:pairs", "--out", "A"]) == 0
    seeds = load_seeds("A")
    assert isinstance(seeds, list)
    assert {tuple(t.shape) for t in seeds[0].values()} == {(6, 4)}
    assert main([*words, "--seeds", "A", "--fix", "y", "--out", "B"]) == 0
    with RunStore.open("A", writable=False) as a, RunStore.open("B", writable=False) as b:
        first, again = next(a.records()).inputs, next(b.records()).inputs
    assert list(first) == list(again)
    assert all(torch.equal(first[n], again[n]) for n in first)


def by_position(*parts: torch.Tensor) -> torch.Tensor:
    return sum(parts).sum(-1)  # type: ignore[union-attr,return-value]


def by_name(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum(-1) + y.sum(-1)


def nested(state: Any, x: torch.Tensor) -> torch.Tensor:
    return state["h"][0].sum(-1) + state["c"].sum(-1) + x.sum(-1)


def whole(batch: Any) -> torch.Tensor:
    return batch["a"].sum(-1) + batch["b"].sum(-1)


T = torch.rand(4, 3)


@pytest.mark.parametrize(
    ("model", "seeds"),
    [
        (torch.sin, T),
        (torch.nn.Linear(3, 2), T),
        (by_position, (T, T + 1)),
        (by_name, (T, T + 1)),
        (by_name, {"y": T, "x": T + 1}),
        (by_name, {"a": T, "b": T + 1}),
        (nested, ({"h": (T, T + 1), "c": T + 2}, T)),
        (nested, {"state": {"h": (T, T + 1), "c": T + 2}, "x": T}),
        (whole, {"a": T, "b": T + 1}),
        (by_name, [(T, T + 1), (T + 2, T)]),
    ],
)
def test_inputs_keep_their_names_and_places(model: Any, seeds: Any, tmp_path: Path) -> None:
    nnfuzz.find_nans(model, seeds, phase="forward", max_inputs=32, out=tmp_path / "run")
    once = read_seeds(seeds, model)
    again = read_seeds(load_corpus(tmp_path / "run", model, []), model)
    assert again.form.names == once.form.names
    assert set(once.form.aliases.items()) <= set(again.form.aliases.items()) | {(n, n) for n in once.form.names}
    count = len(once.groups[0].index)
    for name, given in once.groups[0].batch.items():
        assert torch.equal(again.groups[0].batch[name][:count], given)
    one = {n: t[0] for n, t in once.groups[0].batch.items()}
    assert torch.equal(again.form.call(model, one), once.form.call(model, one))


def test_a_python_run_is_told_in_python() -> None:
    assert as_seeds({"command": ["pytest"]}, "my runs/c") == (
        "nnfuzz.find_nans(model, nnfuzz.loading.load_seeds('my runs/c'))"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["-s", "x.npz", "-o", "a"],
        ["-sx.npz", "-oa"],
        ["--seeds=x.npz", "--out=a"],
        ["--input", "x=float32[3]:0..1", "--input", "y=float32[3]:0..1", "--out", "a b"],
    ],
)
def test_the_old_seeds_and_place_are_left_out(words: list[str]) -> None:
    command = ["/usr/bin/nnfuzz", "nan", "m.py:f", *words, "--range", "-1", "1"]
    assert as_seeds({"command": command}, "c") == "nnfuzz nan m.py:f --range -1 1 --seeds c"


def test_what_is_no_corpus(tmp_path: Path, run: Path, refused: Any) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "run.json").write_text('{"kind": "training"}')
    assert "is a whole training, which keeps no corpus" in refused(load_seeds, str(tmp_path / "training"))
    (tmp_path / "F0001").mkdir()
    (tmp_path / "F0001" / "finding.json").write_text("{}")
    assert refused(load_seeds, str(tmp_path / "F0001")).endswith("F0001/input.safetensors")
    with pytest.raises(StoreError, match=r"run\.json does not say how its inputs are passed"):
        load_seeds(str(run))
    RunStore.create(tmp_path / "empty", {"form": CallForm((), {}).to_json()}).close()
    with pytest.raises(UsageError, match="is empty"):
        load_seeds(str(tmp_path / "empty"))
    merge(tmp_path / "merged", [run])
    with pytest.raises(UsageError, match="nnfuzz corpus merge wrote and not a run"):
        nnfuzz.resume(tmp_path / "merged")
