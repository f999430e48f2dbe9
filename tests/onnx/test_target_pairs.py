"""Two models of which one at least is a graph: what belongs together, whatever each side is and takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from target_zoo import FLOAT, INT64, classifier, log_of_softmax, model, node, recurrent, saved, weight
from torch import Tensor, nn

import nnfuzz
import nnfuzz.onnx
import onnx
from nnfuzz.errors import UsageError
from nnfuzz.jobs import DiffJob
from nnfuzz.onnx.matching import match_outputs
from nnfuzz.report.telling import what
from nnfuzz.settings import Settings
from nnfuzz.targets import Trace, Want

LIMITS = {"ranges": (-10, 10), "max_inputs": 800, "max_seconds": 20}


def seeds(count: int = 8) -> Tensor:
    return torch.rand(count, 6, generator=torch.Generator().manual_seed(1)) * 2 - 1


class Net(nn.Module):
    """``classifier(scale)`` in torch."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.w1 = nn.Parameter(torch.from_numpy(weight(6, 8, seed=1)))
        self.w2 = nn.Parameter(torch.from_numpy(weight(8, 3, seed=2) * np.array([1, scale, 1], np.float32)))

    def forward(self, inp: Tensor) -> Tensor:
        return torch.relu(inp @ self.w1) @ self.w2


def pair(a: Any, b: Any, given_seeds: Any, **settings: Any) -> DiffJob:
    load = nnfuzz.onnx.load
    a, b = (load(m) if isinstance(m, onnx.ModelProto) else m for m in (a, b))
    job = DiffJob(Settings(job="diff", **settings), a, b, given_seeds)
    with job.target_session():
        job.prepare()
    return job


# --------------------------------------------------------------------------------------------------- matching


@given(st.data())
def test_outputs_are_matched_by_name_then_by_shape(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=5))
    shapes = {n: torch.zeros(1, i + 2) for i, n in enumerate("abcdef")}
    a = {n: shapes[n] for n in names}
    order = data.draw(st.permutations(names))
    renamed = {n: n if data.draw(st.booleans()) else f"out_{n}" for n in names}
    b = {renamed[n]: shapes[n] for n in order}
    found = match_outputs(a, b, {})
    assert found.pairs == {n: renamed[n] for n in names}
    assert not found.only_a
    assert not found.only_b


def test_what_is_asked_comes_first_and_the_rest_is_said() -> None:
    a = {"x": torch.zeros(1, 3), "y": torch.zeros(1, 3), "extra": torch.zeros(1, 7)}
    b = {"y": torch.zeros(1, 3), "z": torch.zeros(1, 3)}
    assert match_outputs(a, b, {}).pairs == {"x": "z", "y": "y"}
    found = match_outputs(a, b, {"x": "y"})
    assert found.pairs == {"x": "y", "y": "z"}
    assert found.said({"i": "j"}) == [
        "inputs matched (A = B): i = j; outputs: x = y, y = z",
        "not compared, since nothing on the other side fits: output extra of A",
    ]
    with pytest.raises(UsageError, match="--map q=y: A has no output 'q', it gives x, y, extra"):
        match_outputs(a, b, {"q": "y"})
    with pytest.raises(UsageError, match="--map x=q: B has no output 'q', it gives y, z"):
        match_outputs(a, b, {"x": "q"})
    with pytest.raises(UsageError, match=r"no output of A \(x float32\[1, 3\]\) fits one of B"):
        match_outputs({"x": torch.zeros(1, 3)}, {"p": torch.zeros(2), "q": torch.zeros(4)}, {})


def two_inputs(first: str, second: str, *, swapped: bool = False, extra: bool = False) -> onnx.ModelProto:
    """first [n, 3] + 2 · second [n, 3] → y; inputs in either order."""
    names = [second, first] if swapped else [first, second]
    inputs = [(n, FLOAT, ["n", 3]) for n in names] + [("ids", INT64, ["n"])] * extra
    nodes = [node("Add", [second, second], ["d"]), node("Add", [first, "d"], ["y"])]
    return model(nodes, inputs, [("y", FLOAT, ["n", 3])])


