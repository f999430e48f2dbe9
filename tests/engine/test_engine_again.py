"""The same seed gives the same run, whether it was interrupted, killed or resumed in between."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.store import RunStore

QUICK: dict[str, Any] = {"max_seconds": None, "max_shrink": 300}


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4), Loss()).eval()


class Loss(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(0.8 - x.abs().amax(-1)) / (x[..., 0] - x[..., 1] + 2)


SEEDS = torch.rand(7, 6, generator=torch.Generator().manual_seed(1))


def nan_run(**more: Any) -> nnfuzz.Run:
    return nnfuzz.find_nans(net(), SEEDS, ranges=(-3, 3), **(QUICK | more))


def stretchy(x: Tensor) -> Tensor:
    return x.sum() / (x.shape[0] - 1) + torch.sqrt(5.9 - x).mean()


def stretchy_run(**more: Any) -> nnfuzz.Run:
    seeds = [torch.linspace(0.1, 0.9, 3), torch.linspace(0.9, 0.2, 4)]
    return nnfuzz.find_nans(stretchy, seeds, ranges=(0, 6), shapes={"x": ("1<=n<=6",)}, **(QUICK | more))


def test_the_same_seed_gives_the_same_run(entries: Any, facts: Any) -> None:
    one, two = nan_run(max_inputs=3000, seed=5), nan_run(max_inputs=3000, seed=5)
    assert entries(one) == entries(two)
    assert facts(one) == facts(two)
    assert one.findings
    for name in ("inputs", "extra_inputs", "batches", "hits", "corpus", "radius", "best_score", "max_depth", "yields"):
        assert getattr(one.stats, name) == getattr(two.stats, name), name


def test_the_state_of_the_caller_does_not_matter(entries: Any) -> None:
    one = nan_run(max_inputs=1000)
    torch.manual_seed(99)
    assert entries(one) == entries(nan_run(max_inputs=1000))


def test_another_seed_gives_another_run(entries: Any) -> None:
    assert entries(nan_run(max_inputs=1000, seed=1)) != entries(nan_run(max_inputs=1000, seed=2))


def test_writing_a_run_does_not_change_it(entries: Any, facts: Any, tmp_path: Path) -> None:
    one, two = nan_run(max_inputs=1500), nan_run(max_inputs=1500, out=tmp_path / "run")
    assert entries(one) == entries(two)
    assert facts(one) == facts(two)


MOST = {nan_run: 4000, stretchy_run: 2500}
"""Inputs of the runs that are resumed twice: enough for gradients to have taken part and a small corpus to be full."""
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (nan_run, {}),
    "small corpus": (nan_run, {"max_corpus": 64}),
    "reshaped": (stretchy_run, {}),
    "reshaped, small corpus": (stretchy_run, {"max_corpus": 64}),
    "fixed radius": (nan_run, {"radius": 0.3}),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if "small" in c else c for c in CASES])
def test_resuming_equals_no_interruption(case: str, entries: Any, facts: Any, watcher: Any, tmp_path: Path) -> None:
    begin, more = CASES[case]
    whole = begin(max_inputs=MOST[begin], out=tmp_path / "whole", reporter=watcher, **more)
    if "small" in case:
        assert whole.stats.evicted > 0
    stops = [inputs for _, inputs in watcher.marks[:-1]]
    model = net() if begin is nan_run else stretchy
    begin(max_inputs=stops[len(stops) // 3], out=tmp_path / "parts", **more)
    nnfuzz.resume(tmp_path / "parts", model=model, max_inputs=stops[2 * len(stops) // 3])
    last = nnfuzz.resume(tmp_path / "parts", model=model, max_inputs=MOST[begin])
    assert entries(last) == entries(whole)
    assert facts(last) == facts(whole)
    for name in ("inputs", "extra_inputs", "batches", "hits", "corpus", "radius", "best_score", "max_depth", "evicted"):
        assert getattr(last.stats, name) == getattr(whole.stats, name), name
    assert [last.corpus.lineage(i) for i in last.corpus] == [whole.corpus.lineage(i) for i in whole.corpus]
    with RunStore.open(tmp_path / "whole") as a, RunStore.open(tmp_path / "parts") as b:
        for x, y in zip(a.records(), b.records(), strict=True):
            assert x[:6] == y[:6]
            assert x.score == y.score or (x.score != x.score and y.score != y.score)
            assert x.vector.tobytes() == y.vector.tobytes()


def test_a_run_that_is_over_stays_as_it_is(entries: Any, facts: Any, tmp_path: Path) -> None:
    first = nan_run(max_inputs=1000, out=tmp_path / "run")
    again = nnfuzz.resume(tmp_path / "run", model=net())
    kept = entries(again)
    assert len(kept) > len(SEEDS)
    assert kept == entries(first)[: len(kept)]  # those on disk: what the run's tail brought is no part of them
    assert facts(again) == facts(first)
    assert (again.stats.inputs, again.stats.batches) == (first.stats.inputs, first.stats.batches)


def test_functions_must_be_given_again(refused: Any, tmp_path: Path) -> None:
    def never(outputs: Tensor, inputs: Tensor) -> Tensor:
        return torch.zeros(len(outputs), dtype=torch.bool)

    nnfuzz.fuzz(net(), SEEDS, objective=never, max_inputs=64, out=tmp_path / "run")
    assert "pass objective= again" in refused(nnfuzz.resume, tmp_path / "run", model=net())
    assert "pass model=" in refused(nnfuzz.resume, tmp_path / "run", objective=never)
    assert nnfuzz.resume(tmp_path / "run", model=net(), objective=never, max_inputs=128).stats.inputs == 128


CHILD = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from test_engine_again import nan_run
print("begun", flush=True)
run = nan_run(max_inputs=10_000_000, out=sys.argv[1])
print(run.stats.stopped, run.stats.inputs, flush=True)
"""


