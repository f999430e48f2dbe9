"""From words to the arguments of the public face, with a public face that only notes what it is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nnfuzz
import nnfuzz.api
from nnfuzz.cli import main
from nnfuzz.cli.argv import rewritten
from nnfuzz.errors import ModelFailure, RunLocked

_LINES = (
    "", "nan", "diff", "fuzz", "rows", "text", "train", "seeds", "demo", "repro", "shrink", "explain", "sensitivity",
    "show", "resume", "crash", "corpus", "corpus info", "corpus merge", "corpus min",
)  # fmt: skip
COMMANDS = [line.split() for line in _LINES]

SOURCE = """\
import torch
def f(x, y):
    return x + y
def one(x):
    return x
def judge(outputs, inputs):
    return outputs[:, 0] > 3
seeds = {"x": torch.ones(4, 2), "y": torch.ones(4, 2)}
rows = torch.ones(4, 2)
def broken():
    raise ValueError("no data today")
"""


class Face:
    """Stands for nnfuzz.api: notes the call, gives back a run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict[str, Any]]] = []
        self.run = SimpleNamespace(findings=[], stats=SimpleNamespace(stopped="max-time"))
        self.error: BaseException | None = None

    def __call__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if self.error is not None:
                raise self.error
            return self.run

        return call

    @property
    def given(self) -> dict[str, Any]:
        return self.calls[-1][2]