def test_inputs_are_matched_by_name_whatever_their_order() -> None:
    values = {"p": torch.randn(4, 3), "q": torch.randn(4, 3)}
    job = pair(two_inputs("p", "q"), two_inputs("p", "q", swapped=True), values)
    trace = job.target.run(values, Want())
    assert torch.equal(trace.outputs["a.y"], trace.outputs["b.y"])
    other = pair(two_inputs("p", "q"), two_inputs("s", "t"), values, match={"p": "t", "q": "s"})
    trace = other.target.run(values, Want())
    assert torch.allclose(trace.outputs["b.y"], values["q"] + 2 * values["p"])
    assert other.notes()[0] == "inputs matched (A = B): q = s, p = t; outputs: y"


def test_rounding_is_a_tie_between_torch_and_onnx_runtime_alone() -> None:
    graph = nnfuzz.onnx.load(classifier())
    a = torch.tensor([[1.0, 1.0 - 2e-6, -2.0]])
    trace = Trace({"a.y": a, "b.y": a[:, [1, 0, 2]]})
    hits = {}
    for word, sides in {"one": (graph, graph), "other": (Net(), Net()), "two": (Net(), graph)}.items():
        (objective,) = pair(*sides, seeds()).objectives()
        hits[word] = objective.judge(trace, {}).hits.tolist()
    assert hits == {"one": [True], "other": [True], "two": [False]}


def test_inputs_that_one_side_lacks() -> None:
    values = {"p": torch.randn(4, 3), "q": torch.randn(4, 3)}
    with pytest.raises(UsageError, match="nothing of A fits 'ids'; say what does with --map A_NAME=B_NAME"):
        pair(two_inputs("p", "q"), two_inputs("p", "q", extra=True), values)
    more = {**values, "ids": torch.arange(4)}
    job = pair(two_inputs("p", "q", extra=True), two_inputs("p", "q"), more)
    assert "B takes no input like ids of A: it runs without" in job.notes()
    with pytest.raises(UsageError, match="--map zz=y: A has no input or output 'zz', its inputs are p, q, its"):
        pair(two_inputs("p", "q"), two_inputs("p", "q"), values, match={"zz": "y"})


# ------------------------------------------------------------------------------------------ sides of any kind


def exported(tmp_path: Path) -> Any:
    program = torch.export.export(Net(1.02), (torch.zeros(2, 6),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, tmp_path / "net.pt2")
    return str(tmp_path / "net.pt2")


def scripted(tmp_path: Path) -> Any:
    torch.jit.trace(Net(1.02).eval(), torch.zeros(2, 6)).save(str(tmp_path / "net.pt"))
    return str(tmp_path / "net.pt")


KINDS = {
    "onnx": lambda _: classifier(1.02, x="input.1", y="y0"),
    "file": lambda folder: str(saved(classifier(1.02, x="input.1"), folder / "b.onnx")),
    "module": lambda _: Net(1.02),
    "pt2": exported,
    "script": scripted,
    "fixed": lambda _: classifier(1.02, batch=1),
}


@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [True, False], ids=["a graph and", "a graph after"])
def test_a_graph_beside_every_kind_of_model(kind: str, first: bool, tmp_path: Path) -> None:
    other = KINDS[kind](tmp_path)
    sides = (classifier(), other) if first else (other, classifier())
    run = nnfuzz.diff(*sides, seeds(), **LIMITS)
    assert run.findings
    finding = run.findings[0]
    assert finding.status == "confirmed"
    x = next(iter(finding.inputs.values()))
    nets = (Net(), Net(1.02)) if first else (Net(1.02), Net())
    scores = [net(x)[0].detach() for net in nets]
    answers = [int(s.argmax()) for s in scores]
    margin = min(float(s.topk(2).values.diff().abs()) for s in scores)
    assert answers == [finding.details["answer_a"], finding.details["answer_b"]] or margin < 1e-3
    assert any(note.startswith("inputs matched (A = B): ") for note in run.notes)


def test_rows_of_a_that_b_takes_one_by_one() -> None:
    job = pair(classifier(), classifier(batch=1), seeds())
    assert (job.target.unit, job.target.b.unit) == ("sample", "batch")  # type: ignore[attr-defined]
    trace = job.target.run({"x": seeds()}, Want())
    assert trace.outputs["b.scores"].shape == (8, 3)
    assert torch.allclose(trace.outputs["a.scores"], trace.outputs["b.scores"], atol=1e-6)


