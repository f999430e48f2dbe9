"""Shared by all tests: one thread, no deadlines, warnings of our own code are errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.distributions import Distribution

import nnfuzz
from nnfuzz.report.base import SilentReporter
from nnfuzz.run import Run

THIRD_PARTIES = (
    "torch",
    "faiss",
    "numpy",
    "mlxtend",
    "matplotlib",
    "PIL",
    "safetensors",
    "hypothesis",
    "typer",
    "rich",
)

settings.register_profile(
    "fast",
    deadline=None,  # the machine is shared: time says nothing
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("fast"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("NNFUZZ_HYPOTHESIS", "fast"))


def pytest_configure(config: pytest.Config) -> None:
    """The later filter wins: everything is an error, except what others' code does, except what ours does."""
    torch.set_num_threads(1)
    for name in THIRD_PARTIES:
        config.addinivalue_line("filterwarnings", rf"default::Warning:{name}(\..*)?")
    config.addinivalue_line("filterwarnings", r"error::Warning:nnfuzz(\..*)?")


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    """Every test starts from the same random state, whichever ran before it."""
    torch.manual_seed(0)
    Distribution.set_default_validate_args(True)  # torch.export turns it off for the whole process
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test wrote and imported is gone after it: the next one may call a file of its own the same."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        written = getattr(sys.modules[name], "__file__", None) or ""
        if written.startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


class Watcher(SilentReporter):
    """Notes where each batch ended: ``marks[i]`` is (batches, inputs)."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, int]] = []
        self.found: list[str] = []

    def start(self, info: Any) -> None:
        self.info = info

    def update(self, stats: Any, findings: Any) -> None:
        self.marks.append((stats.batches, stats.inputs))

    def finding(self, finding: Any) -> None:
        self.found.append(finding.id)

    def end(self, stats: Any, findings: Any, path: Any) -> None:
        self.ended = stats.stopped


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def entries() -> Callable[[Run], list[tuple[Any, ...]]]:
    """A run's corpus as plain values that compare bit for bit."""

    def entries(run: Run) -> list[tuple[Any, ...]]:
        corpus = run.corpus
        return [
            (
                i,
                corpus.parent[i],
                corpus.seed_index[i],
                corpus.mutator[i],
                repr(corpus.score[i] + 0.0),
                {n: (tuple(t.shape), t.numpy().tobytes()) for n, t in corpus.candidate(i).items()},
            )
            for i in corpus
        ]

    return entries


@pytest.fixture
def facts() -> Callable[[Run], list[tuple[Any, ...]]]:
    """A run's findings as plain values, without times."""

    def facts(run: Run) -> list[tuple[Any, ...]]:
        return [
            (
                f.id,
                f.symptom,
                f.cause,
                f.status,
                f.phase,
                f.seed_index,
                f.count,
                f.inputs_tried,
                repr(f.lineage),
                repr(f.distance),
                {n: t.numpy().tobytes() for n, t in f.inputs.items()},
            )
            for f in run.findings
        ]

    return facts


@pytest.fixture
def refused() -> Callable[..., str]:
    """Calls something that must be refused as bad usage; returns the sentence."""

    def refused(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        with pytest.raises(nnfuzz.UsageError) as caught:
            fn(*args, **kwargs)
        assert caught.value.exit_status == 2
        return str(caught.value)

    return refused