@pytest.fixture
def face(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Face:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cli_zoo.py").write_text(SOURCE)
    made = Face()
    for name in ("find_nans", "diff", "fuzz", "check_rows", "resume"):
        monkeypatch.setattr(nnfuzz.api, name, made(name))
    return made


NAN = ["nan", "cli_zoo.py:f", "--seeds", "cli_zoo.py:seeds"]
ONE = ["nan", "cli_zoo.py:one", "--seeds", "cli_zoo.py:rows"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    told = capsys.readouterr()
    assert "Usage: nnfuzz" in told.out
    assert told.err == ""


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    from typer.main import get_command

    from nnfuzz.cli.commands import app

    todo = [get_command(app)]
    for command in todo:
        todo += getattr(command, "commands", {}).values()
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", ""), f"{command.name} {parameter.name}"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nnfuzz {nnfuzz.__version__}\n"


def test_no_words_show_the_help_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr()
    assert (told.out + told.err).count("Usage: nnfuzz") == 1


def test_importing_the_command_line_loads_no_torch() -> None:
    code = "import sys, nnfuzz.cli, nnfuzz.cli.commands; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


MISTYPED = [
    (["nan", "gone.py:f", "--seeds", "here.npz"], "there is no file gone.py"),
    (["nan", "gone.pt2", "--seeds", "here.npz"], "there is no file gone.pt2"),
    (["nan", "gone.onnx", "--seeds", "here.npz"], "there is no file gone.onnx"),
    (["nan", "cli_zoo.py", "--seeds", "here.npz"], "'cli_zoo.py' does not say which object is the model: write "),
    (["nan", "cli_zoo.py:a-b", "--seeds", "here.npz"], "'a-b' in 'cli_zoo.py:a-b' is not a name"),
    (["nan", "cli_zoo.py:one", "--seeds", "gone.npz"], "there is no file gone.npz"),
    (["nan", "cli_zoo.py:one", "--seeds", "gone"], "there is no file or folder gone"),
    (["nan", "cli_zoo.py:one", "--seeds", "gone.py:rows"], "there is no file gone.py"),
    (["diff", "cli_zoo.py:one", "gone.py:f", "--seeds", "here.npz"], "there is no file gone.py"),
    (["fuzz", "cli_zoo.py:one", "--seeds", "here.npz", "--objective", "gone.py:f"], "there is no file gone.py"),
    (["nan", "cli_zoo.py:one", "--seeds", "here.npz", "--constraint", "gone.py:f"], "there is no file gone.py"),
    (["nan", "cli_zoo.py:one", "--seeds", "here.npz", "--out", "taken"], "taken already holds a run: go on with it"),
    (["resume", "gone"], "gone does not exist, so it is no run"),
    (["resume", "."], ". holds no run.json, so it is no run"),
    (["crash", "gone"], "gone does not exist, so it is no run"),
    (["resume", "taken/run.json"], "taken/run.json is a file, so it is no run: give the directory"),
    (["show", "gone"], "gone does not exist: give a run directory or one of its findings"),
    (["repro", "gone"], "gone does not exist, so it is no finding"),
    (["shrink", "gone"], "gone does not exist, so it is no finding"),
    (["explain", "."], ". holds no finding.json, so it is no finding"),
    (["corpus", "info", "gone"], "gone does not exist, so it is no run"),
    (["corpus", "merge", "new", "gone"], "gone does not exist, so it is no run"),
    (["corpus", "merge", "taken", "taken"], "taken already holds a run"),
    (["corpus", "min", "gone", "new"], "gone does not exist, so it is no run"),
]


def test_what_is_mistyped_is_answered_without_loading_torch(tmp_path: Path) -> None:
    (tmp_path / "cli_zoo.py").write_text(SOURCE)
    (tmp_path / "here.npz").write_bytes(b"")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.json").write_text("{}")
    code = (
        "import json, sys\n"
        "from nnfuzz.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    print(main(words), 'torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)\n"
    )
    words = json.dumps([words for words, _ in MISTYPED])
    done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, check=True, cwd=tmp_path)
    said, states = done.stderr.splitlines()[::2], done.stderr.splitlines()[1::2]
    assert states == ["2 False False"] * len(MISTYPED)
    for line, (_, message) in zip(said, MISTYPED, strict=True):
        assert line.startswith(f"nnfuzz: error: {message}")


def test_that_test_can_fail() -> None:
    code = "import sys, nnfuzz.cli, torch; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_defaults(face: Face) -> None:
    assert main(NAN) == 0
    (name, args, given), *_ = face.calls
    assert (name, len(args)) == ("find_nans", 1)
    assert given["seeds"]["x"].shape == (4, 2)
    assert given["out"] == Path("nnfuzz-runs/nan-cli_zoo-f-1")
    assert set(given) == {
        "seeds", "seed", "max_inputs", "max_seconds", "stop_on_first", "out", "reporter", "context",
    }  # fmt: skip
    assert (given["max_inputs"], given["max_seconds"], given["seed"]) == (None, 60.0, 0)


EVERYTHING = """
--range x=-1:1 --range y={0,1} --fix y --kind y=onehot --eps x=0.5 --shape x=n,2 --unit batch --no-gradients
--coverage none --layers a,b* --radius 0.5 --mutators noise,splice --schedule uniform --batch-size 1k --train
--flush-denormal --device cpu --seed 7 -n 10k -t 5m --stop-on-first --max-corpus 2k --max-shrink 50 --watch layers
--phase forward --out here --plain --constraint cli_zoo.py:one
"""


def test_everything(face: Face) -> None:
    words = EVERYTHING.split()
    assert main([*NAN, *words]) == 0
    given = face.given
    expected = {
        "ranges": {"x": (-1, 1), "y": [0, 1]}, "fixed": ["y"], "kinds": {"y": "onehot"}, "eps": {"x": 0.5},
        "shapes": {"x": ("n", 2)}, "unit": "batch", "gradients": False, "coverage": "none", "layers": ["a", "b*"],
        "radius": 0.5, "mutators": ["noise", "splice"], "schedule": "uniform", "batch_size": 1000, "train": True,
        "flush_denormal": True, "device": "cpu", "seed": 7, "max_inputs": 10_000, "max_seconds": 300.0,
        "stop_on_first": True, "max_corpus": 2000, "max_shrink": 50, "watch": "layers", "phase": "forward",
        "out": Path("here"),
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    assert given["constraint"](3) == 3


def test_arguments_are_those_of_the_public_face(face: Face) -> None:
    from dataclasses import fields

    from nnfuzz.settings import Settings

    test_everything(face)
    assert set(face.given) - {f.name for f in fields(Settings)} == {"seeds", "out", "reporter"}


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        ([], (None, 60.0)),
        (["-n", "5"], (5, None)),
        (["-t", "0"], (None, None)),
        (["-t", "2s"], (None, 2.0)),
        (["-n", "5", "-t", "2s"], (5, 2.0)),
    ],
)
def test_budget(face: Face, words: list[str], limits: tuple) -> None:
    main([*NAN, *words])
    assert (face.given["max_inputs"], face.given["max_seconds"]) == limits