def test_recurrent_states_on_both_sides() -> None:
    values = {"x": torch.randn(4, 1, 4), "state": torch.randn(4, 2, 1, 3), "rate": torch.tensor(16000)}
    job = pair(recurrent(), recurrent(), values)
    trace = job.target.run(job.seeds.groups[0].batch, Want())
    assert torch.equal(trace.outputs["a.next"], trace.outputs["b.next"])
    assert set(trace.outputs) == {"a.y", "b.y", "a.next", "b.next"}


def test_two_levels_of_optimisation_are_two_sides(tmp_path: Path) -> None:
    """A sum of half-precision squares: what is fused is summed in another order, or in float32."""
    path = saved(classifier(), tmp_path / "m.onnx")
    load = nnfuzz.onnx.load
    run = nnfuzz.diff(
        load(path, optimisation="none"), load(path), seeds(), compare="allclose:1e-3", max_inputs=300, max_seconds=10,
    )  # fmt: skip
    assert not run.findings
    assert run.stats.inputs == 300


def test_not_finite_on_one_side_only() -> None:
    stable = log_of_softmax()
    stable.graph.node[2].op_type, stable.graph.node[2].input[0] = "LogSoftmax", "logits"
    del stable.graph.node[1]
    for sides, said in (((log_of_softmax(), stable), "A"), ((stable, log_of_softmax()), "B")):
        run = nnfuzz.diff(*sides, seeds(), compare="allclose:1e-3,1e-3", **LIMITS)
        finding = next(f for f in run.findings if f.symptom == "+inf")
        assert finding.details["broken side"] == said
        assert what(finding) == ("+Inf in A" if said == "A" else "+Inf in B only")
        assert finding.headline().startswith(f"{finding.id} +inf in {said}{' at Log' if said == 'A' else ''}, L∞")
        if said == "A":
            assert finding.details["node"]["name"] == "take_log"


# ---------------------------------------------------------------------------------------------------- scripts

NO_TORCH = """
import runpy, sys
sys.modules["torch"] = sys.modules["nnfuzz"] = sys.modules["onnx"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def rerun(finding: Path, *more: str, without_torch: bool = True) -> subprocess.CompletedProcess[str]:
    script = ["-c", NO_TORCH, str(finding / "repro.py")] if without_torch else [str(finding / "repro.py")]
    return subprocess.run([sys.executable, *script, *more], capture_output=True, text=True, timeout=100, check=False)


MORE = ("topk:1", "threshold:5", "cosine:0.9999")
COMPARISONS = ["allclose:0.1", *(pytest.param(w, marks=pytest.mark.slow) for w in MORE)]


@pytest.mark.parametrize("compare", ["argmax", *COMPARISONS])
def test_a_pair_of_graphs_is_rerun_without_torch(compare: str, tmp_path: Path) -> None:
    sides = (saved(classifier(), tmp_path / "a.onnx"), saved(classifier(1.1, x="i", y="o"), tmp_path / "b.onnx"))
    run = nnfuzz.diff(
        *map(str, sides), seeds(), compare=compare, out=tmp_path / "run", max_inputs=600, ranges=(-10, 10)
    )
    assert run.findings
    again = rerun(tmp_path / "run" / "findings" / "F0001")
    assert again.returncode == 1, again.stdout + again.stderr
    assert "REPRODUCED: disagreement" in again.stdout
    same = rerun(tmp_path / "run" / "findings" / "F0001", str(sides[0]), str(sides[0]))
    assert same.returncode == 2  # its inputs have other names
    assert nnfuzz.repro(tmp_path / "run" / "findings" / "F0001").reproduced


def test_a_finding_is_rerun_without_torch_and_says_when_the_model_changed(tmp_path: Path) -> None:
    path = saved(log_of_softmax(), tmp_path / "m.onnx")
    nnfuzz.find_nans(str(path), seeds(), out=tmp_path / "run", **LIMITS)
    finding = tmp_path / "run" / "findings" / "F0001"
    first = rerun(finding)
    assert (first.returncode, first.stderr) == (1, "")
    assert "REPRODUCED: +inf" in first.stdout
    harmless = saved(classifier(), tmp_path / "other.onnx")
    assert rerun(finding, str(harmless)).returncode == 0
    changed = log_of_softmax()
    changed.doc_string = "another file"
    saved(changed, path)
    again = rerun(finding)
    assert again.returncode == 1
    assert "m.onnx has changed since the finding was made" in again.stderr
    path.unlink()
    gone = rerun(finding)
    assert gone.returncode == 2
    assert "say where it is, as in: python repro.py path/to/model.onnx" in gone.stderr


@pytest.mark.slow
def test_torch_beside_a_graph_and_objectives_are_rerun_with_torch(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_target_pairs import Net
net = Net(1.02)
def unsure(outputs, inputs):
    return outputs.max(1).values > 20
"""
    (tmp_path / "net.py").write_text(code)
    saved(classifier(), tmp_path / "a.onnx")
    context = {"cwd": str(tmp_path)}
    names = [f"{tmp_path}/net.py:net", str(tmp_path / "a.onnx")]
    nnfuzz.diff(*names, seeds(), out=tmp_path / "mixed", context=dict(context), **LIMITS)
    assert rerun(tmp_path / "mixed" / "findings" / "F0001", without_torch=False).returncode == 1
    from nnfuzz.loading import load_object

    nnfuzz.fuzz(
        names[1], seeds(), objective=load_object(f"{tmp_path}/net.py:unsure"), out=tmp_path / "property",
        context={**context, "objective": f"{tmp_path}/net.py:unsure"}, **LIMITS,
    )  # fmt: skip
    again = rerun(tmp_path / "property" / "findings" / "F0001", without_torch=False)
    assert again.returncode == 1, again.stdout + again.stderr


