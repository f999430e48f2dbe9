"""A text finding's ``repro.py``: it needs torch and the model, not nnfuzz."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.findings.finding import Finding
from nnfuzz.text.repro import repro_script, stands_alone

HIDDEN = """
import runpy
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nnfuzz":
            raise ImportError("nnfuzz is hidden")

sys.meta_path.insert(0, Hidden())
scripts, sys.argv = sys.argv[1:], sys.argv[:1]
for script in scripts:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        print("status", end.code, script)
"""
MODEL = """
import sys

import torch
from torch import nn

ALPHABET = "abcdefghijklmnopqrstuvwxyz .\\n"

class Small(nn.Module):
    alphabet = ALPHABET

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(len(ALPHABET), 6)
        self.lstm = nn.LSTM(6, 12, 2, batch_first=True)
        self.head = nn.Linear(12, len(ALPHABET))
        for p in self.parameters():
            p.data = 0.7 * torch.randn(p.shape, generator=generator)

    def logits(self, ids, state=None):
        seen, state = self.lstm(self.embedding(ids), state)
        return self.head(seen), state

def stopping():
    model = Small()
    model.end = [model.alphabet.index(c) for c in "qxzj"]
    return model

def mended():
    model = Small()
    model.head.weight.data.zero_()
    model.head.bias.data[:] = torch.arange(29.0)
    return model

def shout(prompts):
    return [p[::-1].upper() + ("!" * 9 if "e" in p else "") for p in prompts]

def fragile(prompts):
    if any("e" in p for p in prompts):
        raise ValueError("no e")
    return ["ok"] * len(prompts)

def leaves(prompts):
    if any("e" in p for p in prompts):
        sys.exit(0)
    return list(prompts)

def surrogates(prompts):
    return [p + "\\ud800." * ("e" in p) for p in prompts]

def long(prompt, text):
    return len(text) > 12

def bad(prompt, text):
    sys.exit(0)
"""
SEEDS = ["hello there", "a cat.", "the dog"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODEL)
    (tmp_path / "hidden.py").write_text(HIDDEN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(model: str, objective: str, **more: Any) -> Finding:
    how: dict[str, Any] = {"max_inputs": 300, "max_new": 16, "max_shrink": 60, "out": "run", **more}
    run = nnfuzz.fuzz_text(model, SEEDS, objective=objective, **how)
    return next(f for f in run.findings if f.confirmed)


def rerun(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the script, in this process."""
    script = runpy.run_path("run/findings/F0001/repro.py")
    capsys.readouterr()
    status = script["main"](list(arguments))
    return (status, *capsys.readouterr())


@pytest.mark.slow
def test_they_fail_again_without_nnfuzz(desk: Path) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("models.py:Small", "loop:3", {}),
        ("models.py:Small", "regex:[a-h]{2}", {"temperature": 2.0, "sample_seed": 3}),
        ("models.py:stopping", "empty", {}),
        ("models.py:shout", "regex:!!!", {}),
        ("models.py:fragile", "crash", {}),
        ("models.py:shout", "models.py:long", {}),
        ("models.py:Small", "disagree", {"as_": "bf16", "max_new": 24, "max_inputs": 600}),
        ("models.py:Small", "disagree", {"as_": "int8", "max_new": 24, "max_inputs": 600}),
        ("models.py:Small", "disagree", {"model_b": "models.py:mended"}),
        ("models.py:shout", "disagree", {"model_b": "models.py:fragile"}),
    ]
    findings = [found(m, o, **more, out=f"run{n}") for n, (m, o, more) in enumerate(cases)]
    places = [f"run{n}/findings/{f.id}/repro.py" for n, f in enumerate(findings)]
    done = subprocess.run(
        [sys.executable, "hidden.py", *places], capture_output=True, text=True, check=False, timeout=300
    )
    for place, finding in zip(places, findings, strict=True):
        assert f"status 1 {place}" in done.stdout, done.stdout + done.stderr
        assert f"REPRODUCED: {finding.symptom}" in done.stdout
        if "continuation" in finding.details:
            assert repr(finding.details["continuation"]) in done.stdout