@pytest.mark.parametrize("words", [["--range", "-1", "1"], ["--range", "-1:1"], ["--range=-1:1"], ["--range", "-1..1"]])
def test_one_range_for_all(face: Face, words: list[str]) -> None:
    main([*NAN, *words])
    assert face.given["ranges"] == (-1, 1)


def test_rewritten() -> None:
    assert rewritten(["a", "--range", "-1", "1e3", "b"]) == (["a", "--range", "-1:1e3", "b"], False)
    assert rewritten(["a", "--range", "x=0:1", "2"]) == (["a", "--range", "x=0:1", "2"], False)
    assert rewritten(["--debug", "a", "--", "--debug"]) == (["a", "--", "--debug"], True)
    assert rewritten(["--range"]) == (["--range"], False)


def test_context_is_enough_to_go_back(face: Face, tmp_path: Path) -> None:
    import json

    main(["diff", "cli_zoo.py:one", "cli_zoo.py:one", "--seeds", "cli_zoo.py:rows", "--compare", "topk:2"])
    context = json.loads(json.dumps(face.given["context"]))
    assert context.pop("command")[0] == "nnfuzz"
    assert context == {
        "cwd": str(tmp_path), "model": "cli_zoo.py:one", "model_b": "cli_zoo.py:one", "seeds": "cli_zoo.py:rows",
        "inputs": [], "as_": None, "objective": None, "compare": "topk:2", "constraint": None, "trust": False,
    }  # fmt: skip


def test_diff(face: Face) -> None:
    main(
        ["diff", "cli_zoo.py:one", "--as", "fp16", "--seeds", "cli_zoo.py:rows", "--ties", "--compare", "cli_zoo.py:f"]
    )
    name, args, given = face.calls[-1]
    assert (name, len(args), given["as_"], given["ties"]) == ("diff", 1, "fp16", True)
    assert given["compare"](1, 2) == 3
    assert given["out"] == Path("nnfuzz-runs/diff-cli_zoo-one-1")


def test_fuzz(face: Face) -> None:
    main(["fuzz", "cli_zoo.py:one", "--objective", "cli_zoo.py:judge", "--seeds", "cli_zoo.py:rows"])
    assert face.given["objective"].__name__ == "judge"


def test_rows(face: Face) -> None:
    main(["rows", "cli_zoo.py:one", "--seeds", "cli_zoo.py:rows", "--tolerance", "1e-3,0"])
    assert face.calls[-1][0] == "check_rows"
    assert face.given["tolerance"] == (1e-3, 0.0)


def test_made_seeds(face: Face) -> None:
    main(["nan", "cli_zoo.py:f", "--input", "x=float32[1,2]:0..1", "--input", "y=bool[1,2]", "--range", "y={0}"])
    assert {n: tuple(t.shape) for n, t in face.given["seeds"].items()} == {"x": (16, 2), "y": (16, 2)}
    assert face.given["ranges"] == {"x": (0, 1), "y": [0]}


def test_places_do_not_collide(face: Face) -> None:
    for n in (1, 2, 3):
        main(NAN)
        assert face.given["out"] == Path(f"nnfuzz-runs/nan-cli_zoo-f-{n}")
        face.given["out"].mkdir(parents=True)


