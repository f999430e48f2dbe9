"""What a program does wrong is told in one sentence, with the right exit status, and never as a bug of nnfuzz."""

from pathlib import Path

import pytest
from programs import SOURCE, write_program

from nnfuzz.cli import main
from nnfuzz.training.rules import read_input

LOSS = 'def loss(model, batch): return -(batch["y"]'
OPTIMIZER = "return torch.optim.SGD(model.parameters(), lr=1.0)"


def trained(folder: Path, source: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a short search in a program."""
    words = ["train", str(write_program(folder, source)), "--max-steps", "60", "--out", str(folder / "run"), *more]
    status = main(words)
    told = capsys.readouterr()
    return status, told.out, told.err


def changed(old: str, new: str) -> str:
    assert old in SOURCE
    return SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (changed("def build(seed):", "def build():\n    seed = 0"), "build() cannot be called as build(seed)"),
        (changed("return nn.Sequential", "nn.Sequential"), "build(seed) returns None"),
        (changed("return nn.Sequential", 'return "model"\n    nn.Sequential'), "build(seed) returns a str"),
        (changed("return nn.Sequential", "return nn.Flatten()\n    nn.Sequential"), "a Flatten without parameters"),
        (changed("nn.Linear(3, 16)", "nn.LazyLinear(16)"), "lazy layers"),
        (changed(OPTIMIZER, OPTIMIZER.removeprefix("return ")), "optimizer(model) returns None"),
        (
            changed(OPTIMIZER, "o = torch.optim.SGD(model.parameters()); return o, None"),
            "returns a tuple (SGD, NoneType), but must return a torch.optim.Optimizer alone",
        ),
        (
            changed(OPTIMIZER, "return torch.optim.LBFGS(model.parameters())"),
            "needs a closure, and that is unsupported",
        ),
        (changed(".sum(1).mean()", ".sum(1).mean().detach()"), "does not depend on the model's parameters"),
        (changed(".sum(1).mean()", ".sum(1).mean().item()"), "gives a float, but training needs a scalar"),
        (changed("    while True:\n        yield", "    if 1:\n        return"), "batches(seed) returns a dict"),
        (changed("torch.rand(12, 3", "torch.rand(0, 3").replace("arange(12)", "arange(0)"), "no rows"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, source, said):
    status, _, err = trained(tmp_path, source, capsys)
    assert said in err
    assert err.startswith("nnfuzz: error: ")
    assert err.count("\n") == 1
    assert status == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "what"),
    [
        ("    torch.manual_seed(seed)\n", "build(seed)"),
        ("    while True:\n", "batches(seed)"),
    ],
)
def test_leaving_by_sys_exit_is_a_failure(tmp_path, capsys, old, what):
    status, _, err = trained(tmp_path, changed(old, "    import sys; sys.exit(0)\n" + old), capsys)
    assert f"{what} ends the process by sys.exit (SystemExit: 0 (program.py:" in err
    assert status == 3


@pytest.mark.parametrize("left", ["raise SystemExit(0)", 'raise ValueError("no")'])
def test_a_loss_or_an_optimizer_that_raises_is_told_with_its_line(tmp_path, capsys, left):
    source = changed(LOSS, f"def loss(model, batch):\n    {left}\n    return -(batch['y']")
    status, _, err = trained(tmp_path, source, capsys)
    assert "loss(model, batch) " in err
    assert "(program.py:19: raise" in err
    assert status == 3
    status, _, err = trained(tmp_path, changed(OPTIMIZER, "\n    " + left), capsys)
    assert err.startswith("nnfuzz: error: optimizer(model) ")
    assert status == 3


def test_a_file_that_leaves_by_sys_exit_cannot_be_run(tmp_path, capsys):
    status, _, err = trained(tmp_path, SOURCE + "\nraise SystemExit(0)\n", capsys)
    assert "program.py cannot be run (SystemExit: 0 (program.py:" in err
    assert status == 2


def test_a_loss_that_is_nan_at_once_says_where(tmp_path, capsys):
    status, _, err = trained(tmp_path, changed("torch.log(torch", "torch.log(-torch"), capsys)
    assert "is nan already, at log" in err
    assert status == 3


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ('(-float("inf"), float("inf"))', "both must be finite numbers"),
        ("(float('nan'), 3.0)", "both must be finite numbers"),
        ('("0", "10")', "both must be finite numbers"),
        ("dict(choices=[], role='data')", "a list of numbers, one at least"),
        ("dict(choices=[0, float('nan')], role='data')", "a list of numbers, one at least"),
        ("dict(choices=[0, 1], role='data')", "but its choices are 0, 1: name all values that the data has"),
        ("dict(choices=[0, 1], low=0, high=1)", "both a range and choices"),
        ("dict(fixed=True, role='noise')", "has fixed=True and the role 'noise'"),
        ("(0.0, 1.0)", "widen the range"),
    ],
)
def test_ranges_that_say_nothing_are_refused(tmp_path, capsys, rules, said):
    source = changed('dict(low=0.0, high=10.0, role="data")', rules)
    status, _, err = trained(tmp_path, source, capsys)
    assert said in err
    assert err.count("\n") == 1
    assert status == 2


def test_names_that_do_not_fit_are_told_by_what_the_file_calls_them(tmp_path, capsys):
    status, _, err = trained(tmp_path, changed('"y": dict(kind="onehot", fixed=True)', '"z": (0.0, 1.0)'), capsys)
    assert "but INPUTS names 'z': add it to the batch or take it out of INPUTS" in err
    assert status == 2


def test_the_role_of_a_label_is_the_same_as_fixed():
    given = [read_input("y", "y", rules) for rules in ({"role": "label"}, {"fixed": True})]
    assert given[0] == given[1]


def test_a_run_of_training_cannot_be_resumed_and_says_what_to_do(tmp_path, capsys):
    trained(tmp_path, changed("torch.log(torch.softmax(", "(torch.log_softmax("), capsys, "--seed", "4")
    assert main(["resume", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "is a run of nnfuzz train, and such a run cannot be resumed" in err
    assert f"nnfuzz train {tmp_path / 'program.py'} --seed 5" in err