def test_a_mended_model_passes(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found("models.py:Small", "regex:[a-y]{3}")
    status, said, _ = rerun(capsys, "models.py:mended")
    assert status == 0
    assert "not reproduced" in said


def test_it_is_tried_as_often_as_nnfuzz_tries_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found("models.py:shout", "regex:!!!")
    Path("seldom.py").write_text(
        "from itertools import count\nfrom models import shout\ncalls = count()\n"
        "def third(prompts):\n    return shout(prompts) if next(calls) == 2 else ['' for _ in prompts]\n"
    )
    status, said, _ = rerun(capsys, "seldom.py:third")
    assert (status, said.count("continues")) == (1, 3)


def test_what_is_missing_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found("models.py:Small", "loop:3")
    assert rerun(capsys)[0] == 1
    status, _, said = rerun(capsys, "nowhere.py:make")
    assert status == 2
    assert "there is no file" in said


def test_models_given_in_python_must_be_named(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = runpy.run_path("models.py")["Small"]()
    nnfuzz.fuzz_text(model, SEEDS, objective="loop:3", max_inputs=300, max_new=16, max_shrink=20, out="run")
    status, _, said = rerun(capsys)
    assert status == 2
    assert "python repro.py model.py:make" in said
    assert rerun(capsys, "models.py:Small")[0] == 1


def test_two_models_that_agree_pass(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding = found("models.py:Small", "disagree", model_b="models.py:mended")
    assert stands_alone(finding)
    assert rerun(capsys)[0] == 1
    status, said, _ = rerun(capsys, "models.py:mended", "models.py:mended")
    assert (status, "not reproduced" in said) == (0, True)
    status, said, _ = rerun(capsys, "models.py:Small", "models.py:Small")
    assert status == 0


def test_a_second_model_given_in_python_must_be_named(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = runpy.run_path("models.py")["mended"]()
    found("models.py:Small", "disagree", model_b=other)
    status, _, said = rerun(capsys)
    assert status == 2
    assert "python repro.py model.py:make other.py:make" in said
    assert rerun(capsys, "models.py:Small", "models.py:mended")[0] == 1


def test_what_only_nnfuzz_can_rerun_says_why(desk: Path) -> None:
    finding = found("models.py:shout", lambda prompt, text: len(text) > 12)
    assert not stands_alone(finding)
    script = desk / "run/findings/F0001/repro.py"
    assert "It needs nnfuzz: the objective was given in Python" in script.read_text()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2  # 1 would say that the finding is still there
    assert "cannot be tried" in done.stderr


def test_what_failed_only_in_its_batch_is_told_so(desk: Path) -> None:
    finding = found("models.py:Small", "loop:3")
    assert "batch" not in (ast.get_docstring(ast.parse(repro_script(finding))) or "")
    finding.status = "batch-only"
    assert "only together with other prompts" in (ast.get_docstring(ast.parse(repro_script(finding))) or "")


def test_a_hostile_finding_cannot_become_code(desk: Path) -> None:
    finding = found("models.py:Small", "loop:3")
    evil = '"""\nimport os; os.abort()\n"""'
    finding.cause, finding.symptom = evil, "loop"
    finding.details["run"]["cwd"] = finding.details["run"]["model"] = evil
    finding.details["continuation"], finding.details["spans"] = evil, [[0, len(evil)]]
    tree = ast.parse(repro_script(finding))
    assert not any(isinstance(n, ast.Attribute) and n.attr == "abort" for n in ast.walk(tree))


@pytest.mark.filterwarnings("default::Warning:transformers", "default::FutureWarning")
def test_a_folder_of_hugging_face_is_rerun(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.4, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained("gpt")
    run = nnfuzz.fuzz_text("gpt", [[3, 4, 5], [7, 8]], objective="loop:3", max_inputs=200, max_new=16, max_shrink=40,
                           out="run")  # fmt: skip
    status, said, _ = rerun(capsys)
    assert status == 1
    assert repr(run.findings[0].details["continuation"]) in said


@pytest.mark.filterwarnings("default::Warning:transformers", "default::FutureWarning")
def test_a_classifier_and_its_copy_are_rerun(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.4, bos_token_id=0,
        eos_token_id=0, pad_token_id=0, num_labels=3,
    )  # fmt: skip
    transformers.GPT2ForSequenceClassification(config).save_pretrained("cls")
    run = nnfuzz.fuzz_text("cls", [[3, 4, 5], [7, 8]], objective="disagree", as_="bf16", max_inputs=600, max_shrink=40,
                           out="run")  # fmt: skip
    assert stands_alone(run.findings[0])
    status, said, _ = rerun(capsys)
    assert status == 1
    named = run.findings[0].cause.replace("A names class", "").replace("B class", "").split(",")
    assert f"A names class {named[0].strip()}, B class {named[1].strip()}" in said


def test_a_model_that_leaves_is_reproduced_and_its_status_is_not_the_scripts(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found("models.py:leaves", "crash")
    status, said, _ = rerun(capsys)
    assert (status, "sys.exit(0)" in said, "REPRODUCED" in said) == (1, True, True)
    assert rerun(capsys, "models.py:shout")[0] == 0


def test_an_objective_that_leaves_says_nothing_of_the_finding(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found("models.py:shout", "models.py:long")
    script = runpy.run_path("run/findings/F0001/repro.py")
    script["main"].__globals__["OBJECTIVE"] = "models.py:bad"
    assert script["main"]([]) == 2
    assert "this error is not the finding" in capsys.readouterr().err


def test_lone_surrogates_are_no_utf8_in_the_script_too(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found("models.py:surrogates", "utf8")
    status, said, _ = rerun(capsys)
    assert (status, "REPRODUCED: invalid UTF-8" in said) == (1, True)
    assert rerun(capsys, "models.py:shout")[0] == 0
    found("models.py:surrogates", r"regex:\ud800", out="marked")
    assert runpy.run_path("marked/findings/F0001/repro.py")["main"]([]) == 1


def test_the_file_of_an_objective_is_found_from_anywhere(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "judges.py").write_text("def long(prompt, text):\n    return len(text) > 12\n")
    found("models.py:shout", "judges.py:long")
    (desk / "elsewhere").mkdir()
    monkeypatch.chdir(desk / "elsewhere")
    main = runpy.run_path("../run/findings/F0001/repro.py")["main"]
    assert main([]) == 1
    (desk / "judges.py").unlink()
    assert main([]) == 2
    assert "which the objective judges.py:long stands in: put it back" in capsys.readouterr().err
