"""The figures that docs/EXPERIMENTS.md promises, measured again. `pytest -m experiment tests/experiments`"""

import os
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend")

import index
import lab
import nan_mnist
import quantization
import regression
import speed
from nnfuzz.coverage.index import EXACT_UP_TO

pytestmark = pytest.mark.experiment

THREADS = os.cpu_count() or 1


def found(rows: list[dict[str, Any]]) -> list[int]:
    return [r["inputs"] for r in rows if r["found"]]


def test_the_classifier_names_95_percent_of_held_out_digits() -> None:
    assert lab.classifier()[1] >= 0.95


def test_coverage_guidance_finds_the_nan_where_random_search_does_not(anchors: Path | None) -> None:
    rows = nan_mnist.measure(10, 200_000, THREADS, anchors, ["coverage-guided", "random, white noise"])
    guided = found(rows["coverage-guided"])
    assert len(guided) == 10
    assert statistics.median(guided) <= 15_000
    assert len(found(rows["coverage-guided, kept"])) == 10
    assert not found(rows["random, white noise"])


def test_gradients_find_the_nan_within_a_thousand_inputs(anchors: Path | None) -> None:
    rows = nan_mnist.measure(10, 1_000, THREADS, anchors, ["with gradients"])
    assert len(found(rows["with gradients"])) == len(found(rows["with gradients, kept"])) == 10


@pytest.mark.parametrize(("eps", "least", "median"), [(1.0, 29, 5_000), (0.4, 28, 10_000)])
def test_half_precision_disagrees_without_gradients(eps: float, least: int, median: int, anchors: Path | None) -> None:
    rows = quantization.series("coverage-guided", "fp16", eps, 30, 100_000, THREADS, anchors)
    assert len(found(rows)) >= least
    assert statistics.median(found(rows)) <= median


@pytest.mark.parametrize("as_", ["fp16", "fp16-tf"])
def test_half_precision_disagrees_on_every_seed_with_gradients(as_: str, anchors: Path | None) -> None:
    rows = quantization.series("with gradients", as_, 0.4, 30, 100_000, THREADS, anchors)
    assert len(found(rows)) == 30
    assert max(found(rows)) <= 3_000
    assert all(r["linf"] <= 0.4 + 1e-6 for r in rows)


def test_two_training_runs_differ_near_data_that_both_name_right() -> None:
    got = regression.measure(20, (0.2,), 5_000, THREADS)
    assert got["together"]["with gradients, 0.2"]["kinds"]
    assert found(got["alone"]["with gradients, 0.2"])


@pytest.mark.parametrize("name", list(speed.REQUIRED))
def test_a_run_keeps_its_share_of_the_model_s_speed(name: str) -> None:
    got = speed.share(name, 3, 2_000_000, 12.0, THREADS)
    assert statistics.median(r["share"] for r in got["runs"]) >= speed.REQUIRED[name][0]


def test_a_large_corpus_costs_little() -> None:
    got = speed.cost(5, (1_000, 100_000), THREADS)
    assert statistics.median(got["100000"]) <= 1.5 * statistics.median(got["1000"])


def test_the_corpus_keeps_under_its_cap() -> None:
    got = speed.memory(1 << 20, 300_000, THREADS)
    assert got["evicted"] > 0
    assert got["most_bytes"] <= got["cap"]


def test_the_index_changes_over_near_the_measured_crossing() -> None:
    rows = index.measure("mlp", 16_384, 15, THREADS)
    crossing = index.crossing(rows)
    assert crossing is not None
    assert crossing / 4 <= EXACT_UP_TO <= 4 * crossing
    assert all(r["recall"] >= 0.9 for r in rows)