def test_values_inside_are_read_by_the_script(tmp_path: Path) -> None:
    nodes = [node("Exp", ["x"], ["e"], "grow"), node("Reciprocal", ["e"], ["y"], "shrink")]
    made = model(nodes, [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])
    path = saved(made, tmp_path / "m.onnx")
    for watch in ("layers", "internal"):
        nnfuzz.find_nans(
            str(path), torch.rand(4, 2), watch=watch, ranges=(0, 100), max_inputs=600, out=tmp_path / watch,
        )  # fmt: skip
        again = rerun(tmp_path / watch / "findings" / "F0001", without_torch=False)
        assert again.returncode == 1, again.stdout + again.stderr
        assert "e: float32[1, 2]" in again.stdout


def test_a_model_in_memory_is_kept_in_the_run_directory(tmp_path: Path) -> None:
    run = nnfuzz.find_nans(log_of_softmax(), seeds(), out=tmp_path / "run", **LIMITS)
    assert (tmp_path / "run" / "model.onnx").is_file()
    finding = tmp_path / "run" / "findings" / "F0001"
    assert rerun(finding).returncode == 1
    assert nnfuzz.repro(finding).reproduced
    more = nnfuzz.resume(tmp_path / "run", max_inputs=2000)
    assert more.stats.inputs == 2000
    assert [f.cause for f in more.findings] == [f.cause for f in run.findings]
    far = nnfuzz.shrink(finding, max_inputs=500).distance["linf"]
    assert far <= run.findings[0].distance["linf"] + 1e-6


def test_the_level_of_a_run_is_that_of_its_reruns(tmp_path: Path) -> None:
    path = saved(log_of_softmax(), tmp_path / "m.onnx")
    nnfuzz.find_nans(nnfuzz.onnx.load(path, optimisation="basic"), seeds(), out=tmp_path / "run", **LIMITS)
    finding = tmp_path / "run" / "findings" / "F0001"
    script = (finding / "repro.py").read_text()
    assert "'optimisation': 'basic'" in script
    from nnfuzz.findings.save import load_finding
    from nnfuzz.rerun import job_of

    job = job_of(
        load_finding(tmp_path / "run" / "findings" / "F0001"), tmp_path / "run" / "findings" / "F0001", None, None
    )
    assert job.model.options.optimisation == "basic"  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.filterwarnings("default::Warning")
def test_an_export_agrees_with_what_it_was_made_of(tmp_path: Path) -> None:
    """torch's own exporter, weights in a file beside the graph: nothing to be found but where it was tampered with."""
    net = Net().eval()
    path = tmp_path / "exported.onnx"
    program = torch.onnx.export(
        net, (torch.zeros(2, 6),), dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},), external_data=True
    )
    assert program is not None
    program.save(str(path), external_data=True)
    run = nnfuzz.diff(net, str(path), seeds(), compare="allclose:1e-4,1e-4", **LIMITS)
    assert not run.findings
    assert run.stats.unit == "sample"
    assert nnfuzz.diff(Net(1.02), str(path), seeds(), **LIMITS).findings


