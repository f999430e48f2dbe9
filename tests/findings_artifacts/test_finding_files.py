"""A saved finding comes back whole; damaged and hostile ones are told in one sentence."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nnfuzz.callform import CallForm, Leaf
from nnfuzz.errors import StoreError
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import load_finding, save_finding
from nnfuzz.probe.sites import Site
from nnfuzz.store import RunStore

Make = Callable[..., Finding]
FILES = {
    "finding.json", "input.safetensors", "seed.safetensors", "outputs.safetensors", "repro.py", "test_finding.py",
    "README.md", "__init__.py",
}  # fmt: skip


def facts(f: Finding) -> dict[str, Any]:
    tensors = {k: {n: (t.dtype, t.shape, t.tolist()) for n, t in getattr(f, k).items()} for k in ("inputs", "seed")}
    return {**vars(f), **tensors, "outputs": list(f.outputs)}


def full(make: Make) -> Finding:
    f = make(details={"margins": [1.5, math.inf, {"low": -math.inf}], "word": "nan", "inf": "inf"}, model="log")
    f.inputs = {"z": torch.tensor(3), "x": torch.tensor([1 + 2j]), "m": torch.tensor([True]), "e": torch.zeros(0, 2)}
    f.seed = {n: t.clone() for n, t in f.inputs.items()}
    f.outputs = {"b": torch.zeros(2, dtype=torch.bfloat16), "a.x": torch.zeros(2, dtype=torch.complex128)}
    f.distance = {"linf": math.inf, "l2": math.inf, "l0": math.inf}
    f.site = Site("log", "head.0", "/x/net.py", 12, "y = log(p)", "forward", 8)
    f.severity = math.inf
    f.notes = ["a note"]
    f.call = CallForm((Leaf("z"), {"deep": [Leaf("x"), None, 2.5]}), {"m": Leaf("m"), "e": (Leaf("e"), math.inf)})
    return f


def test_everything_comes_back(tmp_path: Path, finding: Make) -> None:
    f = full(finding)
    assert save_finding(f, tmp_path / "a" / "F0001") == tmp_path / "a" / "F0001"
    back = load_finding(tmp_path / "a" / "F0001")
    assert back.place == tmp_path / "a" / "F0001"
    assert facts(dataclasses.replace(back, place=f.place)) == facts(f)
    assert list(back.inputs) == list(f.inputs)
    document = json.loads((tmp_path / "a" / "F0001" / "finding.json").read_text(), parse_constant=pytest.fail)
    assert document["distance"]["linf"] == "inf"
    assert {p.name for p in (tmp_path / "a" / "F0001").iterdir()} == FILES
    ast.parse((tmp_path / "a" / "F0001" / "repro.py").read_text())


def test_a_finding_is_replaced_whole(tmp_path: Path, finding: Make) -> None:
    place = tmp_path / "F0001"
    save_finding(finding(), place)
    (place / "notes.txt").write_text("x")
    save_finding(finding("+inf"), place)
    assert load_finding(place).symptom == "+inf"
    assert {p.name for p in place.iterdir()} == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["F0001"]


def test_a_save_that_fails_keeps_the_old_one(tmp_path: Path, finding: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "F0001"
    save_finding(finding(), place)

    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nnfuzz.findings.save.readme", fail)
    with pytest.raises(StoreError, match=r"cannot write .*F0001: the disk is full"):
        save_finding(finding("+inf"), place)
    assert load_finding(place).symptom == "nan"
    assert [p.name for p in tmp_path.iterdir()] == ["F0001"]


def test_foreign_directories_are_left_alone(tmp_path: Path, finding: Make) -> None:
    (tmp_path / "empty").mkdir()
    save_finding(finding(), tmp_path / "empty")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="no finding"):
        save_finding(finding(), tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_in_a_run(tmp_path: Path, finding: Make) -> None:
    with RunStore.create(tmp_path / "run", {"context": {"cwd": "/somewhere/else"}}) as store:
        for name in ("F0002", "F0001"):
            f = finding(model="log")
            f.id = name
            assert store.save_finding(f) == tmp_path / "run" / "findings" / name
        assert [f.id for f in store.findings()] == ["F0001", "F0002"]
        (tmp_path / "run" / "findings" / ".F0003.new-1").mkdir()
        bad = finding()
        bad.id = "../../F0009"
        with pytest.raises(StoreError, match="cannot name a finding"):
            store.save_finding(bad)
    assert "ROOT = '/somewhere/else'" in (tmp_path / "run" / "findings" / "F0001" / "repro.py").read_text()
    with RunStore.open(tmp_path / "run", writable=False) as store:
        assert len(store.findings()) == 2


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("seconds", "long", "its 'seconds' is 'long'"),
        ("seed_index", True, "its 'seed_index' is True"),
        ("lineage", None, "its 'lineage' is None"),
        ("site", {"op": 5}, "its 'site' cannot be read"),
        ("site", [1], "its 'site' cannot be read"),
        ("call", {"positional": 3}, "its 'call' cannot be read"),
        ("call", {"positional": [{"a": 1, "b": 2}], "keyword": {}}, "its 'call' cannot be read"),
        ("format", 9, "has format 9"),
        ("nonfinite", [["nowhere"]], "is damaged"),
        ("nonfinite", 5, "is damaged"),
    ],
)
def test_damaged_facts(tmp_path: Path, finding: Make, field: str, value: Any, says: str) -> None:
    path = save_finding(finding(), tmp_path / "F0001") / "finding.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(StoreError, match=says) as caught:
        load_finding(tmp_path / "F0001")
    assert "\n" not in str(caught.value)
    assert "finding.json" in str(caught.value)


def test_damaged_tensors(tmp_path: Path, finding: Make) -> None:
    place = save_finding(finding(), tmp_path / "F0001")
    for data, says in ((pickle.dumps({"x": 1}), "a pickle, which nnfuzz never opens"), (b"", "is damaged")):
        (place / "seed.safetensors").write_bytes(data)
        with pytest.raises(StoreError, match=rf"seed\.safetensors .*{says}"):
            load_finding(place)
    (place / "seed.safetensors").unlink()
    with pytest.raises(StoreError, match=r"cannot read .*seed\.safetensors"):
        load_finding(place)


def test_no_finding_at_all(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no finding\.json"):
        load_finding(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
        load_finding(tmp_path / "x")


@pytest.mark.parametrize(
    "form",
    [
        CallForm((), {"x=print('pwned'), y": Leaf("x")}),
        CallForm((), {"x": Leaf("x"), "**dict(a=1), b": 1}),
        CallForm((), {"x]": Leaf("x")}),
        CallForm((), {"x), print('pwned'": Leaf("x")}),
    ],
)
def test_no_call_is_smuggled_into_repro(tmp_path: Path, finding: Make, form: CallForm) -> None:
    with pytest.raises(StoreError, match="call form"):
        save_finding(finding(call=form), tmp_path / "F0001")


def test_text_of_a_finding_stays_text(tmp_path: Path, finding: Make) -> None:
    evil = '\'"""\nimport os; os.abort()\n"""\\'
    f = finding(symptom=evil, details={"compare": evil}, model=evil)
    f.id, f.cause, f.objective = "F1", evil, evil
    f.details["run"].update(dict.fromkeys(("model", "model_b", "objective", "device", "unit", "cwd"), evil))
    f.inputs = {evil: torch.zeros(1)}
    f.call = None
    f.seed = f.inputs
    place = save_finding(f, tmp_path / "F1")
    for name in ("repro.py", "test_finding.py"):
        tree = ast.parse((place / name).read_text())
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "abort"]


def test_a_context_of_wrong_types(tmp_path: Path, finding: Make) -> None:
    for run in ({"model": 5}, {"ranges": [1]}, {"train": "yes"}):
        f = finding()
        f.details["run"] = run
        with pytest.raises(StoreError, match="wrong type"):
            save_finding(f, tmp_path / "F0001")
    assert not list(tmp_path.iterdir())