@pytest.mark.parametrize(
    ("found", "stopped", "status"),
    [([], "max-time", 0), ([1], "max-time", 1), ([], "interrupted", 130), ([1], "interrupted", 130)],
)
def test_status(face: Face, found: list, stopped: str, status: int) -> None:
    face.run = SimpleNamespace(findings=found, stats=SimpleNamespace(stopped=stopped))
    assert main(NAN) == status


def test_resume(face: Face) -> None:
    Path("RUN").mkdir()
    Path("RUN", "run.json").write_text("{}")
    assert main(["resume", "RUN", "-n", "5k", "--model", "cli_zoo.py:one"]) == 0
    name, args, given = face.calls[-1]
    assert (name, args, given["max_inputs"]) == ("resume", (Path("RUN"),), 5000)
    assert "max_seconds" not in given
    assert given["model"](3) == 3


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ModelFailure("the model fails on its own seeds: no"), 3, "the model fails on its own seeds: no"),
        (RunLocked("another process is writing RUN"), 2, "another process is writing RUN"),
        (
            KeyError("oops"),
            70,
            "KeyError: 'oops' (this is a bug in nnfuzz: rerun with --debug for the traceback)",
        ),
        (KeyboardInterrupt(), 130, "interrupted before the run began, so nothing was written"),
        (KeyboardInterrupt("RUN holds 5 inputs"), 130, "RUN holds 5 inputs"),
        (
            ValueError("two\nlines"),
            70,
            "ValueError: two lines (this is a bug in nnfuzz: rerun with --debug for the traceback)",
        ),
    ],
)
def test_errors(
    face: Face, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    face.error = error
    assert main(NAN) == status
    assert capsys.readouterr().err == f"nnfuzz: error: {message}\n"


def test_debug_shows_the_traceback(face: Face, capsys: pytest.CaptureFixture[str]) -> None:
    face.error = KeyError("oops")
    assert main([*NAN, "--debug"]) == 70
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("nnfuzz: error: KeyError: 'oops'\n")


WAYS = (
    "given: give either another model as MODEL_B (file.py:name, a .pt2, a .onnx, …) or --as "
    "fp16|bf16|int8|int8-dynamic|int8-static (the last two of ONNX models)"
)

BAD = {
    "nan": "missing argument 'MODEL' (see nnfuzz nan --help)",
    "frob": "no such command 'frob' (see nnfuzz --help)",
    "nan a b": "got unexpected extra argument(s) (b) (see nnfuzz nan --help)",
    "nan cli_zoo.py:f": "there are no seeds: give --seeds SEEDS, or draw some with --input x=float32[1,3,32,32]:0..1",
    "nan cli_zoo.py:f --seeds a.npy --input x=bool[1]": "--seeds and --input are both given: --input only makes seeds "
    "where there are none",
    "nan gone.py:f --seeds a.npy": "there is no file gone.py",
    "nan cli_zoo.py:f --seeds gone.npy": "there is no file gone.npy",
    "nan cli_zoo.py:f --seeds cli_zoo.py:broken": "making the seeds from cli_zoo.py:broken failed: ValueError: no data "
    'today (cli_zoo.py:11: raise ValueError("no data today"))',
    "nan cli_zoo.py:f --seeds a.npy --range 2 1": "--range: the range '2:1' is empty: its low end is above "
    "its high end",
    "nan cli_zoo.py:f --seeds a.npy --range x": "--range: 'x' is not a range: write LO:HI, for instance -1:1",
    "nan cli_zoo.py:f --seeds a.npy --eps 0": "--eps: '0' must be a finite number above 0",
    "nan cli_zoo.py:f --seeds a.npy --eps 1 --eps x=2": "--eps is given for all inputs and again for x: name every "
    "input, or none",
    "nan cli_zoo.py:f --seeds a.npy --kind onehot": "--kind: 'onehot' does not say which input: write name=kind, for "
    "instance y=onehot",
    "nan cli_zoo.py:f --seeds a.npy --max-time soon": "--max-time: 'soon' is not a duration: write seconds or 90s, 5m, "
    "1.5h, 1h30m",
    "nan cli_zoo.py:f --seeds a.npy --max-inputs 0": "--max-inputs: '0' is not a count: it must be whole and at "
    "least 1",
    "nan cli_zoo.py:f --seeds a.npy --seed -1": "--seed: '-1' must be a whole number from 0 up",
    "nan cli_zoo.py:f --seeds a.npy --unit row": "--unit: 'row' is not known: choose one of auto, sample, batch",
    "nan cli_zoo.py:f --seeds a.npy --radius x": "--radius: 'x' is not a number",
    "nan cli_zoo.py:f --seeds cli_zoo.py:seeds --plain --json": "--plain and --json are both given: choose one",
    "nan cli_zoo.py:f --input x=int8[1]:0..1 --range 0 1": "--range is given for all inputs, but --input declares "
    "a range for each: name the input",
    "diff cli_zoo.py:one --seeds a.npy": f"diff compares MODEL_A with MODEL_B or with a copy, and neither is {WAYS}",
    "diff cli_zoo.py:one cli_zoo.py:f --as fp16 --seeds a.npy": "diff compares MODEL_A with MODEL_B or with a copy, "
    f"and both are {WAYS}",
    "diff cli_zoo.py:one --as fp8 --seeds a.npy": "--as: 'fp8' is not known: choose one of fp16, bf16, int8, "
    "int8-dynamic, int8-static",
    "fuzz cli_zoo.py:one --seeds cli_zoo.py:rows --objective cli_zoo.py:rows": "cli_zoo.py:rows is a Tensor, but the "
    "objective is a function",
    "rows cli_zoo.py:one --seeds cli_zoo.py:rows --tolerance 1,2,3": "--tolerance: '1,2,3' is not a tolerance: write "
    "ABS,REL, for instance 1e-5,1e-4",
    "resume RUN --max-time 0": "--max-time: resume needs an end: give a time, counted from the run's beginning",
    "show gone": "gone does not exist: give a run directory or one of its findings",
    "show .": ". holds neither run.json nor finding.json: give a run directory or one of its findings",
    "repro gone": "gone does not exist, so it is no finding: give a directory such as RUN/findings/F0001",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_words(face: Face, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert main(line.split()) == 2
    told = capsys.readouterr()
    assert told.err == f"nnfuzz: error: {BAD[line]}\n"
    assert not face.calls
    assert not Path("nnfuzz-runs").exists()


def test_fuzz_needs_an_objective(face: Face, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "cli_zoo.py:one", "--seeds", "cli_zoo.py:rows"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("nnfuzz: error: fuzz needs a property to violate: give --objective file.py:fn")


def test_unknown_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nan", "m", "--sed", "3"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("nnfuzz: error: no such option: --sed")
    assert told.count("\n") == 1


def test_a_model_that_prints_does_not_spoil_json(
    face: Face, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cli_loud.py").write_text("print('hello')\ndef f(x):\n    return x\n")
    assert main(["nan", "cli_loud.py:f", "--seeds", "cli_zoo.py:rows", "--json"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "hello\n")


def test_notes_of_the_seeds_are_said(face: Face, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "cli_data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "data = TensorDataset(torch.ones(3, 2), torch.arange(3))\n"
    )
    assert main(["nan", "cli_zoo.py:one", "--seeds", "cli_data.py:data", "--plain"]) == 0
    assert "note: the model takes x: the label of each candidate in the dataset is left out" in capsys.readouterr().out


def test_torch_is_left_as_it_was(face: Face) -> None:
    before = torch.get_rng_state()
    main(NAN)
    assert torch.equal(before, torch.get_rng_state())