# ------------------------------------------------------------------------------------------------- gradients


class Sum(nn.Module):
    """``two_inputs`` in torch, a little tilted."""

    def forward(self, p: Tensor, q: Tensor) -> Tensor:
        return p + 2.001 * q


class Followed(Sum):
    """The same with the names of its inputs unlike any graph's."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first + 2.001 * second


def mixed(torch_first: bool, other: nn.Module, names: tuple[str, str]) -> tuple[Any, Any, dict[str, Tensor]]:
    """The two sides, and seeds under A's names."""
    graph = nnfuzz.onnx.load(two_inputs(*names))
    own = ("first", "second") if isinstance(other, Followed) else ("p", "q")
    mine = own if torch_first else names
    g = torch.Generator().manual_seed(0)
    values = {mine[0]: torch.randn(8, 3, generator=g), mine[1]: torch.randn(8, 3, generator=g)}
    return (other, graph, values) if torch_first else (graph, other, values)


@pytest.mark.parametrize("torch_first", [True, False], ids=["torch first", "graph first"])
@pytest.mark.parametrize(
    ("other", "names"), [(Sum(), ("p", "q")), (Sum(), ("q", "p")), (Followed(), ("s", "t"))],
    ids=["by name", "by name, not order", "in order"],
)  # fmt: skip
def test_gradients_of_a_mixed_pair_are_those_of_its_torch_side(
    torch_first: bool, other: nn.Module, names: tuple[str, str]
) -> None:
    a, b, values = mixed(torch_first, other, names)
    job = DiffJob(Settings(job="diff", compare="allclose:0.01"), a, b, values)
    with job.target_session():
        job.prepare()
    target = job.pair
    assert target is not None
    leading = target.a if torch_first else target.b
    assert target.traced == [leading]
    assert leading.allowance() is None
    (guide,) = job.guides(job.objectives())
    leaves = {n: t.clone().requires_grad_() for n, t in job.seeds.groups[0].batch.items()}
    told = torch.stack([d["difference"] for d in guide.look(leaves, lambda _: False)])
    got = torch.autograd.grad(told.sum(), list(leaves.values()))
    lead = other(*leaves.values()) if isinstance(other, Followed) else other(**leaves)
    theirs = target.names if torch_first else {n: n for n in leaves}
    judge = (b if torch_first else a)(**{theirs[n]: t.detach() for n, t in leaves.items()})["y"]
    by_hand = -((lead - judge).square().mean(1) + 1e-30).log()
    wanted = torch.autograd.grad(by_hand.sum(), list(leaves.values()))
    for mine, expected in zip(got, wanted, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("covered", ["a", "b", "both"])
@pytest.mark.parametrize("torch_first", [True, False], ids=["torch first", "graph first"])
def test_mixed_pairs_take_turns_whatever_side_is_covered(
    covered: str, torch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnfuzz.gradient import Climber

    made: list[Climber] = []
    plain = Climber.turn

    def turn(self: Climber, batch: int, rng: np.random.Generator) -> Any:
        made.append(self)
        return plain(self, batch, rng)

    monkeypatch.setattr(Climber, "turn", turn)
    graph = nnfuzz.onnx.load(classifier())
    sides = (Net(1.02), graph) if torch_first else (graph, Net(1.02))
    run = nnfuzz.diff(*sides, seeds(), covered=covered, ranges=(-10, 10), max_inputs=3000, max_shrink=50)
    assert run.findings
    assert len(made) > 2
    assert made[0].allowance is None
    assert not made[0].trouble


def test_two_graphs_keep_to_the_allowance_of_the_dearer_one() -> None:
    from nnfuzz.gradient.allowance import Allowance, together

    job = pair(classifier(), classifier(1.02), seeds())
    assert job.pair is not None
    assert job.pair.traced == [job.pair.a, job.pair.b]
    joined = together([Allowance(lambda n: 3.0 * n), None, Allowance(lambda n: 50.0 + n)])
    assert joined is not None
    assert [joined.price(n) for n in (1, 100)] == [51.0, 300.0]
    assert together([None, None]) is None
