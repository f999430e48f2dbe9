"""What `nnfuzz train` saves, gone back to by the command line: repro, shrink, explain."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from programs import INPUTS, linear, log_softmax, log_softmax_by_hand, rows, sgd, write_program

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.errors import StoreError, UsageError
from nnfuzz.training import find_nans_in_training
from nnfuzz.training.finding import packed, unpacked
from nnfuzz.training.program import make_program
from nnfuzz.training.replay import retrace, shorten
from nnfuzz.training.saved import load_training_finding
from nnfuzz.training.walk import Failure, Step, Walk


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of `nnfuzz train`, beside its program."""
    folder = tmp_path_factory.mktemp("train")
    assert main(["train", str(write_program(folder)), "--max-steps", "3000", "--out", str(folder / "run")]) == 1
    return folder


@pytest.fixture
def project(found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change; the finding still names the program where it was."""
    shutil.copytree(found, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    return tmp_path / "p"


def test_repro_trains_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    assert main(["repro", "run"]) == 1
    assert torch.equal(torch.get_rng_state(), before)
    step = json.loads(Path("run/findings/T0001/finding.json").read_text())["step"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("recorded: ")
    assert lines[1].removeprefix("seen now") == lines[0].removeprefix("recorded")
    assert f"at step {step} " in lines[0]
    assert lines[2] == "reproduced"


def test_repro_of_a_repaired_program(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("program.py").read_text()
    Path("better.py").write_text(
        text.replace('torch.log(torch.softmax(model(batch["x"]), 1))', 'torch.log_softmax(model(batch["x"]), 1)')
    )
    assert main(["repro", "run/findings/T0001", "--model", "better.py"]) == 0
    assert capsys.readouterr().out.endswith("seen now: it does not fail\nnot reproduced\n")
    assert main(["shrink", "run", "--model", "better.py"]) == 2
    assert "T0001 does not fail any more, so there is nothing to shrink" in capsys.readouterr().err


def test_explain_names_the_operation_and_a_remedy_that_held(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "run"]) == 0
    text = capsys.readouterr().out
    assert "log at program.py:" in text
    assert 'torch.log(torch.softmax(model(batch["x"]), 1))' in text  # the source line
    assert "operand" in text
    assert "<-" in text  # the chain
    assert "what helps" in text
    assert 'torch.log_softmax(model(batch["x"]), 1)' in text
    assert "steps of plain training give the same losses" in text
    assert "of the saved walk give finite losses and gradients" in text


def test_a_remedy_that_changes_training_or_still_fails_is_not_verified(project: Path) -> None:
    """The two checks that are special to trainings, each with a loss that fails it."""
    from nnfuzz.advice.training import _Trial
    from nnfuzz.training.walk import global_rng_kept

    finding = load_training_finding("run/findings/T0001")
    trial = _Trial(finding)
    with global_rng_kept():
        still = trial.walk([])
        assert still is not None
        assert not still.passed
        assert still.text.startswith("on the saved walk still ")
        assert trial.plain([]).passed
        trial._expected = [2 * x for x in trial._losses([])]
        assert "plain training differs at step 0" in trial.plain([]).text


@pytest.mark.slow
def test_shrink_goes_on_where_the_search_stopped(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("run/findings/T0001")
    finding = load_training_finding(place)
    longer = lengthened(finding.program, finding.build_seed, finding.walk, finding.symptom)
    finding.batches, finding.seeds = [s.batch for s in longer], [s.seed for s in longer]
    finding.save(place)
    assert main(["repro", str(place)]) == 1
    assert capsys.readouterr().out.endswith("\nreproduced\n")
    assert main(["shrink", str(place), "-n", "3k"]) == 0
    assert "saved in run/findings/T0001" in capsys.readouterr().out
    after = load_training_finding(place)
    assert after.step < finding.step
    assert after.steps_found == finding.steps_found
    assert main(["repro", str(place)]) == 1
    assert capsys.readouterr().out.endswith("\nreproduced\n")
    assert {p.name for p in place.iterdir()} >= {"repro.py", "README.md", "program_source.txt"}
    assert f"after {after.step} training step" in (place / "README.md").read_text() or after.step == 0


def lengthened(program, seed, steps, symptom):
    """The same failure with plain steps among its own that it does not need: as many as leave it failing."""
    for extra, at, source in product((4, 2, 1), range(len(steps)), range(100)):
        walk = Walk(program, seed)
        plain = [Step(b, i) for i, b in zip(range(extra), program.batches(source), strict=False)]
        longer = [*steps[:at], *plain, *steps[at:]]
        seen = retrace(program, seed, walk.initial, longer, tries=0)
        if seen is not None and len(seen.steps) == len(longer) and seen.failure.symptom == symptom:
            return longer
    pytest.fail("no plain step beside its own leaves the failure alone")


def test_the_search_directory_is_shown_and_a_second_model_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repro", "run", "--model-b", "x.py:f"]) == 2
    assert "is a finding of nnfuzz train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"program": None}, "was made in Python, so it does not know its program: pass the file"),
        ({"program": "/no/such.py"}, "/no/such.py, the program that run/findings/T0001 was found in, is not there"),
        ({"seeds": "x"}, "is damaged: its 'seeds' is 'x'"),
        ({"seeds": [1], "step": 0}, "is damaged: "),
    ],
)
def test_what_is_missing_is_said(
    project: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], message: str
) -> None:
    path = Path("run/findings/T0001/finding.json")
    finding = load_training_finding(path.parent)
    if not finding.step:  # one step more, so that a single seed is one too few
        finding.batches, finding.seeds = finding.batches * 2, finding.seeds * 2
        finding.batches[1] = {k: v + 0 for k, v in finding.batches[1].items()} | {"x": finding.batches[0]["x"] * 0.5}
        finding.save(path.parent)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for command in ("repro", "shrink", "explain"):
        assert main([command, "run"]) == 2
        assert message in capsys.readouterr().err


def test_another_model_is_no_traceback(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text(Path("program.py").read_text().replace("nn.Linear(3, 16)", "nn.Linear(3, 17)"))
    assert main(["repro", "run", "--model", "other.py"]) == 2
    assert "cannot be trained with this program" in capsys.readouterr().err


def test_in_python_the_program_is_given(tmp_path: Path) -> None:
    run = find_nans_in_training(linear, log_softmax_by_hand, rows, optimizer=sgd, inputs=INPUTS, max_steps=3000)
    place = run.findings[0].save(tmp_path / "T0001")
    program = make_program(linear, log_softmax_by_hand, rows, sgd, INPUTS)
    assert nnfuzz.repro(place, program).reproduced
    assert not nnfuzz.repro(place, make_program(linear, log_softmax, rows, sgd, INPUTS)).symptom
    with pytest.raises(UsageError, match="needs its program"):
        nnfuzz.repro(place, torch.nn.Linear(3, 2))
    (place / "batches.safetensors").write_bytes(b"x")
    with pytest.raises(StoreError, match="damaged"):
        nnfuzz.repro(place, program)


def test_batches_survive_packing() -> None:
    batches = [{"x": torch.zeros(2), "y": torch.ones(1)}, {"x": torch.zeros(2), "y": torch.ones(1) * 2}]
    again = unpacked(packed(batches), 2)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(batches, again, strict=True) for k in a)
    assert len(packed(batches)) == 3


def test_one_run_confirms_and_shortens() -> None:
    """A batch that fails from the first step on is found there, although it came after twenty."""

    def build(seed):
        model = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(model.weight, -0.001)
        return model

    def loss(model, batch):  # weights rise with every step; once their sum is positive, a full batch is log(0)
        grown = float(model.weight.sum() > 0)
        return -model.weight.sum() - torch.log(1 - grown * batch["x"].mean() / 10)

    def batch(value):
        return {"x": torch.full((12, 3), value), "y": torch.zeros(12, 2)}

    program = make_program(build, loss, rows, sgd, INPUTS)
    state = Walk(program, 0).initial
    steps = [*(Step(batch(0.0), i) for i in range(20)), Step(batch(10.0), 20)]
    whole = retrace(program, 0, state, steps, tries=0)
    early = retrace(program, 0, state, steps)
    assert whole is not None
    assert early is not None
    assert (len(whole.steps), len(early.steps)) == (21, 2)
    assert early.failure == whole.failure == Failure("forward", "+inf")
    assert len(shorten(program, 0, state, steps, whole.failure, 200)) == 2
    assert retrace(program, 0, state, [steps[-1]]) is None