def child(run: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(run), str(Path(__file__).parent)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and batches(run) < 12:
        assert started.poll() is None
        time.sleep(0.05)
    return started


def batches(run: Path) -> int:
    if not (run / "run.json").exists():
        return 0
    with RunStore.open(run, writable=False) as store:
        return ((store.state() or {}).get("counters") or {}).get("batches", 0)


def test_kill_minus_nine_loses_at_most_the_last_batch(entries: Any, facts: Any, watcher: Any, tmp_path: Path) -> None:
    started = child(tmp_path / "run")
    os.kill(started.pid, signal.SIGKILL)
    started.communicate()
    done = batches(tmp_path / "run")
    assert done >= 12
    with RunStore.open(tmp_path / "run", writable=False) as store:
        more = int(store.state()["counters"]["inputs"]) + 1
    whole = nan_run(max_inputs=more + 4096, reporter=watcher)
    goal = next(inputs for number, inputs in watcher.marks if number == min(done + 1, len(watcher.marks)))
    resumed = nnfuzz.resume(tmp_path / "run", model=net(), max_inputs=goal)
    direct = nan_run(max_inputs=goal)
    assert whole.stats.inputs >= goal
    assert entries(resumed) == entries(direct)
    assert facts(resumed) == facts(direct)


def test_ctrl_c_saves_and_says_so(tmp_path: Path) -> None:
    started = child(tmp_path / "run")
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=60)
    assert "interrupted" in out
    assert started.returncode == 0
    inputs = int(out.split()[-1])
    with RunStore.open(tmp_path / "run", writable=False) as store:
        assert store.state()["counters"]["inputs"] == inputs
    assert nnfuzz.resume(tmp_path / "run", model=net(), max_inputs=inputs + 100).stats.inputs == inputs + 100


def two_ways(x: Tensor) -> Tensor:
    return torch.log(x[:, :3] - 0.1) + torch.sqrt(x[:, 3:] - 0.1)


def test_a_finding_that_was_moved_away_costs_no_other_its_name(tmp_path: Path) -> None:
    first = nnfuzz.find_nans(
        two_ways, SEEDS + 0.2, ranges=(-1, 2), phase="forward", max_inputs=600, out=tmp_path / "run"
    )
    gone, *others = first.findings
    assert others
    shutil.rmtree(tmp_path / "run" / "findings" / gone.id)
    again = nnfuzz.resume(tmp_path / "run", model=two_ways, max_inputs=1500)
    (new,) = [f for f in again.findings if f.cause == gone.cause]
    assert int(new.id[1:]) > max(int(f.id[1:]) for f in others)
    assert {f.id: f.cause for f in others}.items() <= {f.id: f.cause for f in again.findings}.items()


def test_a_run_killed_before_its_first_batch_starts_again(entries: Any, facts: Any, tmp_path: Path) -> None:
    whole = nan_run(max_inputs=1000, out=tmp_path / "whole")
    nan_run(max_inputs=1000, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "findings")
    with sqlite3.connect(tmp_path / "run" / "corpus.sqlite") as db:
        db.execute("DELETE FROM state")
        db.execute("DELETE FROM entries")
    db.close()
    again = nnfuzz.resume(tmp_path / "run", model=net())
    assert entries(again) == entries(whole)
    assert facts(again) == facts(whole)
    shutil.rmtree(tmp_path / "run" / "seeds")
    with pytest.raises(nnfuzz.NnfuzzError, match="holds no seeds, so the run cannot go on"):
        nnfuzz.resume(tmp_path / "run", model=net())
